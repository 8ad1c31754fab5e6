// Takes a model's tensors by name, with the shape that the configuration asks for.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/tensor_source.h"
#include "model/program.h"

namespace hetero::model {

class WeightReader {
public:
    // `int8_rows`: the configuration says that int8 matrices have a scale for each row, NAME_scale.
    WeightReader(const io::TensorSource& source, std::string path, bool int8_rows = false)
        : source_(source), path_(std::move(path)), int8_rows_(int8_rows) {}

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] bool has(std::string_view name) const;  // whatever its type
    // Rows of a matrix whose number only the file tells; at most `limit`.
    Result<std::uint32_t> rows_of(const std::string& name, std::uint32_t limit) const;
    // Missing, of another shape, or of a type that is no weight type: bad_input naming file, tensor, expected and
    // found.
    Result<Matrix> matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols);
    // A tensor [count][rows][cols] as one matrix of count * rows rows.
    Result<Matrix> stacked(const std::string& name, std::uint64_t count, std::uint64_t rows, std::uint64_t cols);
    // A value that is not finite is refused too.
    Result<Vector> vector(const std::string& name, std::uint64_t size);
    // matrix() with the vector `bias_name` as its bias.
    Result<Matrix> matrix(const std::string& name, const std::string& bias_name, std::uint64_t rows,
                          std::uint64_t cols);

    // Refuses tensors that were not taken: they belong to arithmetic that is not implemented (a bias, say).
    // Names that end with one of `harmless`, or begin with one of `elsewhere`, are let pass.
    [[nodiscard]] Status refuse_unused(const std::vector<std::string_view>& harmless,
                                       const std::vector<std::string>& elsewhere = {}) const;
    [[nodiscard]] std::uint64_t bytes_taken() const noexcept { return bytes_; }

private:
    Result<Matrix> take_matrix(const std::string& name, const std::vector<std::uint64_t>& shape);
    Result<const io::TensorView*> take(const std::string& name, const std::vector<std::uint64_t>& shape);
    Result<std::vector<float>> floats(const std::string& name, const io::TensorView& view, std::uint64_t size) const;
    Result<std::vector<float>> row_scale(const std::string& matrix_name, std::uint64_t rows);
    const io::TensorSource& source_;
    std::string path_;
    std::set<std::string, std::less<>> taken_;
    std::uint64_t bytes_ = 0;
    bool int8_rows_;
};

}  // namespace hetero::model
