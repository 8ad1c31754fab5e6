#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

void fill_experts(DeviceOps&) {}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
