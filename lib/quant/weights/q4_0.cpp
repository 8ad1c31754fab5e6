// Q4_0: 32 values share d in 16 bits, x = d * (q - 8); d = the value of largest magnitude / -8, so that this one is
// exact but for the rounding of d. Element i is the low nibble of byte i, element 16 + i the high one.
#include "quant/weights/blocks.h"

namespace hetero::quant {

const WeightFormat& weights_q4_0() {
    static const GgmlFormat format("q4_0", kernels::DType::q4_0);
    return format;
}

}  // namespace hetero::quant
