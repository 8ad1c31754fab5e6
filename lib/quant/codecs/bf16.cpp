// bf16: the upper half of an f32, nearest-even. Nothing below 3.39e38 overflows.
#include "quant/half_codec.h"

namespace hetero::quant {
namespace {

struct BF16 {
    static constexpr std::string_view name = "bf16";
    static constexpr DType dtype = DType::bf16;
    static constexpr std::uint16_t exponent_mask = 0x7F80;
    static constexpr std::string_view remedy = "store it as f32";
    static constexpr double largest = 0x1.FEp127, overflow = 0x1.FFp127, epsilon = 0x1p-7, smallest = 0x1p-133;
    static auto narrow(const kernels::Ops& ops) { return ops.f32_to_bf16; }
    static auto widen(const kernels::Ops& ops) { return ops.bf16_to_f32; }
};

}  // namespace

const Codec& codec_bf16() {
    static const HalfCodec<BF16> codec;
    return codec;
}

}  // namespace hetero::quant
