// Scales of ggml's quantized blocks: stored as f16, and codes are made with the reciprocal of the unrounded one.
#pragma once
#include <cmath>

#include "kernels/common/half.h"

namespace hetero::kernels {

// The nearest f16 of `value` to two bytes. False where that is infinite.
[[nodiscard]] inline bool store_ggml_scale(float value, void* out) noexcept {
    const std::uint16_t bits = f32_to_f16(value);
    std::memcpy(out, &bits, sizeof bits);
    return (bits & 0x7C00U) != 0x7C00U;
}

// 1 / scale as ggml takes it: 0 for 0. Below 2^-128 the reciprocal is infinite; such a scale is 0 in f16, so the codes
// do not matter, but they must not come from infinities.
[[nodiscard]] inline float ggml_reciprocal(float scale) noexcept {
    const float inverse = scale != 0 ? 1 / scale : 0;
    return std::isfinite(inverse) ? inverse : 0;
}

}  // namespace hetero::kernels
