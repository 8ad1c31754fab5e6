// wf2 to wf6, wf8 and wf9: integer codes of N bits on average, more for channels with a wide range and fewer for narrow
// ones, so that all channels of a head err alike: reverse water-filling (Cover and Thomas, Elements of Information
// Theory, 10.3.3). A group is a channel over some tokens, as on the channel axis of the integer codecs. What is stored
// in place of a scale is the range of the group; reader and writer find the widths from the ranges, so that they cost
// nothing. hetero-quant(7) has the rules.
#include <algorithm>
#include <new>

#include "quant/grouped_blocks.h"
#include "quant/place.h"

namespace hetero::quant {
namespace {

using kernels::KvOutput;
using kernels::KvValues;

constexpr std::uint32_t usual_group = 32;

std::uint32_t group_of(const Params& params) noexcept { return params.group == 0 ? usual_group : params.group; }

// Of the channels of all heads over one group of tokens; `range` is what is stored in place of a scale.
struct Channels {
    explicit Channels(std::size_t n) : min(n), max(n), range(n), zero(n), step(n), width(n) {}
    std::vector<float> min, max, range, zero, step;
    std::vector<std::uint8_t> width;

    // From the ranges.
    void fill(const Shape& shape, int mean_width) {
        for (std::size_t c = 0; c < range.size(); c += shape.head_dim)
            kernels::ops().fill_widths(&range[c], shape.head_dim, mean_width, &width[c], &step[c]);
    }
};

// The channels of one head in the values of a group of tokens.
template <class Values>
Values head_of(DType type, const Shape& shape, decltype(Values::data) values, std::size_t tokens, std::size_t head) {
    return part_of(Values{type, values, tokens, std::size_t{shape.heads} * shape.head_dim, 0}, head * shape.head_dim,
                   shape.head_dim);
}

template <int MeanWidth>
class WaterFilled final : public Codec {
public:
    [[nodiscard]] std::string_view name() const noexcept override {
        static constexpr char text[] = {'w', 'f', '0' + MeanWidth};
        return {text, sizeof text};
    }
    [[nodiscard]] DType value_dtype(const Params&) const noexcept override { return DType::u8; }
    [[nodiscard]] std::uint64_t row_elements(const Params&, std::uint32_t head_dim) const noexcept override {
        return 4 * ceil_div(std::uint64_t{head_dim} * MeanWidth, 32);
    }
    [[nodiscard]] bool has_scale() const noexcept override { return true; }
    [[nodiscard]] Params default_params() const noexcept override {
        return {Axis::channel, 0, false, DType::f16, false};
    }
    [[nodiscard]] std::string formula(const Params&) const override {
        return "x = q * range / (2^width - 1) + zero, ranges in place of scales: see hetero-quant(7)";
    }
    [[nodiscard]] Status check(const Params& params, std::uint32_t head_dim) const override {
        if (params.axis != Axis::channel || params.symmetric || params.scale_dtype != DType::f16 || params.hadamard) {
            return fail(Errc::usage,
                        "{} stores channels with a zero and f16 ranges, and is not rotated: {}:channel:g32:asym",
                        name(), name());
        }
        Params filled = params;
        filled.group = group_of(params);
        return check_group_params(name(), filled, head_dim);
    }
    [[nodiscard]] std::uint64_t groups(const Params& params, const Shape& shape) const noexcept override {
        return ceil_div(shape.tokens, group_of(params));
    }
    [[nodiscard]] std::array<std::uint64_t, 3> scale_shape(const Params& params,
                                                           const Shape& shape) const noexcept override {
        return {groups(params, shape), shape.heads, shape.head_dim};
    }
    [[nodiscard]] std::uint64_t token_step(const Params& params) const noexcept override { return group_of(params); }
    [[nodiscard]] EncodedBytes bytes(const Params& params, const Shape& shape) const noexcept override {
        const std::uint64_t scale = groups(params, shape) * shape.heads * shape.head_dim * 2;
        return {shape.tokens * shape.heads * row_elements(params, shape.head_dim), scale, scale};
    }
    // Of a channel that won no bit: the others of its head decide.
    [[nodiscard]] double error_bound(const Params& params, double min, double max) const noexcept override {
        return integer_error_bound(params, 1, min, max);
    }

    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override {
        return encode_from(params, shape, DType::f32, std::as_bytes(values), out, nullptr);
    }

    Status encode_from(const Params& params, const Shape& shape, DType type, std::span<const std::byte> values,
                       const EncodedSpans& out, float* error) const override try {
        HETERO_CHECK(check(params, shape.head_dim));
        const std::size_t value_bytes = kernels::dtype_info(type).block_bytes;
        HETERO_CHECK(check_sizes(*this, params, shape, values.size() / value_bytes,
                                 {out.values.size(), out.scale.size(), out.zero.size()}));
        HETERO_CHECK(check_bytes(type, shape, values.size()));
        const std::size_t head_dim = shape.head_dim, width = std::size_t{shape.heads} * head_dim,
                          row_bytes = row_elements(params, shape.head_dim);
        if (shape.elements() == 0) return {};
        const kernels::Ops& ops = kernels::ops();
        Channels channels(width);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += group_of(params), index += width) {
            const std::size_t tokens = std::min<std::uint64_t>(group_of(params), shape.tokens - token);
            const std::byte* x = values.data() + token * width * value_bytes;
            if (!ops.min_max_columns({type, x, tokens, width, width}, channels.min.data(), channels.max.data())) {
                return fail_nonfinite(shape, widened(type, shape, values), token * width);
            }
            // f16 values: nothing is rounded when they are stored.
            if (!choose_scales(params, 1, channels.min.data(), channels.max.data(), width, channels.range.data(),
                               channels.zero.data())) {
                return fail_range(params, shape, channels, token * width);
            }
            store_scales(params, channels.range, out.scale, index);
            store_scales(params, channels.zero, out.zero, index);
            channels.fill(shape, MeanWidth);
            auto* to = reinterpret_cast<std::uint8_t*>(out.values.data()) + token * shape.heads * row_bytes;
            for (std::size_t head = 0, c = 0; head < shape.heads; ++head, c += head_dim) {
                ops.quantize_widths(head_of<KvValues>(type, shape, x, tokens, head), &channels.step[c],
                                    &channels.zero[c], &channels.width[c], to + head * row_bytes,
                                    shape.heads * row_bytes, row_bytes, error);
            }
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory: scratch for heads of {}", shape.head_dim);
    }

    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override {
        return decode_as(params, shape, values, scale, zero, DType::f32, std::as_writable_bytes(out), nullptr)
            .map([](bool) {});
    }

