#include "plan/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hetero::plan {
namespace {

// Pairs of a query and a key that a layer with a window computes, counted as n^2 is for one that sees all: twice.
double window_pairs(double n, double window) {
    if (window <= 0 || n <= window) return n * n;
    return window * window + 2 * (n - window) * window;
}

double flop_per_pair(const ModelShape& shape) {
    return static_cast<double>(shape.n_heads) * shape.prefill_pair_dims;  // 2 flop a dim; half of the square is seen
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

double prefill_flop(const ModelShape& shape, double prompt_tokens, double cached_tokens) noexcept {
    const double full = shape.n_layers - shape.sliding_layers;
    const double pairs =
        full * (prompt_tokens * prompt_tokens - cached_tokens * cached_tokens) +
        shape.sliding_layers * (window_pairs(prompt_tokens, shape.window) - window_pairs(cached_tokens, shape.window));
    return 2 * shape.token_params() * (prompt_tokens - cached_tokens) + flop_per_pair(shape) * pairs +
           2 * shape.head_params;
}

sched::PrefillTiming prefill_timing(const ModelShape& shape, const StageRates& rates, std::uint32_t tp,
                                    double typical_tokens) {
    sched::PrefillTiming timing;
    const double devices = tp;
    timing.overhead_s = rates.prefill_overhead_s + exchange_latency_s(shape, rates, tp) +
                        2 * shape.head_params / (devices * rates.product_flop_per_s);
    timing.per_token_s =
        2 * shape.token_params() / (devices * rates.product_flop_per_s) + exchange_s(shape, rates, tp, 1);
    const double pair_s = flop_per_pair(shape) / (devices * rates.attention_flop_per_s);
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

double mean_ttft_s(double service_s, double rate_per_s) noexcept {
    const double load = service_s * rate_per_s;
    if (load >= 1) return std::numeric_limits<double>::infinity();
    return service_s + load * service_s / (2 * (1 - load));
}

SteadyDecode steady_decode(const sched::DecodeTiming& timing, double context_tokens, double rate_per_s,
                           double output_tokens, double max_batch) noexcept {
    // The batch that a step of batch B would bring about is lambda o T(B). T grows with B, so the smallest fixed point
    // is found from below.
    const auto step_s = [&](double batch) {
        const auto whole = static_cast<std::size_t>(std::max(1.0, std::ceil(batch)));
        return timing.seconds(whole, std::max(1.0, batch) * context_tokens);
    };
    SteadyDecode out;
    double batch = 0;
    for (int i = 0; i < 10'000; ++i) {
        const double next = rate_per_s * output_tokens * step_s(batch);
        if (next > max_batch) {
            out.saturated = true;
            batch = max_batch;
            break;
        }
        if (std::fabs(next - batch) <= 1e-9 * std::max(1.0, next)) break;
        batch = next;
    }
    out.batch = batch;
    out.step_s = step_s(batch);
    return out;
}

double reuse_bytes_per_s(double kv_bytes, double prefill_s) noexcept { return kv_bytes / prefill_s; }

}  // namespace hetero::plan
