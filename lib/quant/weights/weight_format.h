// Formats that weights are converted to: one file per format in quant/weights, one line each in its registry. The
// layouts are those of kernels/ref/dequantize.cpp, which is how every format is read back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/api/dtype.h"

namespace hetero::quant {

// Why a row cannot be stored, and where: the caller knows tensor and row.
struct RowProblem {
    enum class Kind : std::uint8_t { none, not_finite, overflow } kind = Kind::none;
    std::size_t index = 0;  // of the value in the row, or of the first one of the block
};

// Stateless: one object may be used by many threads at once.
class WeightFormat {
public:
    virtual ~WeightFormat() = default;
    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    [[nodiscard]] virtual kernels::DType dtype() const noexcept = 0;
    // Every row has a scale of its own beside the codes: x = q * scale.
    [[nodiscard]] virtual bool has_row_scale() const noexcept { return false; }
    // Loses more than the rounding of a float.
    [[nodiscard]] virtual bool quantized() const noexcept { return true; }
    // Elements in a row must be a multiple of this.
    [[nodiscard]] std::size_t block_elems() const noexcept { return kernels::dtype_info(dtype()).block_elems; }
    // Encodes one row of whole blocks into `out`, dtype_bytes(dtype(), row.size()) long; `row_scale` is written where
    // there is one. NaN, infinities, and values or scales beyond what the format can hold are problems.
    [[nodiscard]] virtual RowProblem encode(std::span<const float> row, std::byte* out, float* row_scale) const = 0;
};

[[nodiscard]] const std::vector<const WeightFormat*>& weight_formats();
[[nodiscard]] const WeightFormat* find_weight_format(std::string_view name);  // nullptr where unknown
[[nodiscard]] std::string weight_format_names();                              // "f32, f16, ...", for messages

}  // namespace hetero::quant
