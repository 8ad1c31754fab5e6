// hw-probe: what this machine is and how fast it is.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/models.h"
#include "common/tool.h"
#include "hw/probe.h"
#include "links.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

constexpr double quick_seconds_each = 0.02;

struct ProbeCommand {
    bool toml = false, quick = false, describe = false, links = false;
    double seconds_each = 0.3;
    std::uint64_t threads = 0;
    std::string disk_path = ".";
};

Status run_probe(Tool& tool, const ProbeCommand& command) {
    if (tool.json() && command.toml) return fail(Errc::usage, "--json and --toml exclude each other");
    if (command.quick && command.describe) return fail(Errc::usage, "--quick and --describe exclude each other");
    HETERO_CHECK(tool.check_files({}));
    hw::ProbeOptions options;
    options.measure = !command.describe;
    options.quick = command.quick;
    options.seconds_each = command.quick ? std::min(command.seconds_each, quick_seconds_each) : command.seconds_each;
    options.threads = static_cast<int>(command.threads);
    options.disk_path = command.disk_path;
    HETERO_TRY(const hw::ProfileTexts profile, command.links ? probe_fleet(tool, options) : hw::probe(options));
    if (profile.json.empty()) return {};  // rank 0 speaks for all
    const Json document = Json::parse(profile.json, nullptr, false);
    if (!document.is_object()) return fail(Errc::internal, "the profile is not a JSON object");
    tool.report().update(document);
    if (tool.json()) return {};
    return tool.print(command.toml ? profile.toml : profile.summary);
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("hw-probe",
              "Describes this machine: CPU, memory, limits, disk, GPUs, MPI and fabric, with measured rates.");
    ProbeCommand command;
    OptionTable& table = tool.options();
    table.heading("Probe");
    table.flag("--toml", &command.toml, "print the profile as TOML");
    table.flag("--quick", &command.quick, "measure little: rough rates in under 3 s");
    table.flag("--links", &command.links, "under mpirun: the machines of all ranks, and every link between ranks");
    table.flag("--describe", &command.describe, "measure nothing");
    table.duration("--duration", "TIME", &command.seconds_each, "budget of each timed probe").setting = true;
    table.text("--disk", "DIR", &command.disk_path, "directory whose disk is measured").completion =
        Completion::directory;
    add_thread_option(table, &command.threads);
    return tool.run(argc, argv, [&] { return run_probe(tool, command); });
}
