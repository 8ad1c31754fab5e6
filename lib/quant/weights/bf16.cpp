#include "quant/weights/floats.h"

namespace hetero::quant {
namespace {

class BF16 final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "bf16"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::bf16; }
    [[nodiscard]] bool quantized() const noexcept override { return false; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        return encode_half(row, out, 0x7f80, kernels::ops().f32_to_bf16);
    }
};

}  // namespace

const WeightFormat& weights_bf16() {
    static const BF16 format;
    return format;
}

}  // namespace hetero::quant
