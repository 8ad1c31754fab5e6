#include "quant/groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/api/ops.h"
#include "quant/rotation.h"
#include "quant/spec.h"

namespace hetero::quant {
namespace {

constexpr std::uint32_t max_token_group = 4096;  // a group must fit a chunk of the file format

// Nearest; upward where the scale is subnormal, since nearest could then be far below range / levels, or 0.
GroupScale choose_f32(bool symmetric, int levels, float min, float max) noexcept {
    GroupScale group;
    float range = std::max(std::fabs(min), std::fabs(max));
    if (!symmetric) {
        group.zero = min + 0.0F;  // -0 becomes +0
        range = max - min;
    }
    group.representable = std::isfinite(range);
    const auto divisor = static_cast<float>(levels);
    float scale = range / divisor;
    if (scale < std::numeric_limits<float>::min()) {
        if (static_cast<double>(scale) * levels < range) scale = std::nextafter(scale, 1.0F);
    } else if (!std::isfinite(scale * divisor + group.zero)) {
        scale = std::nextafter(scale, 0.0F);  // the largest code must not decode to infinity
    }
    group.scale = scale;
    return group;
}

}  // namespace

GroupScale choose_scale(const Params& params, int levels, float min, float max) noexcept {
    GroupScale group;
    const float magnitude = std::max(std::fabs(min), std::fabs(max));
    group.representable = params.symmetric
                              ? choose_scales(params, levels, nullptr, &magnitude, 1, &group.scale, nullptr)
                              : choose_scales(params, levels, &min, &max, 1, &group.scale, &group.zero);
    return group;
}

bool choose_scales(const Params& params, int levels, const float* min, const float* max, std::size_t n, float* scale,
                   float* zero) noexcept {
    bool representable = true;
    if (params.scale_dtype == DType::f32) {
        for (std::size_t i = 0; i < n; ++i) {
            const GroupScale one = choose_f32(params.symmetric, levels, params.symmetric ? -max[i] : min[i], max[i]);
            representable = representable && one.representable;
            scale[i] = one.scale;
            if (!params.symmetric) zero[i] = one.zero;
        }
        return representable;
    }
    const kernels::Ops& ops = kernels::ops();
    std::array<std::uint16_t, 64> scale_bits, zero_bits;
    for (std::size_t first = 0; first < n; first += scale_bits.size()) {
        const std::size_t count = std::min(n - first, scale_bits.size());
        std::uint16_t* zeros = params.symmetric ? nullptr : zero_bits.data();
        representable = ops.group_scales(params.symmetric ? nullptr : min + first, max + first, count, levels,
                                         scale_bits.data(), zeros) &&
                        representable;
        ops.f16_to_f32(scale_bits.data(), scale + first, count);
        if (zeros != nullptr) ops.f16_to_f32(zeros, zero + first, count);
    }
    return representable;
}

double integer_error_bound(const Params& params, int levels, double min, double max) noexcept {
    const GroupScale group = choose_scale(params, levels, static_cast<float>(min), static_cast<float>(max));
    if (!group.representable) return std::numeric_limits<double>::infinity();
    const auto magnitude = static_cast<float>(std::max(std::fabs(min), std::fabs(max)) + std::fabs(group.zero));
    const float ulp = std::nextafter(magnitude, std::numeric_limits<float>::infinity()) - magnitude;
    return group.scale / 2.0 + 2.0 * ulp;
}

void store_scales(const Params& params, std::span<const float> from, std::span<std::byte> to,
                  std::size_t index) noexcept {
    to = to.subspan(index * scale_bytes(params));
    if (params.scale_dtype == DType::f32) {
        std::memcpy(to.data(), from.data(), from.size_bytes());
        return;
    }
    std::array<std::uint16_t, 256> half;
    for (std::size_t first = 0; first < from.size(); first += half.size()) {
        const std::size_t n = std::min(half.size(), from.size() - first);
        kernels::ops().f32_to_f16(from.data() + first, half.data(), n);
        std::memcpy(to.data() + 2 * first, half.data(), 2 * n);
    }
}

void load_scales(const Params& params, std::span<const std::byte> from, std::size_t index,
                 std::span<float> to) noexcept {
    from = from.subspan(index * scale_bytes(params));
    if (params.scale_dtype == DType::f32) {
        std::memcpy(to.data(), from.data(), to.size_bytes());
        return;
    }
    std::array<std::uint16_t, 256> half;
    for (std::size_t first = 0; first < to.size(); first += half.size()) {
        const std::size_t n = std::min(half.size(), to.size() - first);
        std::memcpy(half.data(), from.data() + 2 * first, 2 * n);
        kernels::ops().f16_to_f32(half.data(), to.data() + first, n);
    }
}

Status check_group_params(std::string_view codec, const Params& params, std::uint32_t head_dim) {
    if (params.scale_dtype != DType::f16 && params.scale_dtype != DType::f32) {
        return fail(Errc::usage, "{}: scales are f16 or f32, not {}", codec,
                    kernels::dtype_info(params.scale_dtype).name);
    }
    if (params.axis == Axis::token && params.group > head_dim) {
        return fail(Errc::usage,
                    "{}: group {} is larger than a head of {}; on the token axis groups are 1 to {}, and by default "
                    "the whole head",
                    codec, params.group, head_dim, head_dim);
    }
    if (params.axis == Axis::channel && (params.group == 0 || params.group > max_token_group)) {
        return fail(Errc::usage, "{}: group {} on the channel axis; groups are 1 to {} tokens there", codec,
                    params.group, max_token_group);
    }
    if ((params.axis == Axis::head || params.axis == Axis::tensor) && params.group > max_token_group) {
        return fail(Errc::usage, "{}: group {} on the {} axis; groups are 1 to {} tokens there, and by default all",
                    codec, params.group, axis_name(params.axis), max_token_group);
    }
    if (params.hadamard && rotation_size(head_dim) < 2) {
        return fail(Errc::usage, "had:{}: no power of two divides a head of {}, so that it cannot be rotated", codec,
                    head_dim);
    }
    return {};
}

}  // namespace hetero::quant
