// AVX2, FMA, F16C: from Haswell (2013) and Zen (2017).
#define HETERO_ISA avx2
#include "kernels/cpu/vec_avx2.h"
//
#include "kernels/cpu/dot_avx2.h"
//
#include "kernels/cpu/generic.h"
