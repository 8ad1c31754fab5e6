// The scalar backend: it defines what each op means, and is what a CPU without a backend of its own runs.
// Signatures and meanings: kernels/api/ops.h. Sums are taken in double and rounded once.
#pragma once
#include "kernels/api/ops.h"
#include "kernels/api/tiles.h"
#include "kernels/common/half.h"

namespace hetero::kernels::ref {

extern const Ops kOps;

// convert.cpp, and of one value
using kernels::bf16_to_f32;
using kernels::f16_to_f32;
using kernels::f32_to_bf16;
using kernels::f32_to_f16;
void f32_to_f16(const float* src, std::uint16_t* dst, std::size_t n);
void f32_to_bf16(const float* src, std::uint16_t* dst, std::size_t n);
void f16_to_f32(const std::uint16_t* src, float* dst, std::size_t n);
void bf16_to_f32(const std::uint16_t* src, float* dst, std::size_t n);

// dequantize.cpp
void dequantize(DType type, const void* src, float* dst, std::size_t n);

// linear.cpp
void gemv(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
          std::size_t cols, const float* x, float* y);
void gemm(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
          std::size_t cols, const float* x, std::size_t x_stride, std::size_t n_tokens, float* y, std::size_t y_stride);

// packed.cpp
void quantize_activations(const float* x, std::size_t x_stride, std::size_t n_tokens, std::size_t cols, void* out,
                          float* residual);
void packed_gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
                 const void* activations, const void* residual, std::size_t n_tokens, float* y, std::size_t y_stride);

// The weight that a packed matrix (api/packed.h) stands for, before any rounding.
float packed_weight(Packing packing, const void* packed, std::size_t row, std::size_t col, std::size_t cols);

// tiles.cpp
extern const TileOps kTileOps;
void tile_gemm(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
               const Bf16* x, std::size_t n_tokens, bool add, float* y, std::size_t y_stride);
void tile_gated_gemm(const PackedRows& gate, const PackedRows& up, std::size_t row_begin, std::size_t row_end,
                     std::size_t cols, const Bf16* x, std::size_t n_tokens, const TileColumns& out);

// elementwise.cpp
void rms_norm(const float* x, const float* w, float* y, std::size_t n, float eps);
void layer_norm(const float* x, const float* w, const float* b, float* y, std::size_t n, float eps);
void rope(const float* src, float* dst, std::size_t n_heads, std::size_t head_dim, const RopeTable& table,
          std::size_t position, RopePairing pairing);
void silu_mul(const float* gate, const float* up, float* y, std::size_t n);
void gelu_tanh(const float* x, float* y, std::size_t n);
void gelu_erf(const float* x, float* y, std::size_t n);
void softcap(float* x, float cap, std::size_t n);
void add(const float* x, float* y, std::size_t n);
void mul(const float* x, float* y, std::size_t n);
void scale(float* x, float factor, std::size_t n);

// attention.cpp
void attention(const AttentionArgs& args);
void attention_spans(const AttentionArgs& args, std::size_t key_begin, std::size_t key_end, std::size_t span,
                     float* parts, std::size_t parts_stride);
void attention_merge(const float* parts, std::size_t n_spans, std::size_t head_dim, float* out);

// int8.cpp
void quantize_i8(const float* x, float scale, std::int8_t* q, std::size_t n);
bool min_max(const float* x, std::size_t n, float* min, float* max);

// kv_codes.cpp
void pack_bits(int bits, const std::uint8_t* codes, std::uint8_t* packed, std::size_t n);
void unpack_bits(int bits, bool is_signed, const std::uint8_t* packed, std::uint8_t* codes, std::size_t n);
void hadamard(const float* x, float* y, std::size_t blocks, std::size_t n);

// kv_blocks.cpp
bool min_max_rows(const KvValues& x, float* min, float* max);
bool min_max_columns(const KvValues& x, float* min, float* max);
bool copy_finite(const KvValues& x, void* y, std::size_t y_stride);
bool group_scales(const float* min, const float* max, std::size_t n, int levels, std::uint16_t* scale,
                  std::uint16_t* zero);
bool encode_rows(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                 std::size_t q_stride, float* error, bool streaming);
bool encode_columns(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                    std::size_t q_stride, float* error, bool streaming);
void quantize_rows(const KvValues& x, const float* scale, const float* zero, bool is_signed, std::uint8_t* q,
                   std::size_t q_stride, float* error);
void quantize_columns(const KvValues& x, const float* scale, const float* zero, bool is_signed, std::uint8_t* q,
                      std::size_t q_stride, float* error);
bool dequantize_rows(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale, const float* zero,
                     const KvOutput& x, float* error);
bool dequantize_columns(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero, const KvOutput& x, float* error);
void rotate_rows(const KvValues& x, float* y);
bool dequantize_rotated(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero, const KvOutput& x, float* error);
bool encode_rotated(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                    std::size_t q_stride, float* error, bool streaming);
void quantize_fp8(Fp8 format, const KvValues& x, const float* scale, std::uint8_t* q, std::size_t q_stride,
                  float* error);
bool dequantize_fp8(Fp8 format, const std::uint8_t* q, std::size_t q_stride, const float* scale, const KvOutput& x,
                    float* error);
void max_difference(const KvValues& x, const float* y, float* error);
void copy_streaming(void* to, const void* from, std::size_t bytes);

// ggml_blocks.cpp
bool quantize_blocks(DType type, const float* x, std::size_t n, void* out);

// kv_widths.cpp
void fill_widths(const float* range, std::size_t n, int mean_width, std::uint8_t* width, float* step);
void quantize_widths(const KvValues& x, const float* step, const float* zero, const std::uint8_t* width,
                     std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, float* error);
bool dequantize_widths(const std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, const float* step,
                       const float* zero, const std::uint8_t* width, const KvOutput& x, float* error);

}  // namespace hetero::kernels::ref
