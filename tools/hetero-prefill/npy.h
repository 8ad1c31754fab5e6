// Float32 matrices as NumPy .npy files (format 1.0,
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "io/atomic_file.h"

namespace hetero::tool {

class NpyWriter {
public:
    // The shape comes first in the file, so the number of rows must be known.
    static Result<NpyWriter> create(const std::string& path, std::uint64_t rows, std::uint64_t cols,
                                    io::Overwrite overwrite);
    Status write_row(std::span<const float> row);
    Status publish();  // refuses (internal) unless all rows came

private:
    NpyWriter(io::AtomicFile file, std::uint64_t rows, std::uint64_t cols)
        : file_(std::move(file)), rows_left_(rows), cols_(cols) {}
    io::AtomicFile file_;
    std::uint64_t rows_left_, cols_;
};

}  // namespace hetero::tool
