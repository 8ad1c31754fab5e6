// f16: IEEE 754 binary16, nearest-even. A finite value that would become infinite is refused.
#include "quant/half_codec.h"

namespace hetero::quant {
namespace {

struct F16 {
    static constexpr std::string_view name = "f16";
    static constexpr DType dtype = DType::f16;
    static constexpr std::uint16_t exponent_mask = 0x7C00;
    static constexpr std::string_view remedy = "store it as bf16";
    static constexpr double largest = 65504, overflow = 65520, epsilon = 0x1p-10, smallest = 0x1p-24;
    static auto narrow(const kernels::Ops& ops) { return ops.f32_to_f16; }
    static auto widen(const kernels::Ops& ops) { return ops.f16_to_f32; }
};

}  // namespace

const Codec& codec_f16() {
    static const HalfCodec<F16> codec;
    return codec;
}

}  // namespace hetero::quant
