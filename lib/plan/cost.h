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
// Of the prompt's tokens [p, n), 2 N_lin (n - p) + L n_q dims (n^2 - p^2) + 2 d V FLOP; layers with a window by what
// they see in prompts of about `typical_tokens`.
[[nodiscard]] sched::PrefillTiming prefill_timing(const ModelShape& shape, const StageRates& rates, std::uint32_t tp,
                                                  double typical_tokens);
// `kv_bytes_per_token`: one copy, as resident; for batches of up to `max_batch` sequences.
[[nodiscard]] sched::DecodeTiming decode_timing(const ModelShape& shape, const StageRates& rates, std::uint32_t tp,
                                                double kv_bytes_per_token, std::uint32_t max_batch);

// KV that prefill makes in `prefill_s`, in bytes/s. A link that carries as much hides the transfer behind prefill; a
// tier that gives KV back faster is worth asking before prefill is done again (Mooncake, FAST'25, eq. 2).
[[nodiscard]] double prefill_kv_bytes_per_s(double kv_bytes, double prefill_s) noexcept;

}  // namespace hetero::plan
