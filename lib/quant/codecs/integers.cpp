// int2 to int8: integer codes of N bits. Symmetric: q = x / scale in [-(2^(N-1) - 1), 2^(N-1) - 1], two's complement.
// Asymmetric: q = (x - zero) / scale in [0, 2^N - 1]. hetero-quant(7) has the rules.
#include "kernels/api/ops.h"
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
        return integer_error_bound(params, range(params).high, min, max);
    }

private:
    [[nodiscard]] int bits() const noexcept override { return Bits; }
    [[nodiscard]] Range range(const Params& params) const noexcept override {
        constexpr int symmetric = (1 << (Bits - 1)) - 1;
        return params.symmetric ? Range{-symmetric, symmetric} : Range{0, (1 << Bits) - 1};
    }
    [[nodiscard]] GroupScale choose(const Params& params, float min, float max) const noexcept override {
        return choose_scale(params, range(params).high, min, max);
    }
    // The scale was chosen for these values: no quotient rounds to a code beyond the range.
    void encode_run(const Params& params, const float* x, const GroupScale& group, std::uint8_t* q,
                    std::size_t n) const noexcept override {
        if (params.symmetric) {
            kernels::ops().quantize_i8(x, group.scale, reinterpret_cast<std::int8_t*>(q), n);
        } else {
            kernels::ops().quantize_u8(x, group.scale, group.zero, q, n);
        }
    }
    void decode_run(const Params& params, const std::uint8_t* q, const GroupScale& group, float* x,
                    std::size_t n) const noexcept override {
        if (params.symmetric) {
            kernels::ops().dequantize_i8(reinterpret_cast<const std::int8_t*>(q), group.scale, x, n);
        } else {
            kernels::ops().dequantize_u8(q, group.scale, group.zero, x, n);
        }
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
