// cuBLASLt, found at run time: the toolkit's library is half a gigabyte and not everywhere where a driver is. Where it
// is missing, gemm.cu multiplies.
#pragma once
#include "kernels/cuda/launch.h"
#include "kernels/cuda/result.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// A handle, and from its first product on a workspace, for one stream; null: there is no library. In the emulator there
// never is.
[[nodiscard]] MatrixLibrary* open_library(int device);
void close_library(MatrixLibrary* library);

// y = x w^T into out.y, added to it with out.add, then out.bias; out's scales are not looked at. Of 8-bit integers y is
// int32. Strides in elements. `done` stays false where the library has no product for these.
[[nodiscard]] DeviceFault multiply_by_library(DeviceStream stream, DeviceInput type, const DeviceMatrix& w,
                                              std::size_t w_stride, const DeviceRows& x, std::size_t n_tokens,
                                              const Result& out, bool& done);

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
