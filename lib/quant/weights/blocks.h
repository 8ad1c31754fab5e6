// What block formats share: the walk over the blocks of a row, and the formats whose blocks are KV codecs too.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels/api/ops.h"
#include "quant/weights/weight_format.h"

namespace hetero::quant {

inline float from_half(std::uint16_t half) {
    float value = 0;
    kernels::ops().f16_to_f32(&half, &value, 1);
    return value;
}

// `encode(x, out)` stores one block of finite values and returns false where a scale overflows.
template <class Encode>
RowProblem encode_blocks(std::span<const float> row, kernels::DType dtype, std::byte* out, const Encode& encode) {
    const kernels::DTypeInfo& info = kernels::dtype_info(dtype);
    for (std::size_t begin = 0; begin < row.size(); begin += info.block_elems, out += info.block_bytes) {
        const float* x = row.data() + begin;
        for (std::size_t i = 0; i < info.block_elems; ++i) {
            if (!std::isfinite(x[i])) return {RowProblem::Kind::not_finite, begin + i};
        }
        if (!encode(x, out)) return {RowProblem::Kind::overflow, begin};
    }
    return {};
}

// Q8_0, Q4_0 or Q4_1, defined by kernels::Ops::quantize_blocks.
class GgmlFormat final : public WeightFormat {
public:
    GgmlFormat(std::string_view name, kernels::DType dtype) : name_(name), dtype_(dtype) {}
    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return dtype_; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        return encode_blocks(row, dtype_, out, [&](const float* x, std::byte* block) {
            return kernels::ops().quantize_blocks(dtype_, x, kernels::dtype_info(dtype_).block_elems, block);
        });
    }

private:
    std::string_view name_;
    kernels::DType dtype_;
};

}  // namespace hetero::quant
