// What every tool does alike: parse, run, report, fail. main() fills the table of options and hands over a body.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "common/files.h"
#include "common/options.h"
#include "io/atomic_file.h"
#include "kv/state.h"

namespace hetero::tool {

using Json = nlohmann::ordered_json;

class Tool {
public:
    Tool(std::string name, std::string summary);

    OptionTable& options() noexcept { return table_; }
    // --trace FILE: the spans of base/trace.h, written when the tool ends, also with an error.
    void add_trace_option();

    // The whole life of the program; returns its exit status. `body` returns an error of class check_failed after it
    // has filled the report: that is printed then, too; with any other error stdout stays empty.
    int run(int argc, char** argv, const std::function<Status()>& body);

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] bool json() const noexcept { return json_; }
    [[nodiscard]] bool reports() const noexcept { return json_ || !report_path_.empty(); }
    [[nodiscard]] bool quiet() const noexcept { return quiet_; }
    [[nodiscard]] bool verbose() const noexcept { return verbose_; }
    [[nodiscard]] bool show_progress() const noexcept { return show_progress_; }
    // Whether outputs may replace files that are there.
    [[nodiscard]] io::Overwrite overwrite() const noexcept {
        return force_ ? io::Overwrite::replace : io::Overwrite::refuse;
    }
    // `files` are those that the tool reads and writes besides --config and --report: see check_files.
    [[nodiscard]] Status check_files(Files files) const;

    // The document that --json and --report write; begins with tool, version, schema.
    Json& report() noexcept { return report_; }
    // The report is complete: it is written even if the body ends with another error than check_failed.
    void report_is_complete() noexcept { report_complete_ = true; }

    // From now on this process writes nothing but errors: neither stdout nor --report nor notes.
    void silence() noexcept { silent_ = quiet_ = true, show_progress_ = false; }

    // A result beside the report, complete or not at all. `mode`: private_file or shared_file of io/atomic_file.h.
    [[nodiscard]] Status write_file(const std::string& path, std::string_view text,
                                    unsigned mode = io::private_file) const;

    // Data for stdout, written at once.
    Status print(std::string_view data);
    // A line for people, on stderr unless -q.
    template <class... Args>
    void note(fmt::format_string<Args...> format, Args&&... args) {
        if (!quiet_) note_line(fmt::format(format, std::forward<Args>(args)...));
    }

    // An entry for the history of the states that this tool writes.
    [[nodiscard]] kv::ProvenanceEntry provenance(std::string what) const;

private:
    void add_common_options();
    Status prepare_run(int argc, char** argv, bool* done);
    Status finish_run(const Status& body_status);
    Status write_trace() const;
    void note_line(const std::string& line);

    std::string name_, summary_;
    OptionTable table_;
    Json report_;
    bool report_complete_ = false, silent_ = false;
    mutable bool files_checked_ = false;  // no output is an input, or another output
    bool json_ = false, quiet_ = false, verbose_ = false, show_progress_ = false, force_ = false;
    bool redact_ = false;
    bool help_ = false, version_ = false, dump_config_ = false;
    std::string progress_ = "auto", log_format_ = "text";
    std::string report_path_, trace_path_, config_path_, completion_;
};

// A number for a report: null where it is not finite.
[[nodiscard]] inline Json number(double value) { return value - value == 0 ? Json(value) : Json(nullptr); }

}  // namespace hetero::tool
