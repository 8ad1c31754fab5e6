// Weights repacked for products with 8-bit activations, and those activations.
//
// Packed weights are groups of 16 rows; a group is the blocks of 32 columns, one after the other; the last group and
// the last block are filled up with zeros. A block keeps, for its 16 rows r and 32 columns c,
//   codes  4 bits: byte 64 p + 4 r + i holds c = 4 p + i in its low nibble and c = 16 + 4 p + i in its high one (p, i <
//   4);
//          8 bits: byte 64 j + 4 r + i holds c = 4 j + i (j < 8, i < 4), so that four columns of a row are a 32-bit
//          lane
//   high   5 bits only, after the nibbles: bit 4 r + i of the little-endian 64-bit word j is bit 4 of c = 4 j + i
//   scale  f16[16], by row
//   min    f16[16], by row, where the packing has one
// and stands for w[r][c] = scale[r] * (code[r][c] - zero) + min[r].
//
// Activations are quantized in the same blocks: q[c] = x[c] * (127 / a) rounded to the nearest even, a = max |x| of the
// block; scale = a / 127; sum = the sum of q. See ActivationLayout for where they lie.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"

namespace hetero::kernels {

constexpr std::size_t packed_rows = 16, packed_cols = 32;  // of a block

enum class Packing : std::uint8_t { u4, u4_min, u5, u5_min, u8, u8_min, count_ };

struct PackingInfo {
    const char* name;  // "u4_min"
    int bits, zero;
    bool has_min;
    std::size_t code_bytes;   // of a block, high bits included
    std::size_t block_bytes;  // codes, scales and mins
};

[[nodiscard]] const PackingInfo& packing_info(Packing packing) noexcept;

// How a weight type is packed. q4_0, q4_1, q5_0, q5_1, q8_0 and iq4_nl keep their values; q4_k and q5_k keep their
// codes, with scale * d and min * dmin rounded to f16; f32, f16, bf16, q2_k, q3_k, q6_k and i8 are rounded to 8 bits
// per block of 32.
[[nodiscard]] Packing packing_of(DType type) noexcept;

// Bytes of a packed matrix of `rows` x `cols`; both are rounded up to whole blocks.
[[nodiscard]] std::size_t packed_bytes(Packing packing, std::size_t rows, std::size_t cols) noexcept;

// Packs groups [group_begin, group_end) of 16 rows of w [rows][cols] (row_bytes from row to row) to where they belong
// in `packed`. Groups may be packed by several threads. A weight beyond the range of the packing becomes infinite or
// NaN.
void pack(DType type, const void* w, std::size_t row_bytes, std::size_t rows, std::size_t cols, std::size_t group_begin,
          std::size_t group_end, void* packed) noexcept;

// Quantized activations of n tokens lie in tiles of 16 tokens; the last tile has what is left. A tile of m tokens is
// its blocks one after the other, each int8 q[m][32], f32 scale[m], f32 weighted[m] (scale * sum), int32 sum[m]. So a
// range of tokens that begins at a multiple of 16 and ends at one, or at n, can be used alone.
constexpr std::size_t activation_tile = 16;                          // tokens
constexpr std::size_t activation_block_bytes = packed_cols + 3 * 4;  // of one token

[[gnu::always_inline]] constexpr std::size_t packed_blocks(std::size_t cols) {
    return (cols + packed_cols - 1) / packed_cols;
}
// Bytes of n tokens; also the offset of token n where n is a multiple of 16.
[[gnu::always_inline]] constexpr std::size_t activation_bytes(std::size_t n_tokens, std::size_t cols) {
    return n_tokens * packed_blocks(cols) * activation_block_bytes;
}

}  // namespace hetero::kernels
