// AVX-512 with VNNI: from Cascade Lake (2019) and Zen 4 (2022).
#include "kernels/cpu/backends.h"
#include "kernels/cpu/f16_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/ref/ref.h"
#define HETERO_ISA avx512_vnni
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/dot_avx512.h"
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

namespace hetero::kernels::avx512_vnni {

void codes_attention_spans(const AttentionArgs& args, std::size_t key_begin, std::size_t key_end, std::size_t span,
                           float* parts, std::size_t parts_stride) {
    attention_spans(args, key_begin, key_end, span, parts, parts_stride);
}

const PackedOps kPackedOps = {
    .quantize_activations = quantize_activations, .packed_gemm = packed_gemm, .attention_spans = codes_attention_spans};

}  // namespace hetero::kernels::avx512_vnni
