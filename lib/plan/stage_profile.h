// What prefill and decode of one model took on one machine, measured at some lengths, and the coefficients that follow.
// hetero-deploy(5) describes the file.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/timing.h"

namespace hetero::plan {

struct StageProfile {
    std::string model, machine;  // for people
    double chunk_tokens = 0;     // that prefill computed at once; 0: whole prompts
    struct Prefill {
        double tokens = 0, cached_tokens = 0, seconds = 0;
    };
    struct Decode {
        double context_tokens = 0;  // of all sequences together
        double sequences = 1, step_seconds = 0;
    };
    std::vector<Prefill> prefill;
    std::vector<Decode> decode;
};

// bad_input: unknown keys (the nearest is named), numbers out of range.
Result<StageProfile> parse_stage_profile(std::string_view text, const std::string& name);
Result<StageProfile> read_stage_profile(const std::string& path);

// Seconds of prefill as a k + b (n - p) + c (n^2 - p^2) in k chunks, or a floor where short prompts show one. usage:
// fewer than two lengths.
Result<sched::PrefillTiming> fit_prefill(const StageProfile& profile);
// Seconds of a step as a + b B + c S. Where no step had more than one sequence, what one more takes is `model`'s.
Result<sched::DecodeTiming> fit_decode(const StageProfile& profile, const sched::DecodeTiming& model);

}  // namespace hetero::plan
