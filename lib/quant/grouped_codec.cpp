#include "quant/grouped_codec.h"

#include <algorithm>
#include <new>

#include "kernels/api/ops.h"
#include "quant/place.h"
#include "quant/rotation.h"

namespace hetero::quant {
namespace {

constexpr std::size_t block = 256;  // columns worked on at once; a multiple of 32, so that packed blocks meet at bytes

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) noexcept { return a / b + (a % b != 0 ? 1 : 0); }

bool stored_ok(const GroupScale& group) noexcept {
    return group.scale >= 0 && std::isfinite(group.scale) && std::isfinite(group.zero);
}

// Tokens of a group on the axes other than token; `tokens` where all share it.
std::uint64_t group_tokens(const Params& params, std::uint64_t tokens) noexcept {
    return params.group == 0 ? std::max<std::uint64_t>(tokens, 1) : params.group;
}

}  // namespace

// A range of tokens on its way to codes. `x` is what is quantized: the values, or the rotated ones.
struct GroupedCodec::Encoder {
    const GroupedCodec& codec;
    const Params& params;
    const Shape& shape;
    std::span<const float> values, x;
    const EncodedSpans& out;
    std::vector<std::uint8_t> unpacked;  // a head's codes, where they are packed

    const kernels::Ops& ops = kernels::ops();
    const std::size_t head_dim = shape.head_dim, width = std::size_t{shape.heads} * shape.head_dim;
    const std::size_t row_bytes = codec.row_elements(params, shape.head_dim);
    const int bits = codec.bits();

    [[nodiscard]] std::uint8_t* row(std::size_t index) const {  // of (token, head)
        return reinterpret_cast<std::uint8_t*>(out.values.data()) + index * row_bytes;
    }

    void store(std::size_t index, const GroupScale& chosen) const {
        const GroupScale group = codec.stored(chosen);
        store_scale(params, out.scale, index, group.scale);
        if (!params.symmetric) store_scale(params, out.zero, index, group.zero);
    }

    // The codes of n columns from `column` on, of a multiple of the block.
    void pack(const std::uint8_t* codes, std::uint8_t* to, std::size_t column, std::size_t n) const {
        const std::size_t first = column * static_cast<std::size_t>(bits) / 8,
                          used = (n * static_cast<std::size_t>(bits) + 7) / 8;
        ops.pack_bits(bits, codes, to + first, n);
        if (column + n == head_dim) std::memset(to + first + used, 0, row_bytes - first - used);
    }

    // `from`: an index at or before the first NaN or infinity.
    [[nodiscard]] tl::unexpected<Error> fail_finite(std::size_t from) const {
        if (first_nonfinite(values, from) < values.size()) return fail_nonfinite(shape, values, from);
        return fail(Errc::bad_input, "{}: values of this head are too large to be rotated; store it as f32",
                    place_text(shape, first_nonfinite(x, from)));
    }

