// int8-channel: a row shares one fp32 scale, max |x| / 127; q = x / scale to nearest, half to even. Symmetric, as the
// scheme "int-quantized, strategy channel" of compressed-tensors (https://github.com/neuralmagic/compressed-tensors).
#include <cmath>

#include "kernels/api/ops.h"
#include "quant/weights/weight_format.h"

namespace hetero::quant {
namespace {

class Int8Channel final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "int8-channel"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::i8; }
    [[nodiscard]] bool has_row_scale() const noexcept override { return true; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float* row_scale) const override {
        float largest = 0;
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (!std::isfinite(row[i])) return {RowProblem::Kind::not_finite, i};
            largest = std::fmax(largest, std::fabs(row[i]));
        }
        *row_scale = largest / 127;
        kernels::ops().quantize_i8(row.data(), *row_scale, reinterpret_cast<std::int8_t*>(out), row.size());
        return {};
    }
};

}  // namespace

const WeightFormat& weights_int8_channel() {
    static const Int8Channel format;
    return format;
}

}  // namespace hetero::quant
