// A precision plan: how each layer's K and V are stored, for one model, and what was measured of it. The format of the
// file is hetero-precision(5)'s.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kv/state.h"
#include "quant/spec.h"

namespace hetero::kv {

// A text that was measured on: the state of its first tokens was quantized, the tokens after them were fed.
struct PlanText {
    std::string name;  // for people
    Digest sha256{};   // of its token ids, each as 4 little-endian bytes: those of the prompt, then those fed
    std::uint64_t prompt_tokens = 0, steps = 0;
    bool held_out = false;  // no choice was made on it
    friend bool operator==(const PlanText&, const PlanText&) = default;
};

// How far predictions were from those after the unquantized state, over all steps of some texts.
struct DriftFigures {
    std::uint64_t positions = 0;
    double kl_mean = 0, kl_max = 0;              // KL(unquantized || quantized), nats
    double dp_mean = 0, dp_p99 = 0, dp_max = 0;  // E_p: max over the vocabulary of |p - p'|
    double top1 = 1;                             // fraction of positions with the same likeliest token
    friend bool operator==(const DriftFigures&, const DriftFigures&) = default;
};

// The bound that the figures were held against.
struct PlanGate {
    double epsilon = 0;
    bool strict = false;  // the largest E_p, else its 99th percentile and the largest KL
    bool passed = false;  // on the held-out texts too, where there are any
    friend bool operator==(const PlanGate&, const PlanGate&) = default;
};

struct PrecisionPlan {
    std::string tool;  // name and version of what wrote it
    // The model it holds for: states of another one are refused.
    std::string model_name;  // for people
    Digest arch_digest{}, lineage{}, weights_digest{};
    std::uint32_t sinks = 0, window = 0;  // of layers that are quantized
    std::vector<quant::Spec> k, v;        // [n_layers]
    double bits_per_value = 0;            // of the states that were measured; scales, zeros and kept tokens counted
    std::vector<PlanText> texts;
    std::optional<DriftFigures> calibration, held_out;
    std::optional<DriftFigures> floor;  // of f16 against f32 KV, on the same texts: the noise of the path itself
    std::optional<PlanGate> gate;

    [[nodiscard]] const std::vector<quant::Spec>& specs(PartId part) const noexcept {
        return part == PartId::k ? k : v;
    }
    friend bool operator==(const PrecisionPlan&, const PrecisionPlan&) = default;
};

// `name` stands in messages, which name the line and what was expected there. Errors: bad_input (no such document,
// unknown keys, numbers out of range, codecs that do not exist), resource.
Result<PrecisionPlan> parse_precision_plan(std::string_view text, const std::string& name);
Result<PrecisionPlan> read_precision_plan(const std::string& path);
// The document. What parse_precision_plan() reads from it equals `plan`.
[[nodiscard]] std::string to_toml(const PrecisionPlan& plan);

// Whether the plan holds for states of `identity`: bad_input, naming what differs with both values, where the
// architecture, the source of the weights or the number of layers do, or a codec does not fit the heads. Other
// weights of the same source (another precision of them) pass; see same_weights().
[[nodiscard]] Status check_plan(const PrecisionPlan& plan, const std::string& plan_name, const Identity& identity);
[[nodiscard]] bool same_weights(const PrecisionPlan& plan, const Identity& identity) noexcept;

// How a part is stored; sinks and window hold for quantized codecs only, source_dtype is what the unquantized values
// have.
[[nodiscard]] Scheme scheme_from_spec(const quant::Spec& spec, std::uint32_t sinks, std::uint32_t window,
                                      DType source_dtype);

}  // namespace hetero::kv
