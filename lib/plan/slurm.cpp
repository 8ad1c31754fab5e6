#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/printable.h"
#include "plan/deploy.h"

namespace hetero::plan {
namespace {

// In single quotes, for a shell.
Result<std::string> quoted(const std::string& text) {
    if (std::any_of(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\0' || c == '\r'; }))
        return fail(Errc::usage, "a name with a line break cannot be put into a script");
    std::string out = "'";
    for (const char c : text) {
        if (c == '\'') {
            out += "'\\''";
        } else {
            out += c;
        }
    }
    return out + "'";
}

// D-HH:MM:SS, of so many prompts one after the other and half as much again; whole minutes, at least ten.
std::string time_limit(const DeploymentPlan& plan, double prompts) {
    const double request_ms = plan.ttft_p50_ms + plan.itl_p50_ms * plan.output_tokens + plan.link_ms;
    const double wanted = std::ceil(1.5 * prompts * request_ms / 60e3);
    const auto minutes = static_cast<std::uint64_t>(std::clamp(wanted, 10.0, 30.0 * 24 * 60));
    return fmt::format("{}-{:02}:{:02}:00", minutes / (24 * 60), minutes / 60 % 24, minutes % 60);
}

// Machines of other kinds that take part.
std::string more(const DeploymentPlan& plan) {
    std::string out;
    for (const DeploymentPlan::More& one : plan.more)
        out += fmt::format("# The plan also has {} of {} for {}: {}.\n", one.instances, printable(one.machine),
                           one.role == "both" ? "both stages" : one.role,
                           one.role == "both" ? "submit this with their --constraint as well"
                                              : "change the feature of that stage for as many jobs");
    return out;
}

// The machines that the plan chose, for their links.
std::string hosts(const DeploymentPlan::Stage& stage) {
    const bool plain = std::all_of(stage.hosts.begin(), stage.hosts.end(), [](const std::string& host) {
        return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
            return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
        });
    });
    if (stage.hosts.empty() || !plain) return {};
    return fmt::format("# chosen for their links: --nodelist={}\n", fmt::join(stage.hosts, ","));
}

// Of one instance. Whole nodes: rates were measured on all of their processors, and a task has one by default.
std::string resources(const DeploymentPlan::Stage& stage, std::string_view feature) {
    return fmt::format("#SBATCH --nodes={}\n#SBATCH --ntasks={}\n#SBATCH --exclusive\n#SBATCH --constraint={}\n{}",
                       (stage.machines + stage.instances - 1) / std::max(stage.instances, 1U), stage.tp, feature,
                       hosts(stage));
}

// What a plan of several instances asks for beside this job.
std::string others(const DeploymentPlan& plan) {
    if (plan.prefill.instances == 1 && (!plan.decode || plan.decode->instances == 1)) return more(plan);
    const std::string count =
        plan.decode ? fmt::format("{} prefill and {} decode instances", plan.prefill.instances, plan.decode->instances)
                    : fmt::format("{} instances", plan.prefill.instances);
    return fmt::format(
        "# The plan has {}; this job is one{}: submit as many, each with a\n"
        "# part of the prompts (sbatch --array).\n{}",
        count, plan.decode ? " of each" : "", more(plan));
}

// A prompt's common beginning, whose KV is at hand.
bool has_prefix(const DeploymentPlan& plan) { return plan.cached_tokens > 0 && plan.tier != "none"; }

std::string_view prefix_option(const DeploymentPlan& plan) {
    return has_prefix(plan) ? " ${PREFIX:+--prefix \"$PREFIX\"}" : "";
}

std::string wire_option(const DeploymentPlan& plan) {
    if (!plan.precision_plan.empty()) return " --plan \"$PLAN\"";
    return plan.wire == "f16" ? "" : fmt::format(" --wire-dtype {}", plan.wire);
}

constexpr double timed_prompts = 1000;

constexpr std::string_view head =
    "#!/bin/bash\n"
    "# Made by hetero-plan. Submit with prompts: sbatch --export=ALL,PROMPTS=prompts.jsonl FILE\n"
    "# The features (--constraint) are names to replace by those of the cluster's nodes: scontrol show node.\n"
    "#SBATCH --job-name=hetero\n"
    "#SBATCH --open-mode=append\n"
    "#SBATCH --signal=B:USR1@30\n";

constexpr std::string_view body =
    "set -euo pipefail\n"
    ": \"${PROMPTS:?a file of prompts, one JSON object a line}\"\n"
    "OUT=${OUT:-results.$SLURM_JOB_ID.json}\n";

constexpr std::string_view prefix_variable =
    "PREFIX=${PREFIX:-}  # the state of what all prompts begin with (hetero-prefill)\n";

}  // namespace

Result<std::string> slurm_script(const DeploymentPlan& plan, const std::string& model_path) {
    HETERO_TRY(const std::string model, quoted(model_path));
    HETERO_TRY(const std::string precision, quoted(plan.precision_plan));
    std::string out(head);
    const std::string limit = fmt::format("#SBATCH --time={}\n", time_limit(plan, timed_prompts));
    out += fmt::format("# For {} prompts one after the other, and half as much again; sbatch --time goes before it.\n",
                       timed_prompts) +
           limit;
    const std::string variables = fmt::format("MODEL={}\n", model) +
                                  (has_prefix(plan) ? std::string(prefix_variable) : std::string()) +
                                  (plan.precision_plan.empty() ? std::string() : fmt::format("PLAN={}\n", precision));
    if (!plan.decode) {
        out += resources(plan.prefill, "compute") + others(plan) + std::string(body) + variables;
        out +=
            "# Both stages on one machine: the state goes through a file of the node.\n"
            "STATE=${TMPDIR:-/tmp}/hetero.$SLURM_JOB_ID.h5\n"
            "trap 'rm -f \"$STATE\"' EXIT\n"
            "hetero-prefill -m \"$MODEL\" --jsonl \"$PROMPTS\"";
        out += prefix_option(plan);
        out +=
            " -o \"$STATE\"\n"
            "hetero-decode -m \"$MODEL\" \"$STATE\" ";
        out += fmt::format("-n {} --json >\"$OUT\"\n", plan.output_tokens);
        return out;
    }
    // A heterogeneous job: rank 0 on a machine for prefill, the next on one for decode. srun with PMIx puts both into
    // one MPI_COMM_WORLD; mpirun needs the hosts by name.
    out += resources(plan.prefill, "compute") + "#SBATCH hetjob\n" + limit + resources(*plan.decode, "bandwidth") +
           others(plan) + std::string(body) + variables;
    const std::uint32_t decode_rank = plan.prefill.tp;
    const auto tp = [](std::uint32_t degree) { return degree > 1 ? fmt::format(" --tp {}", degree) : std::string(); };
    // Both stages have one stdout: what prefill says, first tokens where it emits them, goes to a file.
    out += "FIRST=${FIRST:-first-tokens.$SLURM_JOB_ID.json}\n";
    out += fmt::format(
        "# shellcheck disable=SC2016\n"
        "prefill=(sh -c 'exec \"$@\" >\"$0\"' \"$FIRST\"\n"
        "  hetero-prefill -m \"$MODEL\" --jsonl \"$PROMPTS\"{}{}{} --first-token {} --json -o mpi:{})\n",
        tp(plan.prefill.tp), prefix_option(plan), wire_option(plan), plan.first_token, decode_rank);
    out += fmt::format("decode=(hetero-decode -m \"$MODEL\" mpi:0{} -n {} --json)\n", tp(plan.decode->tp),
                       plan.output_tokens);
    out += fmt::format(
        "if [[ $(srun --mpi=list 2>&1) == *pmix* ]]; then\n"
        "  srun --mpi=pmix --cpu-bind=none --het-group=0 --ntasks={0} \"${{prefill[@]}}\" : \\\n"
        "       --cpu-bind=none --het-group=1 --ntasks={1} \"${{decode[@]}}\" >\"$OUT\" </dev/null\n"
        "else\n"
        "  p=$(scontrol show hostnames \"$SLURM_JOB_NODELIST_HET_GROUP_0\" | paste -sd, -)\n"
        "  d=$(scontrol show hostnames \"$SLURM_JOB_NODELIST_HET_GROUP_1\" | paste -sd, -)\n"
        "  mpirun --oversubscribe --bind-to none --host \"$p\" -n {0} \"${{prefill[@]}}\" : \\\n"
        "         --host \"$d\" -n {1} \"${{decode[@]}}\" >\"$OUT\" </dev/null\n"
        "fi\n",
        plan.prefill.tp, plan.decode->tp);
    return out;
}

}  // namespace hetero::plan
