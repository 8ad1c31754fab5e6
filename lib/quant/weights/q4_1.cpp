// Q4_1: 32 values share d and m in 16 bits, x = d * q + m; m = min, d = (max - min) / 15. Nibbles as in Q4_0. Codes as
// by ggml's reference quantizer (quantize_row_q4_1_ref in ggml-quants.c).
#include <algorithm>

#include "quant/weights/blocks.h"

namespace hetero::quant {
namespace {

class Q4_1 final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "q4_1"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::q4_1; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        return encode_blocks(row, dtype(), out, [](const float* x, std::byte* block) {
            const float min = *std::min_element(x, x + 32), d = (*std::max_element(x, x + 32) - min) / 15;
            if (!store_half(d, block) || !store_half(min, block + 2)) return false;
            const float inverse = reciprocal(d);
            const auto code = [&](float value) {
                return std::min(15, static_cast<int>((value - min) * inverse + 0.5F));
            };
            for (int i = 0; i < 16; ++i) block[4 + i] = static_cast<std::byte>(code(x[i]) | code(x[16 + i]) << 4);
            return true;
        });
    }
};

}  // namespace

const WeightFormat& weights_q4_1() {
    static const Q4_1 format;
    return format;
}

}  // namespace hetero::quant
