#include "quant/grouped_codec.h"

#include "quant/grouped_blocks.h"

namespace hetero::quant {

std::uint64_t GroupedCodec::row_elements(const Params&, std::uint32_t head_dim) const noexcept {
    const auto width = static_cast<std::uint64_t>(bits());
    if (width == 8) return head_dim;
    return width == 4 ? ceil_div(head_dim, 2) : 4 * ceil_div(head_dim * width, 32);
}

Status GroupedCodec::check(const Params& params, std::uint32_t head_dim) const {
    return check_group_params(name(), params, head_dim);
}

std::uint64_t GroupedCodec::groups(const Params& params, const Shape& shape) const noexcept {
    if (params.axis == Axis::token) {
        const std::uint64_t group = token_group(params, shape.head_dim);
        return group == 0 ? 0 : ceil_div(shape.head_dim, group);
    }
    return ceil_div(shape.tokens, group_tokens(params, shape.tokens));
}

std::array<std::uint64_t, 3> GroupedCodec::scale_shape(const Params& params, const Shape& shape) const noexcept {
    const std::uint64_t n = groups(params, shape);
    switch (params.axis) {
        case Axis::token:
            return {shape.tokens, shape.heads, n};
        case Axis::channel:
            return {n, shape.heads, shape.head_dim};
        case Axis::head:
            return {n, shape.heads, 1};
        default:
            return {n, 1, 1};
    }
}

std::uint64_t GroupedCodec::token_step(const Params& params) const noexcept {
    return params.axis == Axis::token ? 1 : params.group;
}

EncodedBytes GroupedCodec::bytes(const Params& params, const Shape& shape) const noexcept {
    const auto extents = scale_shape(params, shape);
    const std::uint64_t scale = extents[0] * extents[1] * extents[2] * scale_bytes(params);
    return {shape.tokens * shape.heads * row_elements(params, shape.head_dim), scale, params.symmetric ? 0 : scale};
}

}  // namespace hetero::quant
