#include "quant/weights/floats.h"

namespace hetero::quant {
namespace {

class F16 final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "f16"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::f16; }
    [[nodiscard]] bool quantized() const noexcept override { return false; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        return encode_half(row, out, 0x7c00, kernels::ops().f32_to_f16);
    }
};

}  // namespace

const WeightFormat& weights_f16() {
    static const F16 format;
    return format;
}

}  // namespace hetero::quant
