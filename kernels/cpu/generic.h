// All ops, written once for 16 lanes and compiled once per instruction set. A backend's source file names its namespace
// (HETERO_ISA) and its lanes (vec_*.h, dot_*.h), then includes this.
//
// Code here may be merged by the linker with a copy compiled for another instruction set unless it has internal
// linkage: everything stays in the unnamed namespace, and no inline function or template of the standard library is
// called (std::memcpy is no template; std::min is one).
#pragma once
#include "kernels/api/ops.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/f16_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/ref/ref.h"
// In this order: each uses those before it.
#include "kernels/cpu/math.h"
//
#include "kernels/cpu/formats.h"
//
#include "kernels/cpu/linear.h"
//
#include "kernels/cpu/linear_wide.h"
//
#include "kernels/cpu/packed.h"
//
#include "kernels/cpu/attention.h"
//
#include "kernels/cpu/attention_decode.h"
//
#include "kernels/cpu/elementwise.h"
//
#include "kernels/cpu/int8.h"
//
#include "kernels/cpu/kv_codes.h"
//
#include "kernels/cpu/kv_values.h"
//
#include "kernels/cpu/kv_extremes.h"
//
#include "kernels/cpu/kv_blocks.h"
//
#include "kernels/cpu/kv_rotated.h"
//
#include "kernels/cpu/kv_fp8.h"
//
#include "kernels/cpu/ggml_blocks.h"
//
#include "kernels/cpu/kv_widths.h"

namespace hetero::kernels::HETERO_ISA {

#define HETERO_STRING_(x) #x
#define HETERO_STRING(x) HETERO_STRING_(x)

const Ops kOps = {
    .name = HETERO_STRING(HETERO_ISA),
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
    .attention_spans = attention_spans,
    .attention_merge = attention_merge,
    .quantize_i8 = quantize_i8,
    .min_max = min_max,
    .min_max_rows = min_max_rows,
    .min_max_columns = min_max_columns,
    .copy_finite = copy_finite,
    .group_scales = group_scales,
    .encode_rows = encode_rows,
    .encode_columns = encode_columns,
    .quantize_rows = quantize_rows,
    .quantize_columns = quantize_columns,
    .dequantize_rows = dequantize_rows,
    .dequantize_columns = dequantize_columns,
    .rotate_rows = rotate_rows,
    .encode_rotated = encode_rotated,
    .dequantize_rotated = dequantize_rotated,
    .fill_widths = fill_widths,
    .quantize_widths = quantize_widths,
    .dequantize_widths = dequantize_widths,
    .max_difference = max_difference,
    .copy_streaming = copy_streaming,
    .pack_bits = pack_bits,
    .unpack_bits = unpack_bits,
    .hadamard = hadamard,
    .quantize_blocks = quantize_blocks,
    .quantize_fp8 = quantize_fp8,
    .dequantize_fp8 = dequantize_fp8,
};

}  // namespace hetero::kernels::HETERO_ISA
