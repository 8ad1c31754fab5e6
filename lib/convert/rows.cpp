#include "convert/rows.h"

#include <algorithm>

#include "base/printable.h"
#include "kernels/api/ops.h"
#include "model/quantization.h"

namespace hetero::convert {
namespace {

using kernels::DType;

// Rows and columns of a tensor: all dimensions but the last are rows.
struct Matrix {
    std::uint64_t rows = 1, cols = 0;
};
Matrix as_matrix(const std::vector<std::uint64_t>& shape) {
    Matrix matrix;
    if (shape.empty()) return {1, 1};
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) matrix.rows *= shape[i];
    matrix.cols = shape.back();
    return matrix;
}

// Where row `row` of the output of a piece comes from, among the rows of the piece.
std::uint64_t source_row(const Piece& piece, std::uint64_t row) {
    if (piece.order == RowOrder::as_is) return row;
    const std::uint64_t head = row / piece.head_rows * piece.head_rows, within = row % piece.head_rows;
    if (within < piece.rotary_first || within >= piece.rotary_first + piece.rotary_rows) return row;
    const std::uint64_t at = within - piece.rotary_first, half = piece.rotary_rows / 2;
    const std::uint64_t from = piece.order == RowOrder::interleave ? at / 2 + (at % 2) * half
                               : at < half                         ? 2 * at
                                                                   : 2 * (at - half) + 1;
    return head + piece.rotary_first + from;
}

bool sound(const Piece& piece) {
    if (piece.order == RowOrder::as_is) return true;
    return piece.head_rows > 0 && piece.rows % piece.head_rows == 0 && piece.rotary_rows % 2 == 0 &&
           piece.rotary_first + piece.rotary_rows <= piece.head_rows && !piece.transpose;
}

}  // namespace

Result<Rows::Part> Rows::open_piece(const io::TensorSource& source, const TensorPlan& tensor, const Piece& piece) {
    Part part;
    part.piece = &piece;
    part.view = source.find(piece.source);
    if (part.view == nullptr) return fail(Errc::bad_input, "{}", source.why(piece.source));
    const io::TensorView& view = *part.view;
    const std::string name = printable(piece.source);
    if (view.dtype == DType::u8 || view.dtype == DType::i32) {
        return fail(Errc::bad_input, "{}: tensor {} is of type {}, which no weight has", view.file, name,
                    kernels::dtype_info(view.dtype).name);
    }
    const kernels::DTypeInfo& info = kernels::dtype_info(view.dtype);
    const Matrix stored = as_matrix(view.shape);
    const bool by_element = piece.cols == 1 && info.block_elems == 1;
    const Matrix matrix{by_element ? stored.rows * stored.cols : stored.rows, piece.cols};
    if ((piece.cols != stored.cols && !by_element) || piece.first_row > matrix.rows ||
        piece.rows > matrix.rows - piece.first_row || !sound(piece)) {
        return fail(Errc::internal, "plan of {}: rows {} to {} of {} elements of {}, which has {} of {}", tensor.name,
                    piece.first_row, piece.first_row + piece.rows, piece.cols, name, stored.rows, stored.cols);
    }
    if (matrix.cols % info.block_elems != 0) {
        return fail(Errc::bad_input, "{}: tensor {}: rows of {} elements are not whole {} blocks", view.file, name,
                    matrix.cols, info.name);
    }
    part.row_bytes = kernels::dtype_bytes(view.dtype, matrix.cols);
    if (view.bytes.size() != part.row_bytes * matrix.rows) {
        return fail(Errc::bad_input, "{}: tensor {} has {} bytes, expected {}", view.file, name, view.bytes.size(),
                    part.row_bytes * matrix.rows);
    }
    if (view.dtype == DType::i8) {
        const io::TensorView* scale = source.find(model::row_scale_name(piece.source));
        const bool fits =
            scale != nullptr && as_matrix(scale->shape).rows * as_matrix(scale->shape).cols == matrix.rows;
        if (!fits || (scale->dtype != DType::f32 && scale->dtype != DType::bf16 && scale->dtype != DType::f16)) {
            return fail(Errc::bad_input, "{}: tensor {} is int8, but has no scale for each of its {} rows", view.file,
                        name, matrix.rows);
        }
        part.row_scale.resize(matrix.rows);
        kernels::ops().dequantize(scale->dtype, scale->bytes.data(), part.row_scale.data(), matrix.rows);
    }
    part.rows = piece.transpose ? matrix.cols : piece.rows;
    part.cols = piece.transpose ? piece.rows : matrix.cols;
    return part;
}