    Status decode_to(const Params& params, const Shape& shape, std::span<const std::byte> values,
                     std::span<const std::byte> scale, std::span<const std::byte> zero, const FloatsOut& out,
                     float* error) const override {
        HETERO_TRY(const bool fits, decode_as(params, shape, values, scale, zero, out.type, out.bytes, error));
        if (fits) return {};
        return Codec::decode_to(params, shape, values, scale, zero, out, error);  // which finds the place
    }

private:
    // False: a value is infinite in the output's type.
    Result<bool> decode_as(const Params& params, const Shape& shape, std::span<const std::byte> values,
                           std::span<const std::byte> scale, std::span<const std::byte> zero, DType type,
                           std::span<std::byte> out, float* error) const try {
        HETERO_CHECK(check(params, shape.head_dim));
        const std::size_t value_bytes = kernels::dtype_info(type).block_bytes;
        HETERO_CHECK(
            check_sizes(*this, params, shape, out.size() / value_bytes, {values.size(), scale.size(), zero.size()}));
        HETERO_CHECK(check_bytes(type, shape, out.size()));
        const std::size_t head_dim = shape.head_dim, width = std::size_t{shape.heads} * head_dim,
                          row_bytes = row_elements(params, shape.head_dim);
        if (shape.elements() == 0) return true;
        Channels channels(width);
        bool fits = true;
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += group_of(params), index += width) {
            const std::size_t tokens = std::min<std::uint64_t>(group_of(params), shape.tokens - token);
            load_scales(params, scale, index, channels.range);
            load_scales(params, zero, index, channels.zero);
            for (std::size_t c = 0; c < width; ++c) {
                channels.range[c] += 0.0F;  // -0 becomes +0
                if (channels.range[c] >= 0 && std::isfinite(channels.range[c]) && std::isfinite(channels.zero[c]))
                    continue;
                return fail(Errc::bad_input,
                            "{}: stored range {}, zero {}: a range is finite and not negative, a zero finite",
                            place_text(shape, token * width + c), channels.range[c], channels.zero[c]);
            }
            channels.fill(shape, MeanWidth);
            const auto* q = reinterpret_cast<const std::uint8_t*>(values.data()) + token * shape.heads * row_bytes;
            std::byte* x = out.data() + token * width * value_bytes;
            for (std::size_t head = 0, c = 0; head < shape.heads; ++head, c += head_dim) {
                fits = kernels::ops().dequantize_widths(q + head * row_bytes, shape.heads * row_bytes, row_bytes,
                                                        &channels.step[c], &channels.zero[c], &channels.width[c],
                                                        head_of<KvOutput>(type, shape, x, tokens, head), error) &&
                       fits;
            }
        }
        return fits;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory: scratch for heads of {}", shape.head_dim);
    }

    static std::vector<float> widened(DType type, const Shape& shape, std::span<const std::byte> values) {
        std::vector<float> wide(shape.elements());
        (void)float_codec(type).decode({}, shape, values, {}, {}, wide);
        return wide;
    }

    // One of the channels, whose first values are those from `begin` on, is too wide.
    static tl::unexpected<Error> fail_range(const Params& params, const Shape& shape, const Channels& channels,
                                            std::size_t begin) {
        std::size_t c = 0;
        while (c + 1 < channels.min.size() && choose_scale(params, 1, channels.min[c], channels.max[c]).representable) {
            ++c;
        }
        return fail(Errc::bad_input,
                    "{}: values from {} to {} need a range or zero beyond f16; store it as f32 or bf16",
                    place_text(shape, begin + c), channels.min[c], channels.max[c]);
    }
};

}  // namespace

int water_filled_bits(std::string_view name) {
    const Codec* codec = name.starts_with("wf") ? find_codec(name) : nullptr;
    return codec == nullptr ? 0 : codec->name().back() - '0';
}

const Codec& codec_wf2() {
    static const WaterFilled<2> codec;
    return codec;
}
const Codec& codec_wf3() {
    static const WaterFilled<3> codec;
    return codec;
}
const Codec& codec_wf4() {
    static const WaterFilled<4> codec;
    return codec;
}
const Codec& codec_wf5() {
    static const WaterFilled<5> codec;
    return codec;
}
const Codec& codec_wf6() {
    static const WaterFilled<6> codec;
    return codec;
}
const Codec& codec_wf8() {
    static const WaterFilled<8> codec;
    return codec;
}
const Codec& codec_wf9() {
    static const WaterFilled<9> codec;
    return codec;
}

}  // namespace hetero::quant
