#include "quant/transcode.h"

#include <algorithm>
#include <new>
#include <numeric>

namespace hetero::quant {
namespace {

constexpr std::uint64_t tile_values = 4 * 1024;  // 16 KiB of f32, beside what is read and written

Result<const Codec*> codec_of(const Spec& spec, const Shape& shape) {
    const Codec* codec = find_codec(spec.codec);
    if (codec == nullptr) return fail(Errc::usage, "unknown codec '{}': there are {}", spec.codec, codec_names());
    HETERO_CHECK(codec->check(spec.params, shape.head_dim));
    return codec;
}

// Where a range of tokens lies in the encoding of all, and its size; `first` is a multiple of token_step().
struct Place {
    EncodedBytes at, size;
    Place(const Codec& codec, const Params& params, Shape range, std::uint64_t first)
        : size(codec.bytes(params, range)) {
        range.tokens = first;
        at = codec.bytes(params, range);
    }
    template <class Span>
    [[nodiscard]] Span values(Span all) const {
        return all.subspan(at.values, size.values);
    }
    template <class Span>
    [[nodiscard]] Span scale(Span all) const {
        return all.subspan(at.scale, size.scale);
    }
    template <class Span>
    [[nodiscard]] Span zero(Span all) const {
        return all.subspan(at.zero, size.zero);
    }
};

Status check_bytes(const Codec& codec, const Params& params, const Shape& shape, const EncodedBytes& found) {
    const EncodedBytes size = codec.bytes(params, shape);
    if (size.values == found.values && size.scale == found.scale && size.zero == found.zero) return {};
    return fail(Errc::bad_input, "{}: {} + {} + {} bytes of values, scale and zero, expected {} + {} + {}",
                codec.name(), found.values, found.scale, found.zero, size.values, size.scale, size.zero);
}

// Tokens of a tile: whole groups of both codecs; 0: all at once.
std::uint64_t tile_tokens(const Codec& a, const Params& a_params, const Codec& b, const Params& b_params,
                          const Shape& shape) {
    const std::uint64_t a_step = a.token_step(a_params), b_step = b.token_step(b_params);
    if (a_step == 0 || b_step == 0) return 0;
    const std::uint64_t step = std::lcm(a_step, b_step);
    const std::uint64_t row = std::max<std::uint64_t>(1, std::uint64_t{shape.heads} * shape.head_dim);
    const std::uint64_t wanted = std::max<std::uint64_t>(1, tile_values / row);
    return std::max<std::uint64_t>(1, wanted / step) * step;
}

}  // namespace

Status transcode(const Spec& from, const EncodedView& in, const Spec& to, const EncodedSpans& out, const Shape& shape,
                 Scratch& scratch) try {
    HETERO_TRY(const Codec* source, codec_of(from, shape));
    HETERO_TRY(const Codec* target, codec_of(to, shape));
    HETERO_CHECK(check_bytes(*source, from.params, shape, {in.values.size(), in.scale.size(), in.zero.size()}));
    HETERO_CHECK(check_bytes(*target, to.params, shape, {out.values.size(), out.scale.size(), out.zero.size()}));
    const std::uint64_t step = tile_tokens(*source, from.params, *target, to.params, shape);
    const std::uint64_t length = step == 0 ? shape.tokens : step;
    for (std::uint64_t first = 0; first < shape.tokens; first += length) {
        Shape range = shape;
        range.tokens = std::min(length, shape.tokens - first);
        range.first_token += first;
        scratch.values.resize(range.elements());
        const Place source_place(*source, from.params, range, first), target_place(*target, to.params, range, first);
        HETERO_CHECK(source->decode(from.params, range, source_place.values(in.values), source_place.scale(in.scale),
                                    source_place.zero(in.zero), scratch.values));
        HETERO_CHECK(target->encode_into(
            to.params, range, scratch.values,
            {target_place.values(out.values), target_place.scale(out.scale), target_place.zero(out.zero)}));
    }
    return {};
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} values", shape.elements());
}

}  // namespace hetero::quant
