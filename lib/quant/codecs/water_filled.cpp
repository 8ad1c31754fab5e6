// wf2 to wf9: integer codes of N bits on average, more for channels with a wide range and fewer for narrow ones, so
// that all channels of a head err alike: reverse water-filling (Cover and Thomas, Elements of Information
// Theory, 10.3.3). A group is a channel over some tokens, as on the channel axis of the integer codecs. What is stored
// in place of a scale is the range of the group; reader and writer find the widths from the ranges, so that they cost
// nothing. hetero-quant(7) has the rules.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "kernels/api/ops.h"
#include "quant/groups.h"
#include "quant/place.h"

namespace hetero::quant {
namespace {

constexpr int min_width = 1, max_width = 12;
constexpr std::size_t wider = max_width - min_width;  // bits that a channel can win

constexpr std::uint32_t usual_group = 32;

std::uint32_t group_of(const Params& params) noexcept { return params.group == 0 ? usual_group : params.group; }

constexpr int largest_code(int width) noexcept { return (1 << width) - 1; }

// The step between a group's values.
float step_of(float range, int width) noexcept { return range / static_cast<float>(largest_code(width)); }

// The channels of one head over one group of tokens.
struct Channels {
    explicit Channels(std::size_t n)
        : min(n), max(n), range(n), zero(n), step(n), top(n), width(n), codes(n), keys(n * wider) {}
    std::vector<float> min, max, range, zero, step, top;  // top: the largest code
    std::vector<std::uint8_t> width;
    std::vector<std::uint32_t> codes;
    std::vector<std::uint64_t> keys;

    // From the ranges: bit after bit goes to the channel with the largest step, the first among equals. Each bit that a
    // channel may win stands for itself, since its steps only fall; the largest of all are those that are won.
    void fill(int mean_width) {
        const std::size_t n = range.size();
        for (std::size_t c = 0; c < n; ++c) {
            for (std::size_t bit = 0; bit < wider; ++bit) {
                const float now = step_of(range[c], min_width + static_cast<int>(bit));
                std::uint32_t bits = 0;
                std::memcpy(&bits, &now, sizeof bits);  // of floats that are not negative: in their order
                keys[c * wider + bit] = std::uint64_t{~bits} << 32 | c;
            }
        }
        const std::size_t won = n * static_cast<std::size_t>(mean_width - min_width);
        std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(won), keys.end());
        std::fill(width.begin(), width.end(), static_cast<std::uint8_t>(min_width));
        for (std::size_t i = 0; i < won; ++i) ++width[keys[i] & 0xFFFFFFFFU];
        for (std::size_t c = 0; c < n; ++c) {
            step[c] = step_of(range[c], width[c]);
            top[c] = step[c] > 0 ? static_cast<float>(largest_code(width[c])) : 0;
        }
    }

