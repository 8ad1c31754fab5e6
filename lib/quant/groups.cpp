#include "quant/groups.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/rotation.h"
#include "quant/rounding.h"
#include "quant/spec.h"

namespace hetero::quant {
namespace {

constexpr std::uint32_t max_token_group = 4096;  // a group must fit a chunk of the file format

GroupScale choose_f16(bool symmetric, int levels, float min, float max) noexcept {
    GroupScale group;
    double range = std::max(-static_cast<double>(min), static_cast<double>(max));  // >= 0: min <= max
    if (!symmetric) {
        const std::uint16_t zero = f16_round_down(min);
        group.zero = f16_value(zero);
        if (!std::isfinite(group.zero)) group.representable = false;
        range = static_cast<double>(max) - group.zero;
    }
    const std::uint16_t scale = f16_round_up(range / levels);
    group.scale = f16_value(scale);
    if (scale == f16_infinity_bits) group.representable = false;
    return group;
}

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
    return params.scale_dtype == DType::f16 ? choose_f16(params.symmetric, levels, min, max)
                                            : choose_f32(params.symmetric, levels, min, max);
}

double integer_error_bound(const Params& params, int levels, double min, double max) noexcept {
    const GroupScale group = choose_scale(params, levels, static_cast<float>(min), static_cast<float>(max));
    if (!group.representable) return std::numeric_limits<double>::infinity();
    const auto magnitude = static_cast<float>(std::max(std::fabs(min), std::fabs(max)) + std::fabs(group.zero));
    const float ulp = std::nextafter(magnitude, std::numeric_limits<float>::infinity()) - magnitude;
    return group.scale / 2.0 + 2.0 * ulp;
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
