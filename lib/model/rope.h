// Rotary position embedding (RoFormer, https://arxiv.org/abs/2104.09864) and the ways checkpoints stretch it.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/api/ops.h"

namespace hetero::model {

enum class RopeScalingKind : std::uint8_t { none, linear, llama3, yarn };

struct RopeConfig {
    double theta = 10000;
    std::uint32_t rotary_dim = 0;  // of each head, from its start
    RopeScalingKind scaling = RopeScalingKind::none;
    double factor = 1;                                 // linear, llama3, yarn
    double low_freq_factor = 1, high_freq_factor = 4;  // llama3
    std::uint32_t original_context = 0;                // llama3, yarn; else what the file says, without effect
    double beta_fast = 32, beta_slow = 1;              // yarn: rotations within the original context
    bool whole_dims = true;                            // yarn: the range between them is widened to whole pairs
    double attention_factor = 1;                       // yarn: Q and K are multiplied by it
    std::vector<float> frequency_divisors;  // [rotary_dim / 2] where the file gives them (GGUF rope_freqs.weight)
    kernels::RopePairing pairing = kernels::RopePairing::half_split;  // of the weights' rows, not of stored K
};

// Radians per position of each pair, [rotary_dim / 2]: theta^(-2i / rotary_dim), then
//   linear: divided by factor;
//   llama3: wavelengths above original_context / low_freq_factor are stretched by factor, those below
//     original_context / high_freq_factor stay, and between them the two are blended linearly in
//     original_context / wavelength (transformers, modeling_rope_utils);
//   yarn (https://arxiv.org/abs/2309.00071): pairs that rotate more than beta_fast times within original_context stay,
//     those that rotate less than beta_slow times are stretched by factor, and between them the two are blended
//     linearly in the pair's number;
//   divisors: divided by frequency_divisors[i].
[[nodiscard]] std::vector<double> inverse_frequencies(const RopeConfig& rope);

// By how much YaRN lets attention grow with the stretch: 0.1 * scale * ln(factor) + 1, at least 1.
[[nodiscard]] double yarn_growth(double factor, double scale = 1);

// By what Llama 3's scaling divides the frequency of each pair, [rotary_dim / 2]: what a GGUF has of it.
[[nodiscard]] std::vector<float> llama3_divisors(const RopeConfig& rope);

// Divisors that are those of Llama 3's scaling, with the published low_freq_factor 1 and high_freq_factor 4 and the
// original context (8192 where the file gives none), become that scaling: a GGUF then describes the same arithmetic as
// the folder it was made of. Others stay divisors.
void recognise_llama3(RopeConfig& rope);

}  // namespace hetero::model
