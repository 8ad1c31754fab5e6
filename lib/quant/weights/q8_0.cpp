// Q8_0: 32 values share d = max |x| / 127 in 16 bits; q = x / d, half away from zero. Codes as by ggml's reference
// quantizer (quantize_row_q8_0_ref in ggml-quants.c).
#include <algorithm>

#include "quant/weights/blocks.h"

namespace hetero::quant {
namespace {

class Q8_0 final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "q8_0"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::q8_0; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        return encode_blocks(row, dtype(), out, [](const float* x, std::byte* block) {
            float largest = 0;
            for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
            const float d = largest / 127, inverse = reciprocal(d);
            for (int i = 0; i < 32; ++i) {
                block[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::round(x[i] * inverse)));
            }
            return store_half(d, block);
        });
    }
};

}  // namespace

const WeightFormat& weights_q8_0() {
    static const Q8_0 format;
    return format;
}

}  // namespace hetero::quant
