// What this CPU and its operating system can run. Compiled for the plainest CPU.
#include "kernels/cpu/backends.h"

namespace hetero::kernels {

bool avx2::supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool avx512::supported() {
    return avx2::supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace hetero::kernels