    // Names the largest value of a group: `rows` runs of n, `stride` apart.
    [[nodiscard]] tl::unexpected<Error> fail_scale(std::size_t begin, std::size_t n, std::size_t rows,
                                                   std::size_t stride) const {
        if (params.hadamard) {  // in the group's heads, since what is stored has no place of its own
            begin -= begin % head_dim;
            n = std::max(n, head_dim);
        }
        std::size_t worst = begin;
        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t i = 0; i < n; ++i) {
                const std::size_t index = begin + row * stride + i;
                if (std::fabs(values[index]) > std::fabs(values[worst])) worst = index;
            }
        }
        Params wide = params;
        wide.scale_dtype = DType::f32;
        const bool half = params.scale_dtype == DType::f16, remedy = half && codec.check(wide, shape.head_dim);
        return fail(Errc::bad_input, "{}: value {} needs a scale{} beyond {}; {}", place_text(shape, worst),
                    values[worst], params.symmetric ? "" : " or zero", half ? "f16" : "f32",
                    remedy ? "use f32 scales" : "store it as f32 or bf16");
    }

    // Extremes, scales and codes of a batch of heads in turn, so that no group waits for the one before.
    Status tokens() {
        const std::size_t group = token_group(params, shape.head_dim), per_head = (head_dim + group - 1) / group;
        const std::size_t heads = x.size() / head_dim, batch = std::max<std::size_t>(1, 64 / per_head);
        std::vector<GroupScale> chosen(batch * per_head);
        std::vector<float> min(chosen.size()), max(chosen.size());
        for (std::size_t first = 0; first < heads; first += batch) {
            const std::size_t end = std::min(first + batch, heads);
            std::size_t g = 0;
            for (std::size_t head = first; head < end; ++head) {
                for (std::size_t dim = 0; dim < head_dim; dim += group, ++g) {
                    const float* from = x.data() + head * head_dim + dim;
                    if (!ops.min_max(from, std::min(group, head_dim - dim), &min[g], &max[g])) {
                        return fail_finite(head * head_dim);
                    }
                }
            }
            const std::size_t found = g;
            for (g = 0; g < found; ++g) {
                chosen[g] = codec.choose(params, min[g], max[g]);
                if (!chosen[g].representable) {
                    const std::size_t head = first + g / per_head, dim = g % per_head * group;
                    return fail_scale(head * head_dim + dim, std::min(group, head_dim - dim), 1, 0);
                }
                store(first * per_head + g, chosen[g]);
            }
            g = 0;
            for (std::size_t head = first; head < end; ++head) {
                std::uint8_t* codes = bits == 8 ? row(head) : unpacked.data();
                for (std::size_t dim = 0; dim < head_dim; dim += group, ++g) {
                    codec.encode_run(params, x.data() + head * head_dim + dim, chosen[g], codes + dim,
                                     std::min(group, head_dim - dim));
                }
                if (bits != 8) pack(codes, row(head), 0, head_dim);
            }
        }
        return {};
    }

    // Groups of whole heads: of one head, or of all.
    Status heads() {
        const std::size_t run = params.axis == Axis::head ? head_dim : width;
        const std::uint64_t step = group_tokens(params, shape.tokens);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += step) {
            const std::size_t rows = std::min(step, shape.tokens - token);
            for (std::size_t column = 0; column < width; column += run, ++index) {
                const std::size_t begin = token * width + column;
                float lowest = x[begin], highest = x[begin];
                for (std::size_t r = 0; r < rows; ++r) {
                    float min = 0, max = 0;
                    if (!ops.min_max(x.data() + begin + r * width, run, &min, &max)) return fail_finite(token * width);
                    lowest = std::min(lowest, min);
                    highest = std::max(highest, max);
                }
                const GroupScale chosen = codec.choose(params, lowest, highest);
                if (!chosen.representable) return fail_scale(begin, run, rows, width);
                store(index, chosen);
                for (std::size_t r = 0; r < rows; ++r) {
                    for (std::size_t dim = 0; dim < run; dim += head_dim) {
                        const std::size_t at = begin + r * width + dim;
                        std::uint8_t* codes = bits == 8 ? row(at / head_dim) : unpacked.data();
                        codec.encode_run(params, x.data() + at, chosen, codes, head_dim);
                        if (bits != 8) pack(codes, row(at / head_dim), 0, head_dim);
                    }
                }
            }
        }
        return {};
    }

    // Channels of a token group, side by side, so that memory is read in order.
    Status channels() {
        const Range range = codec.range(params);
        std::array<float, block> min, max, scale, zero{};
        std::array<std::uint8_t, block> codes;
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += params.group) {
            const std::size_t rows = std::min<std::uint64_t>(params.group, shape.tokens - token);
            for (std::size_t head = 0; head < shape.heads; ++head) {
                for (std::size_t column = 0; column < head_dim; column += block) {
                    const std::size_t n = std::min(block, head_dim - column);
                    const std::size_t begin = token * width + head * head_dim + column;
                    if (!ops.min_max_columns(x.data() + begin, rows, width, n, min.data(), max.data())) {
                        return fail_finite(token * width);
                    }
                    for (std::size_t c = 0; c < n; ++c, ++index) {
                        const GroupScale chosen = codec.choose(params, min[c], max[c]);
                        if (!chosen.representable) return fail_scale(begin + c, 1, rows, width);
                        store(index, chosen);
                        scale[c] = chosen.scale;
                        zero[c] = chosen.zero;
                    }
                    for (std::size_t r = 0; r < rows; ++r) {
                        const float* from = x.data() + begin + r * width;
                        std::uint8_t* to = row((token + r) * shape.heads + head);
                        std::uint8_t* q = bits == 8 ? to + column : codes.data();
                        ops.quantize_columns(from, scale.data(), zero.data(), range.low, range.high, q, n);
                        if (bits != 8) pack(q, to, column, n);
                    }
                }
            }
        }
        return {};
    }
};

struct GroupedCodec::Decoder {
    const GroupedCodec& codec;
    const Params& params;
    const Shape& shape;
    std::span<const std::byte> values, scale, zero;
    std::span<float> out;
    std::vector<std::uint8_t> unpacked;

