// Advanced SIMD, which every 64-bit Arm CPU has.
#define HETERO_ISA neon
#include "kernels/cpu/vec_neon.h"
//
#include "kernels/cpu/dot_neon.h"
//
#include "kernels/cpu/generic.h"
