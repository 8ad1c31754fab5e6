#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/printable.h"
#include "plan/deploy.h"
#include "quant/spec.h"

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

struct Instances {
    std::uint32_t prefill, decode;
};
Instances instances_of(const DeploymentPlan& plan) {
    Instances out{plan.prefill.instances, plan.decode ? plan.decode->instances : 0};
    for (const DeploymentPlan::More& one : plan.more)
        (one.role == "decode" ? out.decode : out.prefill) += one.instances;
    return out;
}

// How many jobs share the prompts. Where the stages are apart, a job is an instance of each: as many as there are
// pairs.
std::uint32_t parts_of(const DeploymentPlan& plan) {
    const auto [prefill, decode] = instances_of(plan);
    return std::max(1U, plan.decode ? std::min(prefill, decode) : prefill);
}

// Instances that are in no pair.
std::uint32_t spare_of(const DeploymentPlan& plan) {
    const auto [prefill, decode] = instances_of(plan);
    return std::max(prefill, decode) - std::min(prefill, decode);
}

// What a plan of several instances asks for: an array, or, as there are none of heterogeneous jobs, to be submitted
// several times.
std::string array(const DeploymentPlan& plan) {
    const std::uint32_t parts = parts_of(plan);
    std::string out;
    if (plan.decode) {
        if (parts == 1 && plan.prefill.instances == 1 && plan.decode->instances == 1 && plan.more.empty()) return {};
        out = fmt::format("# The plan has {} prefill and {} decode instances", plan.prefill.instances,
                          plan.decode->instances);
        for (const DeploymentPlan::More& one : plan.more)
            out += fmt::format(", and {} of {} for {}", one.instances, printable(one.machine), one.role);
        out += fmt::format(
            "; a job is one of each, {} can run at once:\n"
            "#   for part in $(seq 0 {}); do sbatch --export=ALL,PROMPTS=prompts.jsonl,PART=$part FILE; done\n",
            parts, parts - 1);
        if (spare_of(plan) > 0)
            out += fmt::format(
                "# {} more would have no partner: they are left out, and the rate that was planned is not reached\n"
                "# (hetero-plan(1), --emit).\n",
                spare_of(plan));
        return out;
    }
    if (parts == 1) return {};
    out = fmt::format("#SBATCH --array=0-{}\n", plan.prefill.instances - 1);
    std::uint32_t first = plan.prefill.instances;
    for (const DeploymentPlan::More& one : plan.more) {
        out += fmt::format("# and on {}: sbatch --array={}-{} --constraint=FEATURE FILE\n", printable(one.machine),
                           first, first + one.instances - 1);
        first += one.instances;
    }
    return out;
}

// Of several jobs each takes every so many-th prompt.
std::string part(const DeploymentPlan& plan) {
    const std::uint32_t parts = parts_of(plan);
    if (parts == 1) return {};
    return fmt::format(
        "PART=${{PART:-${{SLURM_ARRAY_TASK_ID:-0}}}}  # of {0}: 0 to {1}\n"
        "awk -v part=\"$PART\" 'NR % {0} == part' \"$PROMPTS\" >\"prompts.$SLURM_JOB_ID.jsonl\"\n"
        "PROMPTS=prompts.$SLURM_JOB_ID.jsonl\n",
        parts, parts - 1);
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

// Otherwise the decoder makes of a state what it was before it was quantized.
Result<std::string> resident_option(const DeploymentPlan& plan) {
    if (plan.resident == "f16") return std::string();
    HETERO_TRY(const quant::Spec spec, quant::parse_spec(plan.resident));
    return fmt::format(" --kv-dtype {}", spec.codec);
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
    HETERO_TRY(const std::string resident, resident_option(plan));
    std::string out(head);
    const std::string limit = fmt::format("#SBATCH --time={}\n", time_limit(plan, timed_prompts));
    out += fmt::format("# For {} prompts one after the other, and half as much again; sbatch --time goes before it.\n",
                       timed_prompts) +
           limit;
    const std::string variables = fmt::format("MODEL={}\n", model) +
                                  (has_prefix(plan) ? std::string(prefix_variable) : std::string()) +
                                  (plan.precision_plan.empty() ? std::string() : fmt::format("PLAN={}\n", precision));
    const auto tp = [](std::uint32_t degree) { return degree > 1 ? fmt::format(" --tp {}", degree) : std::string(); };
    // Of those that are generated prefill emits the first.
    const bool prefill_emits = plan.first_token == "prefill";
    const std::uint32_t n_decode = plan.output_tokens - (prefill_emits && plan.output_tokens > 0 ? 1 : 0);
    const std::string first = "FIRST=${FIRST:-first-tokens.$SLURM_JOB_ID.json}\n";
    if (!plan.decode) {
        out += resources(plan.prefill, "compute") + array(plan) + std::string(body) + part(plan) + variables + first;
        out +=
            "# Both stages on one machine: the state goes through a file of the node.\n"
            "STATE=${TMPDIR:-/tmp}/hetero.$SLURM_JOB_ID.h5\n"
            "trap 'rm -f \"$STATE\"' EXIT\n";
        const std::uint32_t degree = plan.prefill.tp;
        const std::string run = degree > 1 ? fmt::format("mpirun --bind-to none -n {} ", degree) : std::string();
        out += fmt::format(
            "{0}hetero-prefill -m \"$MODEL\"{1} --jsonl \"$PROMPTS\"{2} --first-token {3} --json -o \"$STATE\" "
            ">\"$FIRST\" </dev/null\n"
            "{0}hetero-decode -m \"$MODEL\"{1} \"$STATE\"{4} -n {5} --json >\"$OUT\" </dev/null\n",
            run, tp(degree), prefix_option(plan), plan.first_token, resident, n_decode);
        return out;
    }
    // A heterogeneous job: rank 0 on a machine for prefill, the next on one for decode. srun with PMIx puts both into
    // one MPI_COMM_WORLD; mpirun needs the hosts by name.
    out += resources(plan.prefill, "compute") + "#SBATCH hetjob\n" + limit + resources(*plan.decode, "bandwidth") +
           array(plan) + std::string(body) + part(plan) + variables;
    const std::uint32_t decode_rank = plan.prefill.tp;
    // Both stages have one stdout: what prefill says, first tokens where it emits them, goes to a file.
    out += first;
    out += fmt::format(
        "# shellcheck disable=SC2016\n"
        "prefill=(sh -c 'exec \"$@\" >\"$0\"' \"$FIRST\"\n"
        "  hetero-prefill -m \"$MODEL\" --jsonl \"$PROMPTS\"{}{}{} --first-token {} --json -o mpi:{})\n",
        tp(plan.prefill.tp), prefix_option(plan), wire_option(plan), plan.first_token, decode_rank);
    out += fmt::format("decode=(hetero-decode -m \"$MODEL\" mpi:0{}{} -n {} --json)\n", tp(plan.decode->tp), resident,
                       n_decode);
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
