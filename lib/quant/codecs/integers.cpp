// int2 to int8: integer codes of N bits. Symmetric: q = x / scale in [-(2^(N-1) - 1), 2^(N-1) - 1], two's complement.
// Asymmetric: q = (x - zero) / scale in [0, 2^N - 1]. hetero-quant(7) has the rules.
#include "quant/grouped_codec.h"

namespace hetero::quant {
namespace {

template <int Bits>
class Integer final : public GroupedCodec {
public:
    [[nodiscard]] std::string_view name() const noexcept override {
        static constexpr char text[] = {'i', 'n', 't', '0' + Bits};
        return {text, sizeof text};
    }
    [[nodiscard]] DType value_dtype(const Params& params) const noexcept override {
        return Bits == 8 && params.symmetric ? DType::i8 : DType::u8;
    }
    [[nodiscard]] double error_bound(const Params& params, double min, double max) const noexcept override {
        return integer_error_bound(params, largest_code(params), min, max);
    }

private:
    [[nodiscard]] int bits() const noexcept override { return Bits; }
    [[nodiscard]] bool is_signed(const Params& params) const noexcept override { return params.symmetric; }
    [[nodiscard]] static int largest_code(const Params& params) noexcept {
        return params.symmetric ? (1 << (Bits - 1)) - 1 : (1 << Bits) - 1;
    }
    [[nodiscard]] bool any_type() const noexcept override { return true; }
    [[nodiscard]] int levels(const Params& params) const noexcept override { return largest_code(params); }
    [[nodiscard]] bool choose(const Params& params, const float* min, const float* max, std::size_t n, float* scale,
                              float* zero) const noexcept override {
        return choose_scales(params, largest_code(params), min, max, n, scale, zero);
    }
    // The scale was chosen for these values: no quotient rounds to a code beyond the range.
    void encode_rows(const Params& params, const KvValues& x, const float* scale, const float* zero, std::uint8_t* q,
                     std::size_t q_stride, float* error) const noexcept override {
        kernels::ops().quantize_rows(x, scale, zero, params.symmetric, q, q_stride, error);
    }
    [[nodiscard]] bool decode_rows(const Params& params, const std::uint8_t* q, std::size_t q_stride,
                                   const float* scale, const float* zero, const KvOutput& x,
                                   float* error) const noexcept override {
        return kernels::ops().dequantize_rows(q, q_stride, params.symmetric, scale, zero, x, error);
    }
};

}  // namespace

const Codec& codec_int2() {
    static const Integer<2> codec;
    return codec;
}
const Codec& codec_int3() {
    static const Integer<3> codec;
    return codec;
}
const Codec& codec_int4() {
    static const Integer<4> codec;
    return codec;
}
const Codec& codec_int5() {
    static const Integer<5> codec;
    return codec;
}
const Codec& codec_int6() {
    static const Integer<6> codec;
    return codec;
}
const Codec& codec_int8() {
    static const Integer<8> codec;
    return codec;
}

}  // namespace hetero::quant
