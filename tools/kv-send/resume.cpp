#include "resume.h"

#include <algorithm>

#include "base/units.h"
#include "transport/resume.h"

namespace hetero::tool {
namespace {

bool is_link(const std::vector<transport::Endpoint>& endpoints) {
    return !endpoints.empty() && endpoints.front().is_link();
}

}  // namespace

void add_resume_option(OptionTable& table, std::string* mode) {
    table
        .choice("--resume", mode, {"auto", "off"},
                "from another process into a file: go on where an earlier transfer broke off, or start anew and keep "
                "nothing")
        .setting = true;
}

Status plan_resume(Tool& tool, const std::string& mode, const Endpoints& endpoints, bool as_it_is,
                   transport::TransportOptions& transfer) {
    const bool into_file =
        !endpoints.outputs.empty() && endpoints.outputs.front().kind == transport::EndpointKind::file;
    if (!is_link(endpoints.inputs) || !into_file || !as_it_is) {
        if (tool.options().on_command_line("resume"))
            return fail(Errc::usage,
                        "--resume is for a whole state that goes from another process into a file as it is");
        return {};
    }
    const std::string& path = endpoints.outputs.front().path;
    if (mode == "off") {
        transport::discard_unfinished(path);
    } else {
        transfer.resume = std::make_shared<transport::Resume>(path);
    }
    return {};
}

void report_resumed(Tool& tool, const Endpoints& endpoints, std::uint64_t bytes) {
    Json& report = tool.report();
    report["resumed_bytes"] = report["sent_bytes"] = nullptr;
    const bool to_link = is_link(endpoints.outputs);
    if (!to_link && !is_link(endpoints.inputs)) return;
    const std::uint64_t resumed =
        transport::resumed_bytes(to_link ? endpoints.outputs.front() : endpoints.inputs.front());
    report["resumed_bytes"] = resumed;
    report["sent_bytes"] = bytes - resumed;
    if (resumed != 0) tool.note("{} were there from an earlier transfer", format_bytes(resumed));
}

}  // namespace hetero::tool
