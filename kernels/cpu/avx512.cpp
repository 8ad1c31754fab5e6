// AVX-512 F, BW, VL, DQ: from Skylake-SP (2017) and Zen 4 (2022).
#define HETERO_ISA avx512
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/dot_avx512.h"
//
#include "kernels/cpu/generic.h"
