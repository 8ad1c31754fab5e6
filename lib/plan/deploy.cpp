#include "plan/deploy.h"

#include <cmath>

#include "base/printable.h"
#include "base/toml_reader.h"
#include "base/units.h"

namespace hetero::plan {
namespace {

constexpr std::uint64_t format_version = 1;
constexpr std::uint64_t max_machines = 1U << 20;

// A list of lines.
Status read_texts(const TomlReader& table, const char* key, std::vector<std::string>& out) {
    HETERO_TRY(const TomlNode* node, table.need(key));
    const auto* list = node->as<TomlNode::Array>();
    if (list == nullptr) return table.wrong_value(key, "'{}' must be a list", key);
    for (const TomlNode& item : *list) {
        const auto* line = item.as<std::string>();
        if (line == nullptr) return table.wrong_value(key, "'{}' must hold strings", key);
        out.push_back(*line);
    }
    return {};
}

// `special` is a key that this table alone has, for `how`; null: it has none.
Status read_stage(const TomlReader& table, DeploymentPlan::Stage& out, const char* special, std::string* how) {
    HETERO_CHECK(table.only({"machine", "machines", "hosts", "instances", "tp", "dtype", "weight_bytes",
                             special != nullptr ? special : "machine"}));
    HETERO_CHECK(table.text("machine", out.machine));
    out.machine = printable(out.machine, 1024);  // as profiles have it
    HETERO_CHECK(table.count("machines", out.machines, max_machines));
    HETERO_CHECK(table.count("instances", out.instances, max_machines));
    HETERO_CHECK(table.count("tp", out.tp, max_machines));
    HETERO_CHECK(table.text("dtype", out.dtype));
    if (table.has("weight_bytes")) HETERO_CHECK(table.real("weight_bytes", out.weight_bytes, 0x1p62));
    if (special != nullptr && table.has(special)) HETERO_CHECK(table.text(special, *how));
    if (table.has("hosts")) HETERO_CHECK(read_texts(table, "hosts", out.hosts));
    return {};
}

std::string stage_text(std::string_view heading, const DeploymentPlan::Stage& stage) {
    std::string out =
        fmt::format("\n{}\nmachine = {}\nmachines = {}\ninstances = {}\ntp = {}\ndtype = {}\n", heading,
                    toml_string(stage.machine), stage.machines, stage.instances, stage.tp, toml_string(stage.dtype));
    if (stage.weight_bytes > 0) out += fmt::format("weight_bytes = {}\n", toml_real(std::round(stage.weight_bytes)));
    if (stage.hosts.empty()) return out;
    out += "hosts = [";
    for (const std::string& host : stage.hosts)
        out += fmt::format("{}{}", &host == &stage.hosts.front() ? "" : ", ", toml_string(host));
    return out + "]\n";
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
                            "more", "kv", "predicted"}));
    DeploymentPlan plan;
    HETERO_CHECK(root.text("tool", plan.tool));
    HETERO_CHECK(root.text("verdict", plan.verdict));
    HETERO_CHECK(root.text("model", plan.model));
    HETERO_CHECK(read_texts(root, "reasons", plan.reasons));
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
    HETERO_CHECK(read_stage(prefill, plan.prefill, "sharing", &plan.sharing));
    if (const auto decode = root.table("decode"))
        HETERO_CHECK(read_stage(*decode, plan.decode.emplace(), nullptr, nullptr));
    if (root.has("more")) {
        HETERO_TRY(const auto entries, root.tables("more", max_machines));
        for (const TomlReader& entry : entries) {
            DeploymentPlan::More& one = plan.more.emplace_back();
            HETERO_CHECK(read_stage(entry, one, "role", &one.role));
            if (one.role != "prefill" && one.role != "decode" && one.role != "both")
                return entry.wrong_value("role", "'role' must be prefill, decode or both");
        }
    }
    HETERO_TRY(const TomlReader kv, table("kv"));
    HETERO_CHECK(kv.only({"wire", "resident", "precision_plan", "first_token", "state_bytes", "link_ms", "tier",
                          "retained_bytes", "fetch_ms"}));
    HETERO_CHECK(kv.text("wire", plan.wire));
    HETERO_CHECK(kv.text("resident", plan.resident));
    if (kv.has("precision_plan")) HETERO_CHECK(kv.text("precision_plan", plan.precision_plan));
    HETERO_CHECK(kv.text("first_token", plan.first_token));
    HETERO_CHECK(kv.real("state_bytes", plan.link_bytes));
    HETERO_CHECK(kv.real("link_ms", plan.link_ms));
    if (kv.has("tier")) {
        HETERO_CHECK(kv.text("tier", plan.tier));
        HETERO_CHECK(kv.real("retained_bytes", plan.retained_bytes));
        HETERO_CHECK(kv.real("fetch_ms", plan.fetch_ms));
    }
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
    out += stage_text("[prefill]", plan.prefill);
    if (!plan.sharing.empty()) out += fmt::format("sharing = {}\n", toml_string(plan.sharing));
    if (plan.decode) out += stage_text("[decode]", *plan.decode);
    for (const DeploymentPlan::More& one : plan.more)
        out += stage_text("[[more]]", one) + fmt::format("role = {}\n", toml_string(one.role));
    out += fmt::format("\n[kv]\nwire = {}\nresident = {}\n", toml_string(plan.wire), toml_string(plan.resident));
    if (!plan.precision_plan.empty()) out += fmt::format("precision_plan = {}\n", toml_string(plan.precision_plan));
    out += fmt::format("first_token = {}\nstate_bytes = {}\nlink_ms = {}\n", toml_string(plan.first_token),
                       toml_real(std::round(plan.link_bytes)), figure(plan.link_ms));
    out += fmt::format("tier = {}\nretained_bytes = {}\nfetch_ms = {}\n", toml_string(plan.tier),
                       toml_real(std::round(plan.retained_bytes)), figure(plan.fetch_ms));
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
        const std::uint32_t machines = (group.tp * group.instances + devices - 1) / devices;
        return DeploymentPlan::Stage{side.name, group.dtype, machines,          group.instances,
                                     group.tp,  group.hosts, group.weight_bytes};
    };
    plan.prefill = stage(candidate.groups.front());
    const Group* decode = nullptr;
    if (is_split(candidate.kind)) {
        decode = &candidate.first(sched::Role::decode);
        plan.decode = stage(*decode);
    } else {
        plan.sharing = sched::sharing_name(candidate.sharing);
    }
    for (std::size_t g = 1; g < candidate.groups.size(); ++g) {
        const Group& group = candidate.groups[g];
        if (&group == decode) continue;
        plan.more.push_back({stage(group), std::string(sched::role_name(group.role))});
    }
    if (!candidate.tier.empty()) plan.tier = candidate.tier;
    plan.retained_bytes = candidate.retained_bytes;
    for (const TierPrice& price : candidate.tiers)
        if (price.tier == candidate.tier && !candidate.computes_cached()) plan.fetch_ms = price.seconds * 1e3;
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
