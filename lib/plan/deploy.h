// A deployment plan: what hetero-plan decided, as a file. hetero-deploy(5) describes it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "plan/verdict.h"

namespace hetero::plan {

struct DeploymentPlan {
    std::string tool, verdict;
    std::vector<std::string> reasons;
    std::string model;  // for people
    struct Stage {
        std::string machine, dtype;
        std::uint32_t machines = 1, instances = 1, tp = 1;
        std::vector<std::string> hosts;  // which machines, where they have names of their own
        double weight_bytes = 0;         // on each device; 0: not said
        friend bool operator==(const Stage&, const Stage&) = default;
    };
    Stage prefill;
    std::optional<Stage> decode;  // none: prefill's instances have both stages
    struct More : Stage {
        std::string role;  // "prefill", "decode", "both"
        friend bool operator==(const More&, const More&) = default;
    };
    std::vector<More> more;                      // kinds of machines beside those, for one of the stages or for both
    std::string sharing;                         // of instances that have both
    std::string wire = "f16", resident = "f16";  // codecs (hetero-quant(7)), or "plan"
    std::string precision_plan;                  // a file of kv-calibrate, beside this one; empty: none
    std::string first_token = "prefill";
    std::string tier = "device";  // of the KV of cached tokens: device, host, file, none (they are computed again)
    double retained_bytes = 0, fetch_ms = 0;  // on each machine; of one prompt
    std::uint32_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
    double rate_per_s = 0;
    double ttft_p50_ms = 0, ttft_p99_ms = 0, itl_p50_ms = 0, itl_p99_ms = 0, attainment = 0;  // predicted
    double link_bytes = 0, link_ms = 0;                                                       // of one state
    friend bool operator==(const DeploymentPlan&, const DeploymentPlan&) = default;
};

// bad_input: unknown keys (the nearest is named), numbers out of range, another version.
Result<DeploymentPlan> parse_deployment_plan(std::string_view text, const std::string& name);
[[nodiscard]] std::string to_toml(const DeploymentPlan& plan);

// Of a decision that chose something.
[[nodiscard]] DeploymentPlan plan_of(const Problem& problem, const Candidate& candidate, const Decision& decision);

// A batch script of Slurm for the plan: an array of jobs, one an instance, or a heterogeneous job of an instance of
// each stage where prefill and decode are apart. A name that no shell may see is refused: usage.
Result<std::string> slurm_script(const DeploymentPlan& plan, const std::string& model_path);

}  // namespace hetero::plan
