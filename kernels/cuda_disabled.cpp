#include "kernels/api/device.h"

namespace hetero::kernels {

const DeviceOps* cuda_ops(const char** why_not) noexcept {
    if (why_not != nullptr) *why_not = "this build has no kernels for CUDA";
    return nullptr;
}

}  // namespace hetero::kernels
