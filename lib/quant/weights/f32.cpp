#include <cmath>
#include <cstring>

#include "quant/weights/weight_format.h"

namespace hetero::quant {
namespace {

class F32 final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "f32"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::f32; }
    [[nodiscard]] bool quantized() const noexcept override { return false; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (!std::isfinite(row[i])) return {RowProblem::Kind::not_finite, i};
        }
        std::memcpy(out, row.data(), row.size_bytes());
        return {};
    }
};

}  // namespace

const WeightFormat& weights_f32() {
    static const F32 format;
    return format;
}

}  // namespace hetero::quant
