// The process around the tool: standard streams, signals, the log on stderr.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace hetero::tool {

// Closed standard streams would be taken by the next file that is opened: they are replaced, so that reading gives end
// of file and writing to stdout fails.
void secure_standard_streams() noexcept;

// Signals that end the process remove unfinished outputs first and are raised again, so that the parent sees them.
// SIGPIPE is one of them: a reader that went away ends the tool quietly, whatever the parent had it set to.
void install_signal_handlers() noexcept;

// Writes all of it or says why not (resource).
Status write_stdout(std::string_view data);

enum class LogFormat { text, json };

// Lines on stderr: "TOOL: message". Also takes what the library logs, from `verbose` or warnings on.
void start_log(const std::string& tool, LogFormat format, bool quiet, bool verbose);
void log_error(const std::string& message);
void log_note(const std::string& message);

}  // namespace hetero::tool
