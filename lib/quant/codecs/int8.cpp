// int8: q = x / scale in [-127, 127] as i8 (symmetric), or q = (x - zero) / scale in [0, 255] as u8 (asymmetric).
// One scale (and zero) per group; hetero-quant(7) has the rules.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/api/ops.h"
#include "quant/groups.h"
#include "quant/place.h"
#include "quant/rounding.h"

namespace hetero::quant {
namespace {

constexpr int symmetric_levels = 127, asymmetric_levels = 255;
constexpr int levels(const Params& params) noexcept { return params.symmetric ? symmetric_levels : asymmetric_levels; }

std::size_t scale_bytes(const Params& params) noexcept { return params.scale_dtype == DType::f16 ? 2 : 4; }

// Element `index` of an array of scales or zeros; a value stored as f16 is an f16 value already.
void store(const Params& params, std::span<std::byte> array, std::size_t index, float value) noexcept {
    if (params.scale_dtype == DType::f16) {
        const std::uint16_t bits = value < 0 ? f16_round_down(value) : f16_round_up(value);
        std::memcpy(array.data() + 2 * index, &bits, sizeof bits);
    } else {
        std::memcpy(array.data() + 4 * index, &value, sizeof value);
    }
}

float load(const Params& params, std::span<const std::byte> array, std::size_t index) noexcept {
    if (params.scale_dtype == DType::f16) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, array.data() + 2 * index, sizeof bits);
        return f16_value(bits);
    }
    float value = 0;
    std::memcpy(&value, array.data() + 4 * index, sizeof value);
    return value;
}

// Names the largest of the group's n elements, `stride` apart from index `begin` on.
tl::unexpected<Error> fail_scale(const Params& params, const Shape& shape, std::span<const float> values,
                                 std::size_t begin, std::size_t n, std::size_t stride) {
    std::size_t worst = begin;
    for (std::size_t i = 0; i < n; ++i) {
        if (std::fabs(values[begin + i * stride]) > std::fabs(values[worst])) worst = begin + i * stride;
    }
    const bool half = params.scale_dtype == DType::f16;
    return fail(Errc::bad_input, "{}: value {} needs a scale{} beyond {}; {}", place_text(shape, worst), values[worst],
                params.symmetric ? "" : " or zero", half ? "f16" : "f32",
                half ? "use f32 scales" : "store it as f32 or bf16");
}

tl::unexpected<Error> fail_stored_scale(const Shape& shape, std::size_t index, float scale, float zero) {
    return fail(Errc::bad_input, "{}: stored scale {}, zero {}: a scale is finite and not negative, a zero finite",
                place_text(shape, index), scale, zero);
}

bool stored_ok(float scale, float zero) noexcept { return scale >= 0 && std::isfinite(scale) && std::isfinite(zero); }

class Int8 final : public Codec {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "int8"; }
    [[nodiscard]] DType value_dtype(const Params& params) const noexcept override {
        return params.symmetric ? DType::i8 : DType::u8;
    }
    [[nodiscard]] bool has_scale() const noexcept override { return true; }
    [[nodiscard]] Status check(const Params& params, std::uint32_t head_dim) const override {
        return check_group_params(name(), params, head_dim);
    }
    [[nodiscard]] std::uint64_t groups(const Params& params, const Shape& shape) const noexcept override {
        const std::uint64_t total = params.axis == Axis::token ? shape.head_dim : shape.tokens;
        const std::uint64_t group = params.axis == Axis::token ? token_group(params, shape.head_dim) : params.group;
        return group == 0 ? 0 : total / group + (total % group != 0 ? 1 : 0);
    }
    [[nodiscard]] EncodedBytes bytes(const Params& params, const Shape& shape) const noexcept override {
        const std::uint64_t per_group =
            params.axis == Axis::token ? shape.tokens * shape.heads : std::uint64_t{shape.heads} * shape.head_dim;
        const std::uint64_t scale = groups(params, shape) * per_group * scale_bytes(params);
        return {shape.elements(), scale, params.symmetric ? 0 : scale};
    }

    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(
            check_sizes(*this, params, shape, values.size(), {out.values.size(), out.scale.size(), out.zero.size()}));
        return params.axis == Axis::token ? encode_tokens(params, shape, values, out)
                                          : encode_channels(params, shape, values, out);
    }

    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
        return params.axis == Axis::token ? decode_tokens(params, shape, values, scale, zero, out)
                                          : decode_channels(params, shape, values, scale, zero, out);
    }

    [[nodiscard]] double error_bound(const Params& params, double min, double max) const noexcept override {
        return integer_error_bound(params, levels(params), min, max);
    }

