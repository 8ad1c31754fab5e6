// Q4_0: 32 values share d in 16 bits, x = d * (q - 8); d = the value of largest magnitude / -8, so that this one is
// exact but for the rounding of d. Element i is the low nibble of byte i, element 16 + i the high one. Codes as by
// ggml's reference quantizer (quantize_row_q4_0_ref in ggml-quants.c).
#include <algorithm>

#include "quant/weights/blocks.h"

namespace hetero::quant {
namespace {

class Q4_0 final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "q4_0"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::q4_0; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        return encode_blocks(row, dtype(), out, [](const float* x, std::byte* block) {
            float largest = 0, extreme = 0;
            for (int i = 0; i < 32; ++i) {
                if (std::fabs(x[i]) > largest) {
                    largest = std::fabs(x[i]);
                    extreme = x[i];
                }
            }
            const float d = extreme / -8, inverse = reciprocal(d);
            const auto code = [inverse](float value) {
                return std::min(15, static_cast<int>(value * inverse + 8.5F));  // never negative
            };
            for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<std::byte>(code(x[i]) | code(x[16 + i]) << 4);
            return store_half(d, block);
        });
    }
};

}  // namespace

const WeightFormat& weights_q4_0() {
    static const Q4_0 format;
    return format;
}

}  // namespace hetero::quant
