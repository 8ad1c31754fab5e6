#include "plan/deploy.h"

#include <cmath>

#include "base/printable.h"
#include "base/toml_reader.h"
#include "base/units.h"

namespace hetero::plan {
namespace {

constexpr std::uint64_t format_version = 1;
constexpr std::uint64_t max_machines = 1U << 20;

Status read_stage(const TomlReader& table, DeploymentPlan::Stage& out, bool sharing, std::string* how) {
    if (sharing) {
        HETERO_CHECK(table.only({"machine", "machines", "instances", "tp", "dtype", "sharing"}));
    } else {
        HETERO_CHECK(table.only({"machine", "machines", "instances", "tp", "dtype"}));
    }
    HETERO_CHECK(table.text("machine", out.machine));
    out.machine = printable(out.machine, 1024);  // as profiles have it
    HETERO_CHECK(table.count("machines", out.machines, max_machines));
    HETERO_CHECK(table.count("instances", out.instances, max_machines));
    HETERO_CHECK(table.count("tp", out.tp, max_machines));
    HETERO_CHECK(table.text("dtype", out.dtype));
    if (sharing && table.has("sharing")) HETERO_CHECK(table.text("sharing", *how));
    return {};
}

std::string stage_text(std::string_view name, const DeploymentPlan::Stage& stage) {
    return fmt::format("\n[{}]\nmachine = {}\nmachines = {}\ninstances = {}\ntp = {}\ndtype = {}\n", name,
                       toml_string(stage.machine), stage.machines, stage.instances, stage.tp, toml_string(stage.dtype));
}

// Rounded, and a float to TOML.
std::string figure(double value) {
    return toml_real(std::isfinite(value) ? parse_finite(fmt::format("{:.6g}", value)).value_or(0) : 0);
}

}  // namespace

Result<DeploymentPlan> parse_deployment_plan(std::string_view text, const std::string& name) {
    HETERO_TRY(const TomlNode document, parse_toml(text, name));
    const TomlReader root(document, name, "a deployment plan");
    HETERO_CHECK(root.version("deployment_plan", format_version));
    HETERO_CHECK(root.only({"deployment_plan", "tool", "verdict", "reasons", "model", "workload", "prefill", "decode",
                            "kv", "predicted"}));
    DeploymentPlan plan;
    HETERO_CHECK(root.text("tool", plan.tool));
    HETERO_CHECK(root.text("verdict", plan.verdict));
    HETERO_CHECK(root.text("model", plan.model));
    HETERO_TRY(const TomlNode* reasons, root.need("reasons"));
    if (const auto* list = reasons->as<TomlNode::Array>()) {
        for (const TomlNode& reason : *list) {
            const auto* line = reason.as<std::string>();
            if (line == nullptr) return root.wrong_value("reasons", "'reasons' must hold strings");
            plan.reasons.push_back(*line);
        }
    } else {
        return root.wrong_value("reasons", "'reasons' must be a list");
    }
    const auto table = [&](const char* key) -> Result<TomlReader> {
        HETERO_CHECK(root.need(key));
        return *root.table(key);
    };
    HETERO_TRY(const TomlReader workload, table("workload"));
    HETERO_CHECK(workload.only({"prompt_tokens", "cached_tokens", "output_tokens", "rate_per_s"}));
    HETERO_CHECK(workload.count("prompt_tokens", plan.prompt_tokens, 1U << 30));
    HETERO_CHECK(workload.count("cached_tokens", plan.cached_tokens, 1U << 30));
    HETERO_CHECK(workload.count("output_tokens", plan.output_tokens, 1U << 30));
    HETERO_CHECK(workload.real("rate_per_s", plan.rate_per_s));
    HETERO_TRY(const TomlReader prefill, table("prefill"));
    HETERO_CHECK(read_stage(prefill, plan.prefill, true, &plan.sharing));
    if (const auto decode = root.table("decode"))
        HETERO_CHECK(read_stage(*decode, plan.decode.emplace(), false, nullptr));
    HETERO_TRY(const TomlReader kv, table("kv"));
    HETERO_CHECK(kv.only({"wire", "resident", "precision_plan", "first_token", "state_bytes", "link_ms"}));
    HETERO_CHECK(kv.text("wire", plan.wire));
    HETERO_CHECK(kv.text("resident", plan.resident));
    if (kv.has("precision_plan")) HETERO_CHECK(kv.text("precision_plan", plan.precision_plan));
    HETERO_CHECK(kv.text("first_token", plan.first_token));
    HETERO_CHECK(kv.real("state_bytes", plan.link_bytes));
    HETERO_CHECK(kv.real("link_ms", plan.link_ms));
    HETERO_TRY(const TomlReader predicted, table("predicted"));
    HETERO_CHECK(predicted.only({"ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "attainment"}));
    HETERO_CHECK(predicted.real("ttft_p50_ms", plan.ttft_p50_ms));
    HETERO_CHECK(predicted.real("ttft_p99_ms", plan.ttft_p99_ms));
    HETERO_CHECK(predicted.real("itl_p50_ms", plan.itl_p50_ms));
    HETERO_CHECK(predicted.real("itl_p99_ms", plan.itl_p99_ms));
    HETERO_CHECK(predicted.real("attainment", plan.attainment, 1));
    return plan;
}

std::string to_toml(const DeploymentPlan& plan) {
    std::string out = fmt::format("deployment_plan = {}\ntool = {}\nverdict = {}\nreasons = [\n", format_version,
                                  toml_string(plan.tool), toml_string(plan.verdict));
    for (const std::string& reason : plan.reasons) out += fmt::format("  {},\n", toml_string(reason));
    out += fmt::format("]\nmodel = {}\n\n[workload]\nprompt_tokens = {}\ncached_tokens = {}\noutput_tokens = {}\n",
                       toml_string(plan.model), plan.prompt_tokens, plan.cached_tokens, plan.output_tokens);
    out += fmt::format("rate_per_s = {}\n", figure(plan.rate_per_s));
    out += stage_text("prefill", plan.prefill);
    if (!plan.sharing.empty()) out += fmt::format("sharing = {}\n", toml_string(plan.sharing));
    if (plan.decode) out += stage_text("decode", *plan.decode);
    out += fmt::format("\n[kv]\nwire = {}\nresident = {}\n", toml_string(plan.wire), toml_string(plan.resident));
    if (!plan.precision_plan.empty()) out += fmt::format("precision_plan = {}\n", toml_string(plan.precision_plan));
    out += fmt::format("first_token = {}\nstate_bytes = {}\nlink_ms = {}\n", toml_string(plan.first_token),
                       toml_real(std::round(plan.link_bytes)), figure(plan.link_ms));
    out += fmt::format(
        "\n[predicted]\nttft_p50_ms = {}\nttft_p99_ms = {}\nitl_p50_ms = {}\nitl_p99_ms = {}\nattainment = {}\n",
        figure(plan.ttft_p50_ms), figure(plan.ttft_p99_ms), figure(plan.itl_p50_ms), figure(plan.itl_p99_ms),
        figure(plan.attainment));
    return out;
}

DeploymentPlan plan_of(const Problem& problem, const Candidate& candidate, const Decision& decision) {
    DeploymentPlan plan;
    plan.verdict = verdict_name(decision.verdict);
    plan.reasons = decision.reasons;
    plan.model = problem.shape.name;
    const auto stage = [&](const Group& group) {
        const Side& side = problem.sides[group.side];
        const std::uint32_t devices = side.devices_each();
        return DeploymentPlan::Stage{side.name, group.dtype, (group.tp * group.instances + devices - 1) / devices,
                                     group.instances, group.tp};
    };
    plan.prefill = stage(candidate.groups.front());
    if (is_split(candidate.kind)) {
        plan.decode = stage(candidate.groups.back());
    } else {
        plan.sharing = sched::sharing_name(candidate.sharing);
    }
    plan.wire = candidate.wire.name;
    plan.resident = candidate.resident.name;
    plan.first_token = candidate.deployment.first_token == sched::FirstToken::decode ? "decode" : "prefill";
    plan.prompt_tokens = problem.workload.prompt_tokens;
    plan.cached_tokens = problem.workload.cached_tokens;
    plan.output_tokens = problem.workload.output_tokens;
    if (candidate.figures) {
        const Figures& figures = *candidate.figures;
        plan.rate_per_s = figures.rate_per_s;
        plan.ttft_p50_ms = figures.ttft_p50_s * 1e3;
        plan.ttft_p99_ms = figures.ttft_p99_s * 1e3;
        plan.itl_p50_ms = figures.itl_p50_s * 1e3;
        plan.itl_p99_ms = figures.itl_p99_s * 1e3;
        plan.attainment = figures.attainment;
    }
    plan.link_bytes = candidate.state_bytes;
    plan.link_ms = candidate.transfer_alone_s * 1e3;
    return plan;
}

}  // namespace hetero::plan
