// AVX2 with AVX-VNNI: from Alder Lake (2021) and Zen 5 (2024).
#include "kernels/cpu/backends.h"
#define HETERO_ISA avx2_vnni
#include "kernels/cpu/vec_avx2.h"
//
#include "kernels/cpu/dot_avx2.h"
//
#include "kernels/cpu/packed.h"

namespace hetero::kernels::avx2_vnni {

const PackedOps kPackedOps = {.quantize_activations = quantize_activations, .packed_gemm = packed_gemm};

}  // namespace hetero::kernels::avx2_vnni
