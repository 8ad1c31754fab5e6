// Q4_1: 32 values share d and m in 16 bits, x = d * q + m; m = min, d = (max - min) / 15. Nibbles as in Q4_0.
#include "quant/weights/blocks.h"

namespace hetero::quant {

const WeightFormat& weights_q4_1() {
    static const GgmlFormat format("q4_1", kernels::DType::q4_1);
    return format;
}

}  // namespace hetero::quant
