#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {

const Ops kOps = {
    .name = "scalar",
    .f32_to_f16 = f32_to_f16,
    .f32_to_bf16 = f32_to_bf16,
    .f16_to_f32 = f16_to_f32,
    .bf16_to_f32 = bf16_to_f32,
    .dequantize = dequantize,
    .gemv = gemv,
    .gemm = gemm,
    .quantize_activations = quantize_activations,
    .packed_gemm = packed_gemm,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .rope = rope,
    .silu_mul = silu_mul,
    .gelu_tanh = gelu_tanh,
    .gelu_erf = gelu_erf,
    .softcap = softcap,
    .add = add,
    .mul = mul,
    .scale = scale,
    .attention = attention,
    .quantize_i8 = quantize_i8,
    .quantize_u8 = quantize_u8,
    .dequantize_i8 = dequantize_i8,
    .dequantize_u8 = dequantize_u8,
    .min_max = min_max,
    .min_max_columns = min_max_columns,
    .quantize_columns = quantize_columns,
    .dequantize_columns = dequantize_columns,
    .pack_bits = pack_bits,
    .unpack_bits = unpack_bits,
    .hadamard = hadamard,
    .quantize_fp8 = quantize_fp8,
};

}  // namespace hetero::kernels::ref
