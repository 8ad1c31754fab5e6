#include "quant/codec.h"

#include <algorithm>
#include <new>

#include "kernels/api/ops.h"
#include "quant/place.h"

namespace hetero::quant {
namespace {

// Calls f(range) for ranges of tokens that stay in a core's cache, cut where the codec may be cut.
template <class F>
Status for_ranges(const Codec& codec, const Params& params, const Shape& shape, F f) {
    constexpr std::uint64_t values = 8192;
    const std::uint64_t step = codec.token_step(params), row = std::uint64_t{shape.heads} * shape.head_dim;
    const std::uint64_t wanted = std::max<std::uint64_t>(1, values / std::max<std::uint64_t>(1, row));
    const std::uint64_t tokens =
        step == 0 ? std::max<std::uint64_t>(1, shape.tokens) : (wanted + step - 1) / step * step;
    for (std::uint64_t first = 0; first < shape.tokens; first += tokens)
        HETERO_CHECK(f(first, std::min(tokens, shape.tokens - first)));
    return {};
}

Shape range_of(const Shape& shape, std::uint64_t first, std::uint64_t n) {
    return {n, shape.heads, shape.head_dim, shape.first_token + first};
}

tl::unexpected<Error> no_memory(const Shape& shape) {
    return fail(Errc::resource, "out of memory: scratch for {} values", shape.elements());
}

}  // namespace

std::string Codec::formula(const Params& params) const {
    if (!quantized()) return "x = value";
    if (!has_scale() || !has_options()) return "see hetero-quant(7)";
    const char* stored = params.symmetric ? "q * scale" : "q * scale + zero";
    return params.hadamard ? fmt::format("x = R ({})", stored) : fmt::format("x = {}", stored);
}

Result<Encoded> Codec::encode(const Params& params, const Shape& shape, std::span<const float> values) const {
    HETERO_CHECK(check(params, shape.head_dim));
    if (shape.elements() != values.size()) {
        return fail(Errc::bad_input, "{} values for a shape of {} elements", values.size(), shape.elements());
    }
    Encoded encoded;
    const EncodedBytes size = bytes(params, shape);
    try {
        encoded.values.resize(size.values);
        encoded.scale.resize(size.scale);
        encoded.zero.resize(size.zero);
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory: {} bytes for an encoded part", size.total());
    }
    HETERO_CHECK(encode_into(params, shape, values, {encoded.values, encoded.scale, encoded.zero}));
    return encoded;
}

Status Codec::encode_from(const Params& params, const Shape& shape, DType type, std::span<const std::byte> values,
                          const EncodedSpans& out, float* error) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_bytes(type, shape, values.size()));
    const std::size_t row = std::size_t{shape.heads} * shape.head_dim * kernels::dtype_info(type).block_bytes;
    std::vector<float> x, back;
    return for_ranges(*this, params, shape, [&](std::uint64_t first, std::uint64_t n) -> Status {
        const Shape range = range_of(shape, first, n);
        const std::span<const std::byte> from = values.subspan(first * row, n * row);
        x.resize(range.elements());
        HETERO_CHECK(float_codec(type).decode({}, range, from, {}, {}, x));
        const EncodedRange at = encoded_range(*this, params, shape, first, n);
        const EncodedSpans to{at.values(out.values), at.scale(out.scale), at.zero(out.zero)};
        HETERO_CHECK(encode_into(params, range, x, to));
        if (error == nullptr) return {};
        back.resize(x.size());
        HETERO_CHECK(decode(params, range, to.values, to.scale, to.zero, back));
        kernels::ops().max_difference({DType::f32, x.data(), 1, x.size(), x.size()}, back.data(), error);
        return {};
    });
} catch (const std::bad_alloc&) {
    return no_memory(shape);
}

Status Codec::decode_to(const Params& params, const Shape& shape, std::span<const std::byte> values,
                        std::span<const std::byte> scale, std::span<const std::byte> zero, const FloatsOut& out,
                        float* error) const try {
    const DType type = out.type;
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_bytes(type, shape, out.bytes.size()));
    const std::size_t row = std::size_t{shape.heads} * shape.head_dim * kernels::dtype_info(type).block_bytes;
    std::vector<float> x;
    return for_ranges(*this, params, shape, [&](std::uint64_t first, std::uint64_t n) -> Status {
        const Shape range = range_of(shape, first, n);
        x.resize(range.elements());
        const EncodedRange at = encoded_range(*this, params, shape, first, n);
        HETERO_CHECK(decode(params, range, at.values(values), at.scale(scale), at.zero(zero), x));
        const std::span<std::byte> to = out.bytes.subspan(first * row, n * row);
        HETERO_CHECK(float_codec(type).encode_into({}, range, x, {to, {}, {}}));
        if (error != nullptr) kernels::ops().max_difference({type, to.data(), 1, x.size(), x.size()}, x.data(), error);
        return {};
    });
} catch (const std::bad_alloc&) {
    return no_memory(shape);
}

EncodedRange encoded_range(const Codec& codec, const Params& params, Shape shape, std::uint64_t first,
                           std::uint64_t n) {
    EncodedRange range;
    shape.tokens = n;
    range.size = codec.bytes(params, shape);
    shape.tokens = first;
    range.begin = codec.bytes(params, shape);
    if (codec.token_step(params) == 0) range.begin.scale = range.begin.zero = 0;
    return range;
}

}  // namespace hetero::quant
