// Q8_0: 32 values share d = max |x| / 127 in 16 bits; q = x / d, half away from zero.
#include "quant/weights/blocks.h"

namespace hetero::quant {

const WeightFormat& weights_q8_0() {
    static const GgmlFormat format("q8_0", kernels::DType::q8_0);
    return format;
}

}  // namespace hetero::quant
