// The cost model: how long prefill and a step of decode take on one instance, from what its devices reach. Roofline of
// what is computed and what is read, with the rates of weights, attention and KV kept apart, plus the exchange between
// devices that share a model and fixed overheads.
#pragma once
#include <cstdint>

#include "plan/shape.h"
#include "sched/timing.h"

namespace hetero::plan {

// Of one device, as reached in this kind of work, not as a data sheet has it. All above 0; overheads 0 or more.
struct StageRates {
    double product_flop_per_s = 0;    // many tokens at once
    double batch_flop_per_s = 0;      // a step of decode
    double attention_flop_per_s = 0;  // of prompts; a multiplication and an addition are two
    double weight_bytes_per_s = 0;    // reading weights
    double kv_bytes_per_s = 0;        // reading KV in decode
    double bytes_per_weight = 0;      // in memory, while they are multiplied
    double exchange_bytes_per_s = 0;  // between the devices of an instance; not used by an instance of one
    double exchange_latency_s = 0;    // of one all-reduce
    double prefill_overhead_s = 0, step_overhead_s = 0;
    double sequence_overhead_s = 0;  // of each sequence in a step
    double activation_bytes = 2;     // of one element that is exchanged
};

// Bytes of weights on all devices of an instance together.
[[nodiscard]] double weight_bytes(const ModelShape& shape, double bytes_per_weight) noexcept;
// FLOP of the prompt's tokens [cached, prompt): 2 N_lin (n - p) + L n_q dims (n^2 - p^2) + 2 d V, layers with a window
// by what they see.
[[nodiscard]] double prefill_flop(const ModelShape& shape, double prompt_tokens, double cached_tokens) noexcept;

// For prompts of about `typical_tokens`, which decides how far windows reach.
[[nodiscard]] sched::PrefillTiming prefill_timing(const ModelShape& shape, const StageRates& rates, std::uint32_t tp,
                                                  double typical_tokens);
// `kv_bytes_per_token`: one copy, as resident; for batches of up to `max_batch` sequences.
[[nodiscard]] sched::DecodeTiming decode_timing(const ModelShape& shape, const StageRates& rates, std::uint32_t tp,
                                                double kv_bytes_per_token, std::uint32_t max_batch);

// Mean time to first token of prompts that take `service_s` each and arrive at random, `rate_per_s` of them, on one
// instance (M/D/1; DistServe, https://arxiv.org/abs/2401.09670, eq. 1). Infinite where they come faster than that.
[[nodiscard]] double mean_ttft_s(double service_s, double rate_per_s) noexcept;

// Sequences that decode at the same time where `rate_per_s` requests of `output_tokens` arrive (Little's law), on one
// instance, with the step that they then take. Where they come faster than `max_batch` sequences leave, that batch.
struct SteadyDecode {
    double batch = 0, step_s = 0;
    bool saturated = false;
};
[[nodiscard]] SteadyDecode steady_decode(const sched::DecodeTiming& timing, double context_tokens, double rate_per_s,
                                         double output_tokens, double max_batch) noexcept;

// Keeping KV of `tokens` in another tier pays where fetching it is faster than prefill: the least bandwidth in bytes/s.
// With a GPU of G FLOP/s, Mooncake (FAST'25) eq. 2: flop(p) = l (a p^2 d + b p d^2).
[[nodiscard]] double reuse_bytes_per_s(double kv_bytes, double prefill_s) noexcept;

}  // namespace hetero::plan
