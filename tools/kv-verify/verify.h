// The job of kv-verify: one state is whole, or two are near enough to each other.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoints.h"
#include "common/models.h"
#include "common/tool.h"
#include "kv/compare.h"
#include "verify/measure.h"

namespace hetero::tool {

struct VerifyOptions {
    std::string a, b;
    std::vector<std::string> sequences;  // empty: all
    std::optional<double> epsilon;
    std::string metric, gate;  // empty: as the comparison asks for
    bool strict = false, allow_equal_nan = false;
    ModelOptions model;
    std::uint64_t steps = 64;
    std::string text;
    std::string floor = "off";
    TransferOptions transfer;
};

Status run_verify(Tool& tool, const VerifyOptions& options);

// Drift between two states while the same tokens are fed after both.
struct Drift {
    std::vector<verify::Step> steps;  // of all sequences
    double max_abs_dp = 0, p99_abs_dp = 0, kl_mean = 0, kl_max = 0, max_abs_dlogit = 0, top1 = 1;
    std::string worst_sequence;
    std::size_t worst_step = 0;  // within the sequence, from 0
    engine::TokenId worst_token = -1;
};
Result<Drift> states_drift(const LoadedModel& loaded, const VerifyOptions& options, const kv::State& a,
                           const kv::State& b);
// What fp16 KV alone costs: the drift between fp32 and fp16 caches computed from the token ids of `state`.
Result<Drift> noise_floor(const LoadedModel& loaded, const VerifyOptions& options, const kv::State& state);

// The value that a gate looks at: 99th percentile, or the maximum, which stands in for it below 256 values.
struct Gate {
    std::string name;  // "p99" or "max"
    bool max_stands_in = false;
    double value = 0;
};
[[nodiscard]] Gate apply_gate(const std::string& gate, std::uint64_t n, double p99, double max);

// Reports, as JSON and as text.
[[nodiscard]] std::string to_text(const kv::Location& place);
[[nodiscard]] Json to_json(const kv::Comparison& comparison);
[[nodiscard]] std::string to_text(const kv::Comparison& comparison, bool per_layer);
void add_to_report(Json& report, const std::optional<Drift>& drift);  // null where none was measured
[[nodiscard]] std::string to_text(const Drift& drift);

}  // namespace hetero::tool
