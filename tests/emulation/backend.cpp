#include "emulation.h"
#include "kernels/cuda/launch.h"

namespace hetero::kernels {

const DeviceOps& emulated_ops() { return emulated::table(); }

}  // namespace hetero::kernels