    const kernels::Ops& ops = kernels::ops();
    const std::size_t head_dim = shape.head_dim, width = std::size_t{shape.heads} * shape.head_dim;
    const std::size_t row_bytes = codec.row_elements(params, shape.head_dim);
    const int bits = codec.bits();
    const bool is_signed = codec.range(params).low < 0;

    // The codes of n columns from `column` on, a byte each, of (token, head) `index`.
    const std::uint8_t* codes(std::size_t index, std::size_t column, std::size_t n, std::uint8_t* buffer) const {
        const auto* from = reinterpret_cast<const std::uint8_t*>(values.data()) + index * row_bytes;
        if (bits == 8) return from + column;
        ops.unpack_bits(bits, is_signed, from + column * static_cast<std::size_t>(bits) / 8, buffer, n);
        return buffer;
    }

    [[nodiscard]] GroupScale group(std::size_t index) const {
        return {load_scale(params, scale, index), params.symmetric ? 0 : load_scale(params, zero, index), true};
    }

    [[nodiscard]] tl::unexpected<Error> fail_stored(std::size_t element, const GroupScale& group) const {
        return fail(Errc::bad_input, "{}: stored scale {}, zero {}: a scale is finite and not negative, a zero finite",
                    place_text(shape, element), group.scale, group.zero);
    }

    // Token, head and tensor axes: a head of one token has one scale, or one for each run of `length`.
    Status rows() {
        const std::size_t length = params.axis == Axis::token ? token_group(params, shape.head_dim) : head_dim;
        const std::uint64_t step = group_tokens(params, shape.tokens);
        std::size_t index = 0;
        for (std::size_t head = 0; head * head_dim < out.size(); ++head) {
            if (params.axis == Axis::head) index = head / shape.heads / step * shape.heads + head % shape.heads;
            if (params.axis == Axis::tensor) index = head / shape.heads / step;
            const std::uint8_t* q = codes(head, 0, head_dim, unpacked.data());
            for (std::size_t dim = 0; dim < head_dim; dim += length, ++index) {
                const GroupScale stored = group(index);
                if (!stored_ok(stored)) return fail_stored(head * head_dim + dim, stored);
                codec.decode_run(params, q + dim, stored, out.data() + head * head_dim + dim,
                                 std::min(length, head_dim - dim));
            }
        }
        return {};
    }

    Status channels() {
        std::array<float, block> scales, zeros{};
        std::array<std::uint8_t, block> buffer;
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += params.group) {
            const std::size_t rows = std::min<std::uint64_t>(params.group, shape.tokens - token);
            for (std::size_t head = 0; head < shape.heads; ++head) {
                for (std::size_t column = 0; column < head_dim; column += block) {
                    const std::size_t n = std::min(block, head_dim - column);
                    const std::size_t begin = token * width + head * head_dim + column;
                    for (std::size_t c = 0; c < n; ++c, ++index) {
                        const GroupScale stored = group(index);
                        if (!stored_ok(stored)) return fail_stored(begin + c, stored);
                        scales[c] = stored.scale;
                        zeros[c] = stored.zero;
                    }
                    for (std::size_t r = 0; r < rows; ++r) {
                        const std::uint8_t* q = codes((token + r) * shape.heads + head, column, n, buffer.data());
                        ops.dequantize_columns(q, is_signed, scales.data(), zeros.data(),
                                               out.data() + begin + r * width, n);
                    }
                }
            }
        }
        return {};
    }
};

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

Status GroupedCodec::encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                                 const EncodedSpans& out) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(
        check_sizes(*this, params, shape, values.size(), {out.values.size(), out.scale.size(), out.zero.size()}));
    std::vector<float> rotated(params.hadamard ? values.size() : 0);
    if (params.hadamard) rotate(values, rotated, shape.head_dim);
    Encoder encoder{*this,
                    params,
                    shape,
                    values,
                    params.hadamard ? std::span<const float>(rotated) : values,
                    out,
                    std::vector<std::uint8_t>(bits() == 8 ? 0 : shape.head_dim)};
    if (params.axis == Axis::token) return encoder.tokens();
    return params.axis == Axis::channel ? encoder.channels() : encoder.heads();
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} values", values.size());
}

Status GroupedCodec::decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                            std::span<const std::byte> scale, std::span<const std::byte> zero,
                            std::span<float> out) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
    Decoder decoder{*this, params, shape, values,
                    scale, zero,   out,   std::vector<std::uint8_t>(bits() == 8 ? 0 : shape.head_dim)};
    HETERO_CHECK(params.axis == Axis::channel ? decoder.channels() : decoder.rows());
    if (params.hadamard) rotate(out, out, shape.head_dim);
    return {};
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for a head of {}", shape.head_dim);
}

}  // namespace hetero::quant
