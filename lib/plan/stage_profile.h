// What prefill and decode of one model took on one machine, measured at some lengths, and the coefficients that follow.
// hetero-deploy(5) describes the file.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "hw/profile.h"
#include "sched/timing.h"

namespace hetero::plan {

using StageProfile = hw::StageTimes;

// bad_input: unknown keys (the nearest is named), numbers out of range.
Result<StageProfile> parse_stage_profile(std::string_view text, const std::string& name);
Result<StageProfile> read_stage_profile(const std::string& path);

// Seconds of prefill as a k + b (n - p) + c (n^2 - p^2) in k chunks, or a floor where short prompts show one. usage:
// fewer than two lengths.
Result<sched::PrefillTiming> fit_prefill(const StageProfile& profile);
// Seconds of a step as a + b B + c S. Where no step had more than one sequence, what one more takes is `model`'s.
Result<sched::DecodeTiming> fit_decode(const StageProfile& profile, const sched::DecodeTiming& model);

}  // namespace hetero::plan