    // A row of values to codes, and back. Where the step is 0 all values are the zero: 0 / 1 is their code.
    void quantize(const float* x) noexcept {
        for (std::size_t c = 0; c < codes.size(); ++c) {
            const float q = std::nearbyint((x[c] - zero[c]) / (step[c] > 0 ? step[c] : 1.0F));
            codes[c] = static_cast<std::uint32_t>(static_cast<std::int32_t>(std::min(std::max(q, 0.0F), top[c])));
        }
    }
    void dequantize(float* x) const noexcept {
        for (std::size_t c = 0; c < codes.size(); ++c) {
            x[c] = static_cast<float>(static_cast<std::int32_t>(codes[c])) * step[c] + zero[c];
        }
    }
};

// Codes one after the other, lowest bit first, in little-endian words of 32 bits.
class BitWriter {
public:
    explicit BitWriter(std::byte* to) : to_(to) {}
    void put(std::uint32_t code, int width) noexcept {
        bits_ |= std::uint64_t{code} << used_;
        used_ += width;
        if (used_ >= 32) flush();
    }
    void finish() noexcept {
        if (used_ > 0) flush();
    }

private:
    void flush() noexcept {
        const auto word = static_cast<std::uint32_t>(bits_);
        std::memcpy(to_, &word, sizeof word);
        to_ += sizeof word;
        bits_ >>= 32;
        used_ -= 32;
    }
    std::byte* to_;
    std::uint64_t bits_ = 0;
    int used_ = 0;
};

class BitReader {
public:
    explicit BitReader(const std::byte* from) : from_(from) {}
    std::uint32_t take(int width) noexcept {
        if (held_ < width) {
            std::uint32_t word = 0;
            std::memcpy(&word, from_, sizeof word);
            from_ += sizeof word;
            bits_ |= std::uint64_t{word} << held_;
            held_ += 32;
        }
        const auto code = static_cast<std::uint32_t>(bits_) & static_cast<std::uint32_t>(largest_code(width));
        bits_ >>= width;
        held_ -= width;
        return code;
    }

private:
    const std::byte* from_;
    std::uint64_t bits_ = 0;
    int held_ = 0;
};

template <int MeanWidth>
class WaterFilled final : public Codec {
public:
    [[nodiscard]] std::string_view name() const noexcept override {
        static constexpr char text[] = {'w', 'f', '0' + MeanWidth};
        return {text, sizeof text};
    }
    [[nodiscard]] DType value_dtype(const Params&) const noexcept override { return DType::u8; }
    [[nodiscard]] std::uint64_t row_elements(const Params&, std::uint32_t head_dim) const noexcept override {
        return (std::uint64_t{head_dim} * MeanWidth + 31) / 32 * 4;
    }
    [[nodiscard]] bool has_scale() const noexcept override { return true; }
    [[nodiscard]] Params default_params() const noexcept override {
        return {Axis::channel, 0, false, DType::f16, false};
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
        return shape.tokens / group_of(params) + (shape.tokens % group_of(params) != 0 ? 1 : 0);
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
        return integer_error_bound(params, largest_code(min_width), min, max);
    }

    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override try {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(
            check_sizes(*this, params, shape, values.size(), {out.values.size(), out.scale.size(), out.zero.size()}));
        const std::size_t head_dim = shape.head_dim, width = std::size_t{shape.heads} * head_dim,
                          row_bytes = row_elements(params, shape.head_dim);
        Channels channels(head_dim);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += group_of(params)) {
            const std::size_t rows = std::min<std::uint64_t>(group_of(params), shape.tokens - token);
            for (std::size_t head = 0; head < shape.heads; ++head) {
                const float* x = values.data() + token * width + head * head_dim;
                if (!kernels::ops().min_max_columns({DType::f32, x, rows, width, head_dim}, channels.min.data(),
                                                    channels.max.data())) {
                    return fail_nonfinite(shape, values, token * width);
                }
                // f16 values: nothing is rounded when they are stored.
                if (!choose_scales(params, 1, channels.min.data(), channels.max.data(), head_dim, channels.range.data(),
                                   channels.zero.data())) {
                    return fail_range(params, shape, channels, token * width + head * head_dim);
                }
                store_scales(params, channels.range, out.scale, index);
                store_scales(params, channels.zero, out.zero, index);
                index += head_dim;
                channels.fill(MeanWidth);
                for (std::size_t r = 0; r < rows; ++r) {
                    channels.quantize(x + r * width);
                    BitWriter to(out.values.data() + ((token + r) * shape.heads + head) * row_bytes);
                    for (std::size_t c = 0; c < head_dim; ++c) to.put(channels.codes[c], channels.width[c]);
                    to.finish();
                }
            }
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory: scratch for a head of {}", shape.head_dim);
    }

    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override try {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
        const std::size_t head_dim = shape.head_dim, width = std::size_t{shape.heads} * head_dim,
                          row_bytes = row_elements(params, shape.head_dim);
        Channels channels(head_dim);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += group_of(params)) {
            const std::size_t rows = std::min<std::uint64_t>(group_of(params), shape.tokens - token);
            for (std::size_t head = 0; head < shape.heads; ++head) {
                const std::size_t begin = token * width + head * head_dim;
                load_scales(params, scale, index, channels.range);
                load_scales(params, zero, index, channels.zero);
                index += head_dim;
                for (std::size_t c = 0; c < head_dim; ++c) {
                    channels.range[c] += 0.0F;  // -0 becomes +0
                    if (channels.range[c] >= 0 && std::isfinite(channels.range[c]) && std::isfinite(channels.zero[c]))
                        continue;
                    return fail(Errc::bad_input,
                                "{}: stored range {}, zero {}: a range is finite and not negative, a zero finite",
                                place_text(shape, begin + c), channels.range[c], channels.zero[c]);
                }
                channels.fill(MeanWidth);
                for (std::size_t r = 0; r < rows; ++r) {
                    BitReader from(values.data() + ((token + r) * shape.heads + head) * row_bytes);
                    for (std::size_t c = 0; c < head_dim; ++c) channels.codes[c] = from.take(channels.width[c]);
                    channels.dequantize(out.data() + begin + r * width);
                }
            }
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory: scratch for a head of {}", shape.head_dim);
    }

private:
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
