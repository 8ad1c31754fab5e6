// The vector backends of x86-64 and Arm. avx2, avx512 and neon are compiled from the same sources (see generic.h); the
// others are one of these with products of packed weights, and of codes of K and V, that use further instructions.
#pragma once
#include "kernels/api/ops.h"
#include "kernels/api/tiles.h"

namespace hetero::kernels {

struct PackedOps {
    decltype(Ops::quantize_activations) quantize_activations;
    decltype(Ops::packed_gemm) packed_gemm;
    decltype(Ops::attention_spans) attention_spans;  // null: the base's own
};

namespace avx2 {
extern const Ops kOps;
bool supported();
}  // namespace avx2
namespace avx2_vnni {
extern const PackedOps kPackedOps;
bool supported();
}  // namespace avx2_vnni
namespace avx512 {
extern const Ops kOps;
// Codes of a page's first rows to f32 [rows][dims], for those that can be.
bool can_widen(const KvView& view, std::size_t dims);
void widen_page(const KvView& view, std::size_t page, std::size_t rows, std::size_t dims, float* out);
bool supported();
}  // namespace avx512
namespace avx512_vnni {
extern const PackedOps kPackedOps;
void codes_attention_spans(const AttentionArgs& args, std::size_t key_begin, std::size_t key_end, std::size_t span,
                           float* parts, std::size_t parts_stride);
bool supported();
}  // namespace avx512_vnni
namespace avx512_bf16 {
void prefill_attention(const AttentionArgs& args);
bool supported();
}  // namespace avx512_bf16
namespace amx {
extern const PackedOps kPackedOps;
extern const TileOps kTileOps;
void prefill_attention(const AttentionArgs& args);
bool supported();
}  // namespace amx
namespace neon {
extern const Ops kOps;
bool supported();
}  // namespace neon
namespace neon_dot {
extern const PackedOps kPackedOps;
bool supported();
}  // namespace neon_dot

}  // namespace hetero::kernels
