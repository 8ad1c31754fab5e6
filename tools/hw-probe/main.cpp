// hw-probe: what this machine is and how fast it is.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "check.h"
#include "common/models.h"
#include "common/tool.h"
#include "hw/probe.h"
#include "links.h"
#include "stages.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

constexpr double quick_seconds_each = 0.02;

struct ProbeCommand {
    bool toml = false, quick = false, describe = false, links = false;
    double seconds_each = 0.3;
    std::uint64_t threads = 0;
    std::string disk_path = ".";
    std::string action, model, output;
    CheckCommand check;
};

Status run_probe(Tool& tool, const ProbeCommand& command) {
    if (tool.json() && command.toml) return fail(Errc::usage, "--json and --toml exclude each other");
    if (command.quick && command.describe) return fail(Errc::usage, "--quick and --describe exclude each other");
    const bool checks = !command.action.empty();
    if (!checks && !(command.check.plan + command.check.profile + command.check.machine).empty())
        return fail(Errc::usage, "--for, --hw and --machine belong to 'hw-probe check'");
    if (checks && command.action != "check")
        return fail(Errc::usage, "'{}': the only command is 'check'; without one, the machine is described",
                    printable(command.action));
    if (checks && (command.toml || command.links))
        return fail(Errc::usage, "'hw-probe check' has neither --toml nor --links");
    if (command.describe && !command.model.empty()) return fail(Errc::usage, "--describe runs no --model");
    if (checks && !(command.model + command.output).empty())
        return fail(Errc::usage, "'hw-probe check' has neither --model nor --output");
    HETERO_CHECK(tool.check_files({{command.check.plan, command.check.profile, command.model}, {command.output}}));
    if (!command.output.empty()) HETERO_CHECK(io::check_output_path(command.output, tool.overwrite()));
    hw::ProbeOptions options;
    options.measure = !command.describe;
    options.quick = command.quick || checks;
    options.seconds_each = options.quick ? std::min(command.seconds_each, quick_seconds_each) : command.seconds_each;
    options.threads = static_cast<int>(command.threads);
    options.disk_path = command.disk_path;
    if (!command.model.empty())
        options.stages = [&] { return measure_stages({command.model, options.threads, options.quick}); };
    if (checks) return check_machines(tool, command.check, options);
    HETERO_TRY(const hw::ProfileTexts profile, command.links ? probe_fleet(tool, options) : hw::probe(options));
    if (profile.json.empty()) return {};  // rank 0 speaks for all
    const Json document = Json::parse(profile.json, nullptr, false);
    if (!document.is_object()) return fail(Errc::internal, "the profile is not a JSON object");
    tool.report().update(document);
    if (!command.output.empty()) {
        const bool json = command.output.ends_with(".json");
        HETERO_CHECK(tool.write_file(command.output, json ? profile.json : profile.toml, io::shared_file));
    }
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
    table.text("-o,--output", "FILE", &command.output, "write the profile there: JSON if named .json, else TOML")
        .completion = Completion::file;
    table.flag("--toml", &command.toml, "print the profile as TOML");
    table.text("-m,--model", "MODEL", &command.model, "also run this model, and measure its prefill and decode")
        .completion = Completion::file;
    table.flag("--quick", &command.quick, "measure little: rough rates in under 3 s");
    table.flag("--links", &command.links, "under mpirun: the machines of all ranks, and every link between ranks");
    table.flag("--describe", &command.describe, "measure nothing");
    table.duration("--duration", "TIME", &command.seconds_each, "budget of each timed probe").setting = true;
    table.text("--disk", "DIR", &command.disk_path, "directory whose disk is measured").completion =
        Completion::directory;
    add_thread_option(table, &command.threads);
    table.heading("Check");
    table.positional("COMMAND", &command.action, false,
                     "'check': whether the machine is fit for a job, each point ok, warn or fail");
    table.text("--for", "PLAN", &command.check.plan, "what a deployment plan of hetero-plan asks of it").completion =
        Completion::file;
    table.text("--hw", "PROFILE", &command.check.profile, "check this profile, not the machine that this runs on")
        .completion = Completion::file;
    table.text("--machine", "NAME", &command.check.machine, "the plan's name of the machine");
    return tool.run(argc, argv, [&] { return run_probe(tool, command); });
}
