// Scale and zero of a group, shared by the integer codecs: x = q * scale + zero with q in [-levels, levels] (symmetric)
// or [0, levels]. The rules are those of hetero-quant(7).
#pragma once
#include <cstdint>

#include "quant/codec.h"

namespace hetero::quant {

struct GroupScale {
    float scale = 0, zero = 0;  // as stored: f16 values where the scale type is f16
    bool representable = true;  // false: scale or zero are beyond the type
};

// From the extremes of a group (finite, min <= max). Zero range gives scale 0.
[[nodiscard]] GroupScale choose_scale(const Params& params, int levels, float min, float max) noexcept;

// The same of n groups; `min` is null where symmetric: `max` is the largest magnitude then. False where some cannot be
// represented.
[[nodiscard]] bool choose_scales(const Params& params, int levels, const float* min, const float* max, std::size_t n,
                                 float* scale, float* zero) noexcept;

// scale / 2 + 2 ulp(|x| + |zero|) for the group's largest |x|; infinity where the scale is not representable.
[[nodiscard]] double integer_error_bound(const Params& params, int levels, double min, double max) noexcept;

// Group length on the token axis: params.group, or the whole head.
[[nodiscard]] inline std::uint32_t token_group(const Params& params, std::uint32_t head_dim) noexcept {
    return params.group == 0 ? head_dim : params.group;
}

[[nodiscard]] inline std::size_t scale_bytes(const Params& params) noexcept {
    return params.scale_dtype == DType::f16 ? 2 : 4;
}

// Scales, or zeros, to and from an array of params.scale_dtype, which may lie at any address: the `index`-th and on.
// They are values of that type already.
void store_scales(const Params& params, std::span<const float> from, std::span<std::byte> to,
                  std::size_t index) noexcept;
void load_scales(const Params& params, std::span<const std::byte> from, std::size_t index,
                 std::span<float> to) noexcept;

// Axis, group, rotation and scale type that a codec with groups takes.
[[nodiscard]] Status check_group_params(std::string_view codec, const Params& params, std::uint32_t head_dim);

}  // namespace hetero::quant
