// The rows of one tensor of a plan, gathered from the input.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "convert/plan.h"
#include "io/tensor_source.h"

namespace hetero::convert {

class Rows {
public:
    // Checks the plan against the input: every piece there, of a weight type, its rows within the tensor, and all of
    // them together the shape of the output. A vector is one row, whatever pieces it is made of. A transposed piece is
    // widened to f32 here. `source` and `tensor` must outlive the rows.
    static Result<Rows> open(const io::TensorSource& source, const TensorPlan& tensor);

    [[nodiscard]] std::uint64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::uint64_t cols() const noexcept { return cols_; }
    [[nodiscard]] std::uint64_t source_bytes() const noexcept { return source_bytes_; }

    // A row, widened to f32. May be called by several threads at once.
    void read(std::uint64_t row, std::span<float> out) const;
    // The stored bytes of a row, if they are the row in type `dtype` just as they are; else empty.
    [[nodiscard]] std::span<const std::byte> stored(std::uint64_t row, kernels::DType dtype) const;
    // Of int8 rows that stored() gives.
    [[nodiscard]] float stored_scale(std::uint64_t row) const;

    // All rows have been read: the memory of the input may go.
    void forget() const;

private:
    struct Part {
        const Piece* piece = nullptr;
        const io::TensorView* view = nullptr;
        std::uint64_t first = 0, rows = 0, cols = 0;  // in the output
        std::size_t row_bytes = 0;                    // of the input
        std::vector<float> row_scale;                 // [row of the input]; of i8
        std::vector<float> transposed;                // [rows][cols]
    };
    static Result<Part> open_piece(const io::TensorSource& source, const TensorPlan& tensor, const Piece& piece);
    void widen(const Part& part, std::uint64_t source_row, float* out) const;
    [[nodiscard]] const Part& part_of(std::uint64_t row) const;

    const io::TensorSource* source_ = nullptr;
    const TensorPlan* tensor_ = nullptr;
    std::vector<Part> parts_;
    std::uint64_t rows_ = 0, cols_ = 0, source_bytes_ = 0;
    std::vector<float> given_;  // all values, of a vector made of several pieces or of what no input tensor holds
};

}  // namespace hetero::convert