private:
    static Status encode_tokens(const Params& params, const Shape& shape, std::span<const float> values,
                                const EncodedSpans& out) {
        const kernels::Ops& ops = kernels::ops();
        const std::size_t head_dim = shape.head_dim, group = token_group(params, shape.head_dim);
        std::size_t index = 0;  // of the group
        for (std::size_t head = 0; head < values.size(); head += head_dim) {
            for (std::size_t dim = 0; dim < head_dim; dim += group, ++index) {
                const std::size_t begin = head + dim, n = std::min(group, head_dim - dim);
                const float* x = values.data() + begin;
                float min = 0, max = 0;
                if (!ops.min_max(x, n, &min, &max)) return fail_nonfinite(shape, values, begin);
                const GroupScale chosen = choose_scale(params, levels(params), min, max);
                if (!chosen.representable) return fail_scale(params, shape, values, begin, n, 1);
                store(params, out.scale, index, chosen.scale);
                std::byte* q = out.values.data() + begin;
                if (params.symmetric) {
                    ops.quantize_i8(x, chosen.scale, reinterpret_cast<std::int8_t*>(q), n);
                } else {
                    store(params, out.zero, index, chosen.zero);
                    ops.quantize_u8(x, chosen.scale, chosen.zero, reinterpret_cast<std::uint8_t*>(q), n);
                }
            }
        }
        return {};
    }

    static Status decode_tokens(const Params& params, const Shape& shape, std::span<const std::byte> values,
                                std::span<const std::byte> scale, std::span<const std::byte> zero,
                                std::span<float> out) {
        const kernels::Ops& ops = kernels::ops();
        const std::size_t head_dim = shape.head_dim, group = token_group(params, shape.head_dim);
        std::size_t index = 0;
        for (std::size_t head = 0; head < out.size(); head += head_dim) {
            for (std::size_t dim = 0; dim < head_dim; dim += group, ++index) {
                const std::size_t begin = head + dim, n = std::min(group, head_dim - dim);
                const float s = load(params, scale, index), z = params.symmetric ? 0 : load(params, zero, index);
                if (!stored_ok(s, z)) return fail_stored_scale(shape, begin, s, z);
                const std::byte* q = values.data() + begin;
                if (params.symmetric) {
                    ops.dequantize_i8(reinterpret_cast<const std::int8_t*>(q), s, out.data() + begin, n);
                } else {
                    ops.dequantize_u8(reinterpret_cast<const std::uint8_t*>(q), s, z, out.data() + begin, n);
                }
            }
        }
        return {};
    }

    // Channels of a token group, side by side: the loops run over channels, so that memory is read in order.
    static constexpr std::size_t block = 256;
    struct Columns {
        std::array<float, block> scale, zero;
    };

    static Status encode_channels(const Params& params, const Shape& shape, std::span<const float> values,
                                  const EncodedSpans& out) {
        const std::size_t width = std::size_t{shape.heads} * shape.head_dim;
        std::size_t index = 0;  // of the group
        for (std::uint64_t token = 0; token < shape.tokens; token += params.group) {
            const std::size_t rows = std::min<std::uint64_t>(params.group, shape.tokens - token);
            for (std::size_t column = 0; column < width; column += block) {
                const std::size_t n = std::min(block, width - column), begin = token * width + column;
                Columns columns;
                HETERO_CHECK(choose_columns(params, shape, values, begin, rows, n, columns));
                for (std::size_t c = 0; c < n; ++c, ++index) {
                    store(params, out.scale, index, columns.scale[c]);
                    if (!params.symmetric) store(params, out.zero, index, columns.zero[c]);
                    if (columns.scale[c] == 0) columns.scale[c] = 1;  // all values equal the zero: codes are 0
                }
                for (std::size_t row = 0; row < rows; ++row) {
                    const float* x = values.data() + begin + row * width;
                    std::byte* q = out.values.data() + begin + row * width;
                    if (params.symmetric) {
                        quantize_row(x, columns, -symmetric_levels, symmetric_levels, reinterpret_cast<std::int8_t*>(q),
                                     n);
                    } else {
                        quantize_row(x, columns, 0, asymmetric_levels, reinterpret_cast<std::uint8_t*>(q), n);
                    }
                }
            }
        }
        return {};
    }

    static Status choose_columns(const Params& params, const Shape& shape, std::span<const float> values,
                                 std::size_t begin, std::size_t rows, std::size_t n, Columns& columns) {
        const std::size_t width = std::size_t{shape.heads} * shape.head_dim;
        std::array<float, block> min, max, taint{};  // taint: NaN once a value was NaN or infinite
        std::copy_n(values.data() + begin, n, min.data());
        std::copy_n(values.data() + begin, n, max.data());
        for (std::size_t row = 0; row < rows; ++row) {
            const float* x = values.data() + begin + row * width;
            for (std::size_t c = 0; c < n; ++c) {
                min[c] = x[c] < min[c] ? x[c] : min[c];
                max[c] = x[c] > max[c] ? x[c] : max[c];
                taint[c] += x[c] * 0.0F;
            }
        }
        for (std::size_t c = 0; c < n; ++c) {
            if (taint[c] != 0) return fail_nonfinite(shape, values, begin - begin % width);
            const GroupScale chosen = choose_scale(params, levels(params), min[c], max[c]);
            if (!chosen.representable) return fail_scale(params, shape, values, begin + c, rows, width);
            columns.scale[c] = chosen.scale;
            columns.zero[c] = chosen.zero;
        }
        return {};
    }

    // As kernels' quantize_i8 and quantize_u8, with a scale of its own for each element. The scales were chosen for
    // these values: a quotient is at most a rounding beyond the codes' range.
    template <class Code>
    static void quantize_row(const float* x, const Columns& columns, int lowest, int highest, Code* q, std::size_t n) {
        constexpr float round_half_even = 0x1.8p23F;  // adding it leaves no fraction bits; exact below 2^22
        for (std::size_t c = 0; c < n; ++c) {
            const float quotient = (x[c] - columns.zero[c]) / columns.scale[c];
            const int code = static_cast<int>((quotient + round_half_even) - round_half_even);
            q[c] = static_cast<Code>(std::clamp(code, lowest, highest));
        }
    }

    static Status decode_channels(const Params& params, const Shape& shape, std::span<const std::byte> values,
                                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                                  std::span<float> out) {
        const std::size_t width = std::size_t{shape.heads} * shape.head_dim;
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape.tokens; token += params.group) {
            const std::size_t rows = std::min<std::uint64_t>(params.group, shape.tokens - token);
            for (std::size_t column = 0; column < width; column += block) {
                const std::size_t n = std::min(block, width - column), begin = token * width + column;
                Columns columns;
                for (std::size_t c = 0; c < n; ++c, ++index) {
                    columns.scale[c] = load(params, scale, index);
                    columns.zero[c] = params.symmetric ? 0 : load(params, zero, index);
                    if (!stored_ok(columns.scale[c], columns.zero[c])) {
                        return fail_stored_scale(shape, begin + c, columns.scale[c], columns.zero[c]);
                    }
                }
                for (std::size_t row = 0; row < rows; ++row) {
                    const std::byte* q = values.data() + begin + row * width;
                    float* x = out.data() + begin + row * width;
                    if (params.symmetric) {
                        dequantize_row(reinterpret_cast<const std::int8_t*>(q), columns, x, n);
                    } else {
                        dequantize_row(reinterpret_cast<const std::uint8_t*>(q), columns, x, n);
                    }
                }
            }
        }
        return {};
    }

    template <class Code>
    static void dequantize_row(const Code* q, const Columns& columns, float* x, std::size_t n) {
        for (std::size_t c = 0; c < n; ++c) x[c] = static_cast<float>(q[c]) * columns.scale[c] + columns.zero[c];
    }
};

}  // namespace

const Codec& codec_int8() {
    static const Int8 codec;
    return codec;
}

}  // namespace hetero::quant
