// AVX-512 with VNNI: from Cascade Lake (2019) and Zen 4 (2022).
#include "kernels/cpu/backends.h"
#define HETERO_ISA avx512_vnni
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/dot_avx512.h"
//
#include "kernels/cpu/packed.h"

namespace hetero::kernels::avx512_vnni {

const PackedOps kPackedOps = {.quantize_activations = quantize_activations, .packed_gemm = packed_gemm};

}  // namespace hetero::kernels::avx512_vnni
