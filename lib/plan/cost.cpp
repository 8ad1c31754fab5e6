#include "plan/cost.h"

#include <algorithm>

namespace hetero::plan {
namespace {

// Pairs of a query and a key that a layer with a window computes, counted as n^2 is for one that sees all: twice.
double window_pairs(double n, double window) {
    if (window <= 0 || n <= window) return n * n;
    return window * window + 2 * (n - window) * window;
}

// Two all-reduces a layer (https://arxiv.org/abs/1909.08053): seconds of `tokens` tokens, latency apart.
double exchange_s(const ModelShape& shape, const StageRates& rates, std::uint32_t tp, double tokens) {
    if (tp < 2) return 0;
    const double bytes = 2.0 * (tp - 1) / tp * tokens * shape.hidden * rates.activation_bytes;
    return 2.0 * shape.n_layers * bytes / rates.exchange_bytes_per_s;
}

double exchange_latency_s(const ModelShape& shape, const StageRates& rates, std::uint32_t tp) {
    return tp < 2 ? 0 : 2.0 * shape.n_layers * rates.exchange_latency_s;
}

}  // namespace

double weight_bytes(const ModelShape& shape, double bytes_per_weight) noexcept {
    return shape.stored_params * bytes_per_weight;
}

sched::PrefillTiming prefill_timing(const ModelShape& shape, const StageRates& rates, std::uint32_t tp,
                                    double typical_tokens) {
    sched::PrefillTiming timing;
    const double devices = tp;
    timing.overhead_s = rates.prefill_overhead_s + exchange_latency_s(shape, rates, tp) +
                        2 * shape.head_params / (devices * rates.product_flop_per_s);
    timing.per_token_s =
        2 * shape.token_params() / (devices * rates.product_flop_per_s) + exchange_s(shape, rates, tp, 1);
    // 2 flop a dim, half of the square is seen.
    const double flop_per_pair = static_cast<double>(shape.n_heads) * shape.prefill_pair_dims;
    const double pair_s = flop_per_pair / (devices * rates.attention_flop_per_s);
    double layers = shape.n_layers;
    if (shape.window > 0 && typical_tokens > 0) {
        const double seen = window_pairs(typical_tokens, shape.window) / (typical_tokens * typical_tokens);
        layers = layers - shape.sliding_layers + shape.sliding_layers * seen;
    }
    timing.per_pair_s = layers * pair_s;
    // A prompt touches every expert.
    timing.floor_s = shape.read_params(std::max(typical_tokens, 1.0)) * rates.bytes_per_weight /
                     (devices * rates.weight_bytes_per_s);
    return timing;
}

sched::DecodeTiming decode_timing(const ModelShape& shape, const StageRates& rates, std::uint32_t tp,
                                  double kv_bytes_per_token, std::uint32_t max_batch) {
    sched::DecodeTiming timing;
    const double devices = tp;
    timing.overhead_s = rates.step_overhead_s + exchange_latency_s(shape, rates, tp);
    timing.per_sequence_s = rates.sequence_overhead_s + exchange_s(shape, rates, tp, 1);
    // Without experts the batch does not matter.
    const std::uint32_t entries = shape.experts.count > 0 ? std::max(max_batch, 1U) : 1;
    timing.weights_s.resize(entries);
    for (std::uint32_t batch = 1; batch <= entries; ++batch) {
        timing.weights_s[batch - 1] =
            shape.read_params(batch) * rates.bytes_per_weight / (devices * rates.weight_bytes_per_s);
    }
    timing.read_per_context_token_s = kv_bytes_per_token * kv_replication(shape, tp) / (devices * rates.kv_bytes_per_s);
    timing.compute_per_sequence_s = 2 * (shape.token_params() + shape.head_params) / (devices * rates.batch_flop_per_s);
    timing.compute_per_context_token_s =
        2.0 * shape.n_layers * shape.n_heads * shape.decode_pair_dims / (devices * rates.batch_flop_per_s);
    return timing;
}

double prefill_kv_bytes_per_s(double kv_bytes, double prefill_s) noexcept { return kv_bytes / prefill_s; }

}  // namespace hetero::plan
