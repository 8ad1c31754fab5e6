// 8-bit floats: what they hold. Codes are those of kernels::ops().quantize_fp8.
#pragma once
#include <string_view>

#include "kernels/api/ops.h"

namespace hetero::quant {

using kernels::Fp8;

struct Fp8Info {
    std::string_view name;
    int mantissa_bits = 0, bias = 0;
    double largest = 0;
    [[nodiscard]] double smallest() const noexcept;  // positive, subnormal
};
[[nodiscard]] const Fp8Info& fp8_info(Fp8 format) noexcept;

}  // namespace hetero::quant
