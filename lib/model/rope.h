// Rotary position embedding (RoFormer, https://arxiv.org/abs/2104.09864) and the ways checkpoints stretch it.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/api/ops.h"

namespace hetero::model {

enum class RopeScalingKind : std::uint8_t { none, linear, llama3 };

struct RopeConfig {
    double theta = 10000;
    std::uint32_t rotary_dim = 0;  // of each head, from its start
    RopeScalingKind scaling = RopeScalingKind::none;
    double factor = 1;                                 // linear, llama3
    double low_freq_factor = 1, high_freq_factor = 4;  // llama3
    std::uint32_t original_context = 0;                // llama3
    std::vector<float> frequency_divisors;  // [rotary_dim / 2] where the file gives them (GGUF rope_freqs.weight)
    kernels::RopePairing pairing = kernels::RopePairing::half_split;  // of the weights' rows, not of stored K
};

// Radians per position of each pair, [rotary_dim / 2]: theta^(-2i / rotary_dim), then
//   linear: divided by factor;
//   llama3: wavelengths above original_context / low_freq_factor are stretched by factor, those below
//     original_context / high_freq_factor stay, and between them the two are blended linearly in
//     original_context / wavelength (transformers, modeling_rope_utils);
//   divisors: divided by frequency_divisors[i].
[[nodiscard]] std::vector<double> inverse_frequencies(const RopeConfig& rope);

}  // namespace hetero::model
