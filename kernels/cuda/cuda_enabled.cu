#include "kernels/cuda/launch.h"

namespace hetero::kernels {

const DeviceOps* cuda_ops(const char** why_not) noexcept {
    struct Found {
        const DeviceOps* ops = nullptr;
        const char* why_not = nullptr;
    };
    static const Found found = [] {
        int count = 0;
        const cudaError_t error = cudaGetDeviceCount(&count);
        if (error != cudaSuccess) (void)cudaGetLastError();
        if (error == cudaErrorInsufficientDriver) {
            int version = 0;
            (void)cudaDriverGetVersion(&version);
            return version == 0 ? Found{nullptr, "there is no NVIDIA driver"}
                                : Found{nullptr, "the NVIDIA driver is older than the CUDA runtime of this build"};
        }
        if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
            return Found{nullptr, "there is no NVIDIA GPU"};
        if (error != cudaSuccess) return Found{nullptr, cudaGetErrorString(error)};
        return Found{&cuda::table(), nullptr};
    }();
    if (why_not != nullptr) *why_not = found.why_not;
    return found.ops;
}

}  // namespace hetero::kernels
