#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

void fill_kv(DeviceOps&) {}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
