#include "common/tool.h"

#include <unistd.h>

#include <exception>
#include <new>

#include "base/redact.h"
#include "base/trace.h"
#include "common/build_info.h"
#include "common/process.h"
#include "common/version.h"
#include "transport/endpoint.h"
#include "transport/group.h"

namespace hetero::tool {
namespace {

// Whatever a body let through: still one line and an exit status of the table.
Status guarded(const std::function<Status()>& body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory");
    } catch (const std::exception& error) {
        return fail(Errc::internal, "internal error: {}", error.what());
    }
}

std::string dump(const Json& document) { return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace

Tool::Tool(std::string name, std::string summary) : name_(std::move(name)), summary_(std::move(summary)) {
    report_ = {{"tool", name_}, {"version", kVersion}, {"schema", 1}};
}

void Tool::add_trace_option() {
    table_.text("--trace", "FILE", &trace_path_, "write what was done when, for ui.perfetto.dev or chrome://tracing")
        .completion = Completion::file;
}

void Tool::add_common_options() {
    table_.heading("Every tool");
    table_.flag("--json", &json_, "print one JSON document on stdout");
    table_.text("--report", "FILE", &report_path_, "write that document to FILE").completion = Completion::file;
    table_.flag("--force", &force_, "replace output files that are there");
    Option& redact =
        table_.flag("--redact", &redact_, "keep prompts and generated text out of messages and reports: lengths only");
    redact.setting = true;
    redact.assign = [this, parse = redact.assign](std::string_view text) {
        Status parsed = parse(text);
        set_redaction(redact_);
        return parsed;
    };
    table_.flag("-q,--quiet", &quiet_, "print errors only");
    table_.flag("-v,--verbose", &verbose_, "print more");
    table_.choice("--progress", &progress_, {"auto", "always", "never"}, "show progress on stderr").setting = true;
    table_.choice("--log-format", &log_format_, {"text", "json"}, "form of the lines on stderr").setting = true;
    table_.text("--config", "FILE", &config_path_, "read settings from a TOML file").completion = Completion::file;
    table_.flag("--dump-config", &dump_config_, "print each setting with its origin, and exit");
    table_.choice("--completion", &completion_, {"bash"}, "print shell completion, and exit");
    table_.flag("-h,--help", &help_, "print this help, and exit; as JSON with --json");
    table_.flag("-V,--version", &version_, "print the version, and exit; details with --json");
}

Status Tool::prepare_run(int argc, char** argv, bool* done) {
    add_common_options();
    const Status parsed = table_.parse(argc, argv);
    start_log(name_, log_format_ == "json" ? LogFormat::json : LogFormat::text, quiet_, verbose_);
    *done = true;
    if (help_) return write_stdout(json_ ? help_json(name_, summary_, table_) : help_text(name_, summary_, table_));
    if (version_) return write_stdout(json_ ? dump(version_document(name_)) : fmt::format("{} {}\n", name_, kVersion));
    if (!completion_.empty()) return write_stdout(bash_completion(name_, table_));
    HETERO_CHECK(parsed);
    HETERO_CHECK(table_.apply_settings(config_path_, name_));
    HETERO_CHECK(table_.check_extras());
    start_log(name_, log_format_ == "json" ? LogFormat::json : LogFormat::text, quiet_, verbose_);
    if (dump_config_) return write_stdout(table_.dump_settings());
    HETERO_CHECK(table_.check_required());
    if (quiet_ && verbose_) return fail(Errc::usage, "--quiet and --verbose exclude each other");
    show_progress_ = progress_ == "always" || (progress_ == "auto" && !quiet_ && isatty(STDERR_FILENO) == 1);
    if (!report_path_.empty()) {
        HETERO_CHECK(io::check_output_path(report_path_, overwrite()));
    }
    if (!trace_path_.empty()) {
        HETERO_CHECK(io::check_output_path(trace_path_, overwrite()));
        trace::start();
    }
    *done = false;
    return {};
}

Status Tool::check_files(Files files) const {
    files.read.push_back(config_path_);
    files.written.push_back(report_path_);
    files.written.push_back(trace_path_);
    HETERO_CHECK(tool::check_files(files));
    files_checked_ = true;
    return {};
}

Status Tool::write_file(const std::string& path, std::string_view text, unsigned mode) const {
    HETERO_TRY(auto file, io::AtomicFile::create(path, overwrite(), mode));
    HETERO_CHECK(file.write(std::as_bytes(std::span(text))));
    return file.publish();
}

Status Tool::write_trace() const {
    if (trace_path_.empty() || silent_ || !files_checked_) return {};  // it could be the input that was refused
    // Other files of the time line have processes of their own: ranks may be on hosts whose numbers are the same.
    const int rank = transport::world_rank();
    const auto number = (static_cast<std::uint64_t>(rank + 1) % 500) << 22U | static_cast<std::uint64_t>(getpid());
    return write_file(trace_path_, trace::document(rank < 0 ? name_ : fmt::format("{}, rank {}", name_, rank), number));
}

Status Tool::finish_run(const Status& body_status) {
    const Status traced = write_trace();
    if (body_status) HETERO_CHECK(traced);
    if (!body_status && body_status.error().code != Errc::check_failed && !report_complete_) return body_status;
    if (silent_) return body_status;
    if (!body_status) report_["message"] = body_status.error().message;
    if (!report_path_.empty()) HETERO_CHECK(write_file(report_path_, dump(report_)));
    if (json_) HETERO_CHECK(write_stdout(dump(report_)));
    return body_status;
}

int Tool::run(int argc, char** argv, const std::function<Status()>& body) {
    secure_standard_streams();
    install_signal_handlers();
    bool done = false;
    Status status = guarded([&] { return prepare_run(argc, argv, &done); });
    if (status && !done) {
        const Status body_status = guarded(body);
        status = guarded([&] { return finish_run(body_status); });
    }
    if (!status && transport::shows_error()) log_error(status.error().message);
    // A check that said no is an orderly end: the peers have done their part.
    const bool orderly = status || status.error().code == Errc::check_failed;
    const Status left = transport::leave(orderly ? nullptr : &status.error());
    if (orderly && !left) {
        if (transport::shows_error()) log_error(left.error().message);
        status = left;
    }
    return status ? 0 : static_cast<int>(status.error().code);
}

Status Tool::print(std::string_view data) { return silent_ ? Status{} : write_stdout(data); }

void Tool::note_line(const std::string& line) { log_note(line); }

kv::ProvenanceEntry Tool::provenance(std::string what) const { return {name_, kVersion, std::move(what)}; }

}  // namespace hetero::tool
