// Sources and sinks of states that the library has no need of.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common/tool.h"
#include "kv/stream.h"

namespace hetero::tool {

// Shows how many layers of `source` have been read; the line goes with finish().
[[nodiscard]] std::unique_ptr<kv::Source> with_progress(const Tool& tool, std::string label,
                                                        std::unique_ptr<kv::Source> source);

// The sequences of `source` named in `ids`, in the order of the state; no ids: all. The others are not
// read where they need not be, as in files. An id that is not there: bad_input.
Result<std::unique_ptr<kv::Source>> select_sequences(std::unique_ptr<kv::Source> source,
                                                     const std::vector<std::string>& ids);

// Takes a state and drops it.
[[nodiscard]] std::unique_ptr<kv::Sink> discarding_sink();

// The option that gives those ids; `what`: "continue", "keep".
void add_sequence_option(OptionTable& table, std::vector<std::string>& ids, std::string_view what);

}  // namespace hetero::tool
