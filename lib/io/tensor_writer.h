// Files of weights, written in order: what each tensor is comes first, then their data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/api/dtype.h"

namespace hetero::io {

struct TensorSpec {
    std::string name;
    kernels::DType dtype = kernels::DType::f32;
    std::vector<std::uint64_t> shape;  // outermost first; blocks of `dtype` lie along the last dimension
    // bad_input where the shape is empty, cannot be counted, or has rows that are not whole blocks.
    [[nodiscard]] Result<std::uint64_t> bytes() const;
};

class TensorWriter {
public:
    virtual ~TensorWriter() = default;
    // The data of the tensors in the order of their specs; a tensor may come in several pieces, and no piece holds
    // data of two tensors.
    virtual Status write(std::span<const std::byte> data) = 0;
    // All data was written. Nothing is published yet.
    virtual Status finish() = 0;
};

}  // namespace hetero::io
