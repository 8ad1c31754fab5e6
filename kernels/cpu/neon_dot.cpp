// Advanced SIMD with 8-bit dot products: from Cortex-A76 (2018), Neoverse N1, Apple M1.
#include "kernels/cpu/backends.h"
#define HETERO_ISA neon_dot
#include "kernels/cpu/vec_neon.h"
//
#include "kernels/cpu/dot_neon.h"
//
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/packed.h"

namespace hetero::kernels::neon_dot {

const PackedOps kPackedOps = {
    .quantize_activations = quantize_activations, .packed_gemm = packed_gemm, .attention_spans = nullptr};

}  // namespace hetero::kernels::neon_dot
