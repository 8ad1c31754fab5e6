// compat:q8_0, compat:q4_0, compat:q4_1: ggml's blocks of 32 along head_dim, scale and codes together, as llama.cpp
// stores a quantized KV cache. For comparison, and for its decoders.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/api/ops.h"
#include "quant/codec.h"
#include "quant/place.h"

namespace hetero::quant {
namespace {

using kernels::DType;

constexpr std::size_t ggml_block = 32;            // elements
constexpr std::size_t at_once = 64 * ggml_block;  // what stays in a core's cache

class GgmlCodec final : public Codec {
public:
    GgmlCodec(DType type, std::string_view name) : type_(type), name_(name) {}

    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] DType value_dtype(const Params&) const noexcept override { return DType::u8; }
    [[nodiscard]] bool has_scale() const noexcept override { return false; }
    [[nodiscard]] bool quantized() const noexcept override { return true; }
    [[nodiscard]] std::uint64_t row_elements(const Params&, std::uint32_t head_dim) const noexcept override {
        return kernels::dtype_bytes(type_, head_dim);
    }
    [[nodiscard]] Status check(const Params& params, std::uint32_t head_dim) const override {
        if (params != Params{}) return fail(Errc::usage, "{} is one exact format: it takes no options", name_);
        if (head_dim % ggml_block != 0) {
            return fail(Errc::usage, "{} needs a head size that is a multiple of {}, not {}", name_, ggml_block,
                        head_dim);
        }
        return {};
    }
    [[nodiscard]] std::uint64_t groups(const Params&, const Shape&) const noexcept override { return 0; }
    [[nodiscard]] EncodedBytes bytes(const Params&, const Shape& shape) const noexcept override {
        return {kernels::dtype_bytes(type_, shape.elements()), 0, 0};
    }

    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(
            check_sizes(*this, params, shape, values.size(), {out.values.size(), out.scale.size(), out.zero.size()}));
        return in_blocks(values.size(), [&](std::size_t begin, std::size_t n) -> Status {
            const float* x = values.data() + begin;
            float min = 0, max = 0;
            if (!kernels::ops().min_max(x, n, &min, &max)) return fail_nonfinite(shape, values, begin);
            if (kernels::ops().quantize_blocks(type_, x, n, out.values.data() + bytes_of(begin))) return {};
            return fail(Errc::bad_input, "{}: values from {} to {} need a scale or minimum beyond f16",
                        place_text(shape, begin), min, max);
        });
    }

    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
        // From aligned memory: the bytes may lie at any address.
        alignas(4) std::array<std::byte, at_once / ggml_block * 34> some;
        return in_blocks(out.size(), [&](std::size_t begin, std::size_t n) -> Status {
            std::memcpy(some.data(), values.data() + bytes_of(begin), bytes_of(n));
            float* x = out.data() + begin;
            kernels::ops().dequantize(type_, some.data(), x, n);
            float min = 0, max = 0;
            if (kernels::ops().min_max(x, n, &min, &max)) return {};
            return fail(Errc::bad_input, "{}: the stored block has a scale or minimum that is not finite",
                        place_text(shape, begin));
        });
    }

    // The step, half of it, or (q4_0, where one side has a code less) a whole one; and what f16 loses of its
    // parameters.
    [[nodiscard]] double error_bound(const Params&, double min, double max) const noexcept override {
        constexpr double f16_rounding = 0x1p-11, f16_smallest = 0x1p-25;
        const double magnitude = std::max(std::fabs(min), std::fabs(max));
        const double levels = type_ == DType::q8_0 ? 127 : type_ == DType::q4_0 ? 8 : 15;
        const double step = (type_ == DType::q4_1 ? max - min : magnitude) / levels;
        if (step >= f16_overflow || (type_ == DType::q4_1 && std::fabs(min) >= f16_overflow)) {
            return std::numeric_limits<double>::infinity();
        }
        const double stored = levels * std::max(step * f16_rounding, f16_smallest) +
                              (type_ == DType::q4_1 ? std::max(std::fabs(min) * f16_rounding, f16_smallest) : 0);
        return (type_ == DType::q4_0 ? step : step / 2) + stored + magnitude * 0x1p-20 + 0x1p-120;
    }

private:
    [[nodiscard]] std::size_t bytes_of(std::size_t values) const { return kernels::dtype_bytes(type_, values); }

    // f(begin, n) for some of the values at a time; where that fails, for each block, which tells its place.
    template <class F>
    static Status in_blocks(std::size_t values, const F& f) {
        for (std::size_t begin = 0; begin < values; begin += at_once) {
            const std::size_t n = std::min(at_once, values - begin);
            if (f(begin, n)) continue;
            for (std::size_t block = begin; block < begin + n; block += ggml_block) HETERO_CHECK(f(block, ggml_block));
        }
        return {};
    }

    static constexpr double f16_overflow = 65520;

    DType type_;
    std::string_view name_;
};

}  // namespace

const Codec& codec_compat_q8_0() {
    static const GgmlCodec codec(DType::q8_0, "compat:q8_0");
    return codec;
}
const Codec& codec_compat_q4_0() {
    static const GgmlCodec codec(DType::q4_0, "compat:q4_0");
    return codec;
}
const Codec& codec_compat_q4_1() {
    static const GgmlCodec codec(DType::q4_1, "compat:q4_1");
    return codec;
}

}  // namespace hetero::quant