Result<Rows> Rows::open(const io::TensorSource& source, const TensorPlan& tensor) {
    Rows rows;
    rows.source_ = &source;
    rows.tensor_ = &tensor;
    const Matrix out = as_matrix(tensor.shape);
    rows.cols_ = out.cols;
    std::uint64_t elements = 0;
    bool even = true;
    for (const Piece& piece : tensor.pieces) {
        HETERO_TRY(Part part, open_piece(source, tensor, piece));
        part.first = rows.rows_;
        rows.rows_ += part.rows;
        elements += part.rows * part.cols;
        even = even && part.cols == out.cols;
        rows.source_bytes_ += part.row_bytes * piece.rows;
        rows.parts_.push_back(std::move(part));
    }
    const bool is_vector = tensor.shape.size() == 1;
    if (!tensor.values.empty() && rows.parts_.empty()) {
        rows.rows_ = out.rows;
        rows.given_ = tensor.values;
        elements = tensor.values.size();
    }
    if (elements == 0 || elements != out.rows * out.cols || (!is_vector && !even)) {
        return fail(Errc::internal, "plan of {}: its pieces have {} elements in all, it has {}", tensor.name, elements,
                    out.rows * out.cols);
    }
    for (Part& part : rows.parts_) {
        if (!part.piece->transpose) continue;
        std::vector<float> line(part.rows);
        part.transposed.resize(part.rows * part.cols);
        for (std::uint64_t col = 0; col < part.cols; ++col) {
            rows.widen(part, part.piece->first_row + col, line.data());
            for (std::uint64_t row = 0; row < part.rows; ++row) part.transposed[row * part.cols + col] = line[row];
        }
    }
    if (is_vector && rows.rows_ != 1) {
        rows.given_.resize(out.cols);
        float* at = rows.given_.data();
        for (const Part& part : rows.parts_) {
            for (std::uint64_t row = 0; row < part.rows; ++row, at += part.cols) {
                rows.widen(part, part.piece->first_row + source_row(*part.piece, row), at);
            }
        }
        rows.rows_ = 1;
    }
    return rows;
}

void Rows::widen(const Part& part, std::uint64_t row, float* out) const {
    const std::size_t n = part.piece->transpose ? part.rows : part.cols;
    kernels::ops().dequantize(part.view->dtype, part.view->bytes.data() + row * part.row_bytes, out, n);
    if (!part.row_scale.empty()) kernels::ops().scale(out, part.row_scale[row], n);
}

const Rows::Part& Rows::part_of(std::uint64_t row) const {
    const auto next = std::upper_bound(parts_.begin(), parts_.end(), row,
                                       [](std::uint64_t value, const Part& part) { return value < part.first; });
    return *(next - 1);
}

void Rows::read(std::uint64_t row, std::span<float> out) const {
    if (!given_.empty()) {
        std::copy_n(given_.begin() + static_cast<std::ptrdiff_t>(row * cols_), cols_, out.begin());
    } else {
        const Part& part = part_of(row);
        const std::uint64_t within = row - part.first;
        if (part.piece->transpose) {
            const auto begin = part.transposed.begin() + static_cast<std::ptrdiff_t>(within * part.cols);
            std::copy_n(begin, part.cols, out.begin());
        } else {
            widen(part, part.piece->first_row + source_row(*part.piece, within), out.data());
        }
    }
    if (tensor_->add != 0) {
        for (float& value : out) value += tensor_->add;
    }
}

std::span<const std::byte> Rows::stored(std::uint64_t row, DType dtype) const {
    if (!given_.empty() || tensor_->add != 0) return {};
    const Part& part = part_of(row);
    if (part.view->dtype != dtype || part.piece->transpose) return {};
    const std::uint64_t from = part.piece->first_row + source_row(*part.piece, row - part.first);
    return part.view->bytes.subspan(from * part.row_bytes, part.row_bytes);
}

float Rows::stored_scale(std::uint64_t row) const {
    const Part& part = part_of(row);
    return part.row_scale[part.piece->first_row + source_row(*part.piece, row - part.first)];
}

void Rows::forget() const {
    for (const Part& part : parts_) source_->forget(*part.view);
}

}  // namespace hetero::convert
