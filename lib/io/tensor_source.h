// Named tensors in files of weights, whatever the container. Views stay valid as long as the source lives.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/api/dtype.h"

namespace hetero::io {

struct TensorView {
    kernels::DType dtype = kernels::DType::f32;
    std::vector<std::uint64_t> shape;  // outermost first, as in NumPy (a GGUF's ne, reversed)
    std::span<const std::byte> bytes;  // row-major, blocks along the last dimension
    std::string file;                  // the file that holds it
};

class TensorSource {
public:
    virtual ~TensorSource() = default;
    // nullptr where there is no such tensor, or where it is stored in a type that has no DType; why() tells which.
    [[nodiscard]] virtual const TensorView* find(std::string_view name) const = 0;
    // Why `find(name)` gives nullptr: one line that names file, tensor and, where it is the reason, the stored type.
    [[nodiscard]] virtual std::string why(std::string_view name) const;
    // All names, sorted bytewise, those of unsupported types included.
    [[nodiscard]] virtual const std::vector<std::string>& names() const = 0;
    // The data of `view` will not be needed for a while: its memory may be given back. The view stays valid.
    virtual void forget(const TensorView& view) const;
};

}  // namespace hetero::io
