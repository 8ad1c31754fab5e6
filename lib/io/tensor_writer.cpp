#include "io/tensor_writer.h"

namespace hetero::io {

Result<std::uint64_t> TensorSpec::bytes() const {
    const kernels::DTypeInfo& info = kernels::dtype_info(dtype);
    if (shape.empty()) return fail(Errc::bad_input, "tensor '{}' has no dimensions", name);
    if (shape.back() % info.block_elems != 0) {
        return fail(Errc::bad_input, "tensor '{}' has rows of {} elements, not a multiple of the {} of a {} block",
                    name, shape.back(), info.block_elems, info.name);
    }
    std::uint64_t total = info.block_bytes;
    bool countable = !__builtin_mul_overflow(total, shape.back() / info.block_elems, &total);
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
        countable = countable && !__builtin_mul_overflow(total, shape[i], &total);
    }
    if (!countable) return fail(Errc::bad_input, "tensor '{}' has more bytes than can be counted", name);
    return total;
}

}  // namespace hetero::io
