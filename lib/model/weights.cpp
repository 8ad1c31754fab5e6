#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/api/ops.h"
#include "model/quantization.h"

namespace hetero::model {
namespace {

using kernels::DType;

bool is_weight_type(DType type) { return type != DType::i8 && type != DType::u8 && type != DType::i32; }
bool is_vector_type(DType type) { return type == DType::f32 || type == DType::f16 || type == DType::bf16; }

}  // namespace

bool WeightReader::has(std::string_view name) const {
    const auto& names = source_.names();
    return std::binary_search(names.begin(), names.end(), name);
}

Result<std::uint32_t> WeightReader::rows_of(const std::string& name, std::uint32_t limit) const {
    const io::TensorView* view = source_.find(name);
    if (view == nullptr) return fail(Errc::bad_input, "{}", source_.why(name));
    if (view->shape.size() != 2 || view->shape[0] == 0 || view->shape[0] > limit) {
        return fail(Errc::bad_input, "{}: tensor {} has shape [{}], expected a matrix of 1 to {} rows", view->file,
                    name, fmt::join(view->shape, ", "), limit);
    }
    return static_cast<std::uint32_t>(view->shape[0]);
}

Result<const io::TensorView*> WeightReader::take(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const io::TensorView* view = source_.find(name);
    if (view == nullptr) return fail(Errc::bad_input, "{}", source_.why(name));
    if (view->shape != shape) {
        return fail(Errc::bad_input, "{}: tensor {} has shape [{}], the configuration asks for [{}]", view->file, name,
                    fmt::join(view->shape, ", "), fmt::join(shape, ", "));
    }
    const kernels::DTypeInfo& info = kernels::dtype_info(view->dtype);
    if (shape.back() % info.block_elems != 0) {
        return fail(Errc::bad_input, "{}: tensor {}: rows of {} elements are not whole {} blocks of {}", view->file,
                    name, shape.back(), info.name, info.block_elems);
    }
    if (taken_.emplace(name).second) bytes_ += view->bytes.size();
    return view;
}

Result<Matrix> WeightReader::matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    return take_matrix(name, {rows, cols});
}

Result<Matrix> WeightReader::stacked(const std::string& name, std::uint64_t count, std::uint64_t rows,
                                     std::uint64_t cols) {
    return take_matrix(name, {count, rows, cols});
}

Result<Matrix> WeightReader::take_matrix(const std::string& name, const std::vector<std::uint64_t>& shape) {
    HETERO_TRY(const io::TensorView* view, take(name, shape));
    const std::uint64_t cols = shape.back();
    std::uint64_t rows = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    const bool int8_rows = view->dtype == DType::i8 && int8_rows_;
    if (!is_weight_type(view->dtype) && !int8_rows) {
        return fail(Errc::bad_input, "{}: tensor {} is of type {}, which no matrix can have", view->file, name,
                    kernels::dtype_info(view->dtype).name);
    }
    const std::size_t row_bytes = kernels::dtype_bytes(view->dtype, cols);
    if (view->bytes.size() / rows != row_bytes || view->bytes.size() % rows != 0) {
        return fail(Errc::bad_input, "{}: tensor {} has {} bytes, expected {} rows of {}", view->file, name,
                    view->bytes.size(), rows, row_bytes);
    }
    Matrix matrix{name, view->dtype, view->bytes.data(), rows, cols, row_bytes, {}, 0, 0, {}};
    if (int8_rows) {
        HETERO_TRY(matrix.row_scale, row_scale(name, rows));
    }
    return matrix;
}

Result<std::vector<float>> WeightReader::row_scale(const std::string& matrix_name, std::uint64_t rows) {
    const std::string name = row_scale_name(matrix_name);
    HETERO_TRY(const io::TensorView* view, take(name, {rows, 1}));
    HETERO_TRY(std::vector<float> scale, floats(name, *view, rows));
    const auto negative = std::find_if(scale.begin(), scale.end(), [](float value) { return value < 0; });
    if (negative != scale.end()) {
        return fail(Errc::bad_input, "{}: tensor {} holds {}, no scale is negative", view->file, name, *negative);
    }
    return scale;
}

Result<Vector> WeightReader::vector(const std::string& name, std::uint64_t size) {
    HETERO_TRY(const io::TensorView* view, take(name, {size}));
    HETERO_TRY(std::vector<float> values, floats(name, *view, size));
    return Vector{name, std::move(values)};
}

Result<std::vector<float>> WeightReader::floats(const std::string& name, const io::TensorView& view,
                                                std::uint64_t size) const {
    if (!is_vector_type(view.dtype)) {
        return fail(Errc::bad_input, "{}: tensor {} is of type {}, expected f32, f16 or bf16", view.file, name,
                    kernels::dtype_info(view.dtype).name);
    }
    if (view.bytes.size() != kernels::dtype_bytes(view.dtype, size)) {
        return fail(Errc::bad_input, "{}: tensor {} has {} bytes, expected {} elements of {}", view.file, name,
                    view.bytes.size(), size, kernels::dtype_info(view.dtype).name);
    }
    std::vector<float> values(size);
    kernels::ops().dequantize(view.dtype, view.bytes.data(), values.data(), size);
    for (const float value : values) {
        if (!std::isfinite(value)) return fail(Errc::bad_input, "{}: tensor {} holds {}", view.file, name, value);
    }
    return values;
}

Result<Matrix> WeightReader::matrix(const std::string& name, const std::string& bias_name, std::uint64_t rows,
                                    std::uint64_t cols) {
    HETERO_TRY(Matrix matrix, this->matrix(name, rows, cols));
    HETERO_TRY(Vector bias, vector(bias_name, rows));
    matrix.bias = std::move(bias.values);
    return matrix;
}

Status WeightReader::refuse_unused(const std::vector<std::string_view>& harmless,
                                   const std::vector<std::string>& elsewhere) const {
    for (const std::string& name : source_.names()) {
        if (taken_.contains(name)) continue;
        const bool known = std::any_of(harmless.begin(), harmless.end(),
                                       [&name](std::string_view ending) { return name.ends_with(ending); }) ||
                           std::any_of(elsewhere.begin(), elsewhere.end(),
                                       [&name](const std::string& beginning) { return name.starts_with(beginning); });
        if (!known) {
            return fail(Errc::bad_input,
                        "{}: tensor {} has no place in this family as it is implemented; computing without it could "
                        "give another model's answers",
                        path_, name);
        }
    }
    return {};
}

}  // namespace hetero::model
