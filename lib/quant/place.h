// Checks of sizes, and messages that name a place, shared by the codecs.
#pragma once
#include <cmath>
#include <limits>

#include "quant/codec.h"

namespace hetero::quant {

// Spans against the shape and each other.
[[nodiscard]] inline Status check_sizes(const Codec& codec, const Params& params, const Shape& shape,
                                        std::size_t elements, const EncodedBytes& found) {
    std::uint64_t rows = 0, want = 0;
    if (__builtin_mul_overflow(shape.tokens, static_cast<std::uint64_t>(shape.heads), &rows) ||
        __builtin_mul_overflow(rows, static_cast<std::uint64_t>(shape.head_dim), &want) ||
        want > std::numeric_limits<std::uint64_t>::max() / 8 || want != elements) {
        return fail(Errc::bad_input, "{}: {} elements where {} tokens x {} heads x {} were expected", codec.name(),
                    elements, shape.tokens, shape.heads, shape.head_dim);
    }
    const EncodedBytes size = codec.bytes(params, shape);
    if (found.values != size.values || found.scale != size.scale || found.zero != size.zero) {
        return fail(Errc::bad_input, "{}: {} + {} + {} bytes of values, scale and zero, expected {} + {} + {}",
                    codec.name(), found.values, found.scale, found.zero, size.values, size.scale, size.zero);
    }
    return {};
}

// Bytes of the shape's values as floats of a type.
[[nodiscard]] inline Status check_bytes(DType type, const Shape& shape, std::size_t found) {
    const std::size_t size = kernels::dtype_info(type).block_bytes;
    if (found % size == 0 && found / size == shape.elements()) return {};
    return fail(Errc::bad_input, "{} bytes for {} values of {}", found, shape.elements(),
                kernels::dtype_info(type).name);
}

// "token 5, head 1, dim 7" of an element's index.
[[nodiscard]] inline std::string place_text(const Shape& shape, std::size_t index) {
    const std::size_t row = static_cast<std::size_t>(shape.heads) * shape.head_dim;
    return fmt::format("token {}, head {}, dim {}", shape.first_token + index / row, index % row / shape.head_dim,
                       index % shape.head_dim);
}

// Index of the first NaN or infinity, or values.size().
[[nodiscard]] inline std::size_t first_nonfinite(std::span<const float> values, std::size_t from = 0) noexcept {
    while (from < values.size() && std::isfinite(values[from])) ++from;
    return from;
}

[[nodiscard]] inline tl::unexpected<Error> fail_nonfinite(const Shape& shape, std::span<const float> values,
                                                          std::size_t from) {
    const std::size_t index = first_nonfinite(values, from);
    return fail(Errc::bad_input, "{}: value {} cannot be stored", place_text(shape, index), values[index]);
}

[[nodiscard]] inline Status check_no_params(const Codec& codec, const Params& params) {
    if (params == Params{}) return {};
    return fail(Errc::usage, "{} is not quantized: it takes no axis, group, zero or scale type", codec.name());
}

}  // namespace hetero::quant
