// cuBLASLt, found at run time: the toolkit's library is half a gigabyte and not everywhere where a driver is. Where it
// is missing, gemm.cu multiplies.
#pragma once
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// A handle and its workspace, for one stream; null: there is no library. In the emulator there never is.
[[nodiscard]] MatrixLibrary* open_library(int device);
void close_library(MatrixLibrary* library);

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
