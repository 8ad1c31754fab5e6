// What the 16-bit floats share.
#pragma once
#include <cmath>

#include "kernels/api/ops.h"
#include "quant/weights/weight_format.h"

namespace hetero::quant {

// `exponent`: the exponent bits of the type, all set in infinities.
inline RowProblem encode_half(std::span<const float> row, std::byte* out, std::uint16_t exponent,
                              void (*convert)(const float*, std::uint16_t*, std::size_t)) {
    auto* halves = reinterpret_cast<std::uint16_t*>(out);
    convert(row.data(), halves, row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
        if ((halves[i] & exponent) != exponent) continue;
        return {std::isfinite(row[i]) ? RowProblem::Kind::overflow : RowProblem::Kind::not_finite, i};
    }
    return {};
}

}  // namespace hetero::quant
