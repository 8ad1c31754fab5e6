// How fast instances with both stages serve, calibrated from runs: from the throughput of serving systems, where what a
// step and a prompt take by themselves was not measured.
#pragma once
#include <array>
#include <span>

#include "base/result.h"

namespace hetero::plan {

// A run at a steady batch of sequences on one instance.
struct ServedRun {
    double tp = 1, batch = 1, prompt_tokens = 0, output_tokens = 1;
    double tpot_s = 0;  // mean time per output token
};

// TPOT = a + w / tp + c B + k B s / tp + p (B / o) n / tp with s = n + o / 2: overhead, reading weights, each sequence,
// reading KV, and the prefill of one prompt per lifetime of a sequence.
struct ServedTiming {
    std::array<double, 5> coefficients{};  // a, w, c, k, p
    [[nodiscard]] double tpot_s(const ServedRun& run) const noexcept;
};
// For one model, machine, precision and engine; about two dozen runs suffice. usage: see fit().
Result<ServedTiming> fit_served(std::span<const ServedRun> runs);

}  // namespace hetero::plan
