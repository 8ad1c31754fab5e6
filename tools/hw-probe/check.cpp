#include "check.h"

#include <algorithm>

#include "base/printable.h"
#include "base/toml.h"
#include "hw/preflight.h"
#include "plan/deploy.h"
#include "quant/spec.h"

namespace hetero::tool {
namespace {

constexpr std::size_t max_plan_bytes = 1U << 20;

// Of a plan for each layer ("plan"), and of what is no codec, nothing is known here.
std::string codec_name(const std::string& text) {
    const auto spec = quant::parse_spec(text);
    return spec ? spec->codec : std::string();
}

// A stage, or both, on machines of one kind.
struct Part {
    const plan::DeploymentPlan::Stage* stage;
    bool prefills, decodes;

    [[nodiscard]] std::vector<std::string> names() const {
        return stage->hosts.empty() ? std::vector<std::string>{stage->machine} : stage->hosts;
    }
    [[nodiscard]] bool has(const std::string& name) const {
        const auto all = names();
        return std::find(all.begin(), all.end(), name) != all.end();
    }
};

std::vector<Part> parts_of(const plan::DeploymentPlan& plan) {
    std::vector<Part> out{{&plan.prefill, true, !plan.decode}};
    if (plan.decode) out.push_back({&*plan.decode, false, true});
    for (const auto& one : plan.more) out.push_back({&one, one.role != "decode", one.role != "prefill"});
    return out;
}

// What the plan asks of the machine that it calls `name`.
hw::Demand demand_of(const plan::DeploymentPlan& plan, const std::string& name, const hw::Machine& machine) {
    hw::Demand demand;
    demand.gpu = !machine.gpus.empty();
    const auto add = [](std::vector<std::string>& list, const std::string& what) {
        if (!what.empty() && std::find(list.begin(), list.end(), what) == list.end()) list.push_back(what);
    };
    bool prefills = false, decodes = false;
    std::vector<std::string> peers_that_prefill, peers_that_decode;
    for (const Part& part : parts_of(plan)) {
        if (part.has(name)) {
            prefills = prefills || part.prefills;
            decodes = decodes || part.decodes;
            add(demand.dtypes, part.stage->dtype);
            if (part.stage->weight_bytes > 0)
                demand.weight_bytes =
                    std::max(demand.weight_bytes.value_or(0), static_cast<std::uint64_t>(part.stage->weight_bytes));
            continue;
        }
        for (const std::string& other : part.names()) {
            if (part.prefills) add(peers_that_prefill, other);
            if (part.decodes) add(peers_that_decode, other);
        }
    }
    const bool split = plan.decode.has_value();
    if (decodes) add(demand.kv_dtypes, codec_name(plan.resident));
    if (!split) return demand;
    add(demand.codecs, codec_name(plan.wire));
    if (plan.link_bytes > 0 && plan.link_bytes < 0x1p62)
        demand.state_bytes = static_cast<std::uint64_t>(plan.link_bytes);
    const auto& peers = prefills ? peers_that_decode : peers_that_prefill;
    if ((prefills && decodes) || peers.empty()) return demand;
    demand.peer = peers.front();
    demand.sends = prefills;
    const std::uint32_t links = std::max(1U, std::min(plan.prefill.machines, plan.decode->machines));
    if (plan.rate_per_s > 0) demand.link_gb_per_s = plan.rate_per_s * plan.link_bytes / links / 1e9;
    if (plan.link_ms > 0) demand.planned_link_gb_per_s = plan.link_bytes / plan.link_ms / 1e6;
    return demand;
}

struct Subject {
    const hw::Machine* machine;
    hw::Demand demand;
};

Result<std::vector<Subject>> subjects(const CheckCommand& command, const hw::Profile& profile,
                                      const std::optional<plan::DeploymentPlan>& plan) {
    std::vector<Subject> out;
    if (!plan) {
        if (!command.machine.empty() && profile.find(command.machine) == nullptr)
            return fail(Errc::usage, "--machine {}: the profile has no machine of that name",
                        printable(command.machine));
        for (const hw::Machine& machine : profile.machines)
            if (command.machine.empty() || machine.name == command.machine) out.push_back({&machine, {}});
        return out;
    }
    std::vector<std::string> named;
    for (const Part& part : parts_of(*plan))
        for (const std::string& name : part.names())
            if (std::find(named.begin(), named.end(), name) == named.end()) named.push_back(name);
    const bool known = std::find(named.begin(), named.end(), command.machine) != named.end();
    if (!command.machine.empty() && !known)
        return fail(Errc::usage, "--machine {}: the plan is for {}", printable(command.machine),
                    fmt::join(named, " and "));
    for (const std::string& name : named) {
        if (!command.machine.empty() && name != command.machine) continue;
        const hw::Machine* machine = profile.find(name);
        // A machine on its own may have another name than in the plan, where it is said which it is.
        if (machine == nullptr && profile.machines.size() == 1 && (!command.machine.empty() || named.size() == 1))
            machine = &profile.machines.front();
        if (machine != nullptr) out.push_back({machine, demand_of(*plan, name, *machine)});
    }
    if (out.empty())
        return fail(Errc::usage, "the plan is for {}, the profile of {}: say with --machine which of them it is",
                    fmt::join(named, " and "), profile.machines.front().name);
    return out;
}

}  // namespace

Status check_machines(Tool& tool, const CheckCommand& command, const hw::ProbeOptions& options) {
    std::optional<plan::DeploymentPlan> plan;
    if (!command.plan.empty()) {
        HETERO_TRY(const std::string text, read_text_file(command.plan, max_plan_bytes, "deployment plan"));
        HETERO_TRY(plan, plan::parse_deployment_plan(text, command.plan));
    }
    hw::Profile profile;
    if (command.profile.empty()) {
        HETERO_TRY(const hw::ProfileTexts own, hw::probe(options));
        HETERO_TRY(profile, hw::parse_profile(own.json, "this machine"));
    } else {
        HETERO_TRY(profile, hw::read_profile(command.profile));
    }
    HETERO_TRY(const auto checked, subjects(command, profile, plan));

    Json machines = Json::array();
    std::string text;
    int failed = 0, warned = 0;
    for (const auto& [machine, demand] : checked) {
        Json checks = Json::array();
        if (checked.size() > 1) text += fmt::format("{}:\n", machine->name);
        for (const hw::Check& check : hw::preflight(profile, *machine, demand)) {
            failed += check.result == hw::Fitness::fail ? 1 : 0;
            warned += check.result == hw::Fitness::warn ? 1 : 0;
            const std::string result(hw::to_string(check.result));
            checks.push_back({{"check", check.name},
                              {"result", result},
                              {"found", check.found},
                              {"remedy", check.remedy.empty() ? Json(nullptr) : Json(check.remedy)}});
            text += fmt::format("{:<5}{:<11}{}\n", result, check.name, check.found);
            if (!check.remedy.empty()) text += fmt::format("{:16}{}\n", "", check.remedy);
        }
        machines.push_back({{"name", machine->name}, {"checks", checks}});
    }
    Json& report = tool.report();
    report["plan"] = command.plan.empty() ? Json(nullptr) : Json(command.plan);
    report["failed"] = failed;
    report["warned"] = warned;
    report["machines"] = machines;
    if (!tool.json()) HETERO_CHECK(tool.print(text));
    if (failed == 0) return {};
    return fail(Errc::check_failed, "{} check{} failed", failed, failed == 1 ? "" : "s");
}

}  // namespace hetero::tool
