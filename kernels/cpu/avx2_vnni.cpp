// AVX2 with AVX-VNNI: from Alder Lake (2021) and Zen 5 (2024).
#include "kernels/cpu/backends.h"
#include "kernels/cpu/f16_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/ref/ref.h"
#define HETERO_ISA avx2_vnni
#include "kernels/cpu/vec_avx2.h"
//
#include "kernels/cpu/dot_avx2.h"
//
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/packed.h"
//
#include "kernels/cpu/formats.h"
//
#include "kernels/cpu/attention.h"
//
#include "kernels/cpu/attention_decode.h"

namespace hetero::kernels::avx2_vnni {

const PackedOps kPackedOps = {
    .quantize_activations = quantize_activations, .packed_gemm = packed_gemm, .attention_spans = attention_spans};

}  // namespace hetero::kernels::avx2_vnni
