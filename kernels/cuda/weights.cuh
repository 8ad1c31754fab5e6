// Weights of any type as the kernels read them: element by element, and for products in chunks of eight.
#pragma once
#include "kernels/common/blocks.h"
#include "kernels/common/half.h"
#include "kernels/cuda/halves.cuh"
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

using blocks::Byte;

// at(row, col): an element of the row that begins at `row`.
struct PlainF32 {
    __device__ static float at(const Byte* row, std::size_t col) { return reinterpret_cast<const float*>(row)[col]; }
};
struct PlainF16 {
    __device__ static float at(const Byte* row, std::size_t col) {
        return f16_to_f32(reinterpret_cast<const std::uint16_t*>(row)[col]);
    }
};
struct PlainBf16 {
    __device__ static float at(const Byte* row, std::size_t col) {
        return bf16_to_f32(reinterpret_cast<const std::uint16_t*>(row)[col]);
    }
};
template <class T>
struct PlainInteger {
    __device__ static float at(const Byte* row, std::size_t col) {
        return static_cast<float>(reinterpret_cast<const T*>(row)[col]);
    }
};
template <class Block, int elems, int bytes>
struct InBlocks {
    __device__ static float at(const Byte* row, std::size_t col) {
        return Block::value(row + col / elems * bytes, static_cast<int>(col % elems));
    }
};

// Eight weights of a row: w[i] = q[i] * scale[i / 4] + min[i / 4], of elements first, first + 1, .. first + 3, and the
// same from first + gap on.
struct Chunk {
    float q[8];
    float scale[2], min[2];
};

// decode(block, k): chunk k of a block of `elems` elements.
struct ChunkTraits {
    static constexpr bool scaled = true, has_min = false;
    static constexpr int gap = 4;
    __device__ static constexpr int first(int k) { return 8 * k; }
};

// Little-endian, from an even address.
__device__ inline std::uint32_t load_even(const Byte* p) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
    return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
}
__device__ inline float half_value(const Byte* p) { return widen<__half>(*reinterpret_cast<const std::uint16_t*>(p)); }
__device__ inline int byte_of(std::uint32_t word, int i) { return static_cast<int>(word >> (8 * i) & 255U); }

struct ChunkF32 : ChunkTraits {
    static constexpr bool scaled = false;
    static constexpr int elems = 8, bytes = 32;
    __device__ static void decode(const Byte* block, int, Chunk& out) {
        for (int i = 0; i < 8; ++i) out.q[i] = reinterpret_cast<const float*>(block)[i];
    }
    __device__ static void decode_aligned(const Byte* block, Chunk& out) {
        const auto* quads = reinterpret_cast<const float4*>(block);
        const float4 a = quads[0], b = quads[1];
        out.q[0] = a.x, out.q[1] = a.y, out.q[2] = a.z, out.q[3] = a.w;
        out.q[4] = b.x, out.q[5] = b.y, out.q[6] = b.z, out.q[7] = b.w;
    }
};
template <class Half>
struct ChunkHalf : ChunkTraits {
    static constexpr bool scaled = false;
    static constexpr int elems = 8, bytes = 16;
    __device__ static void decode(const Byte* block, int, Chunk& out) {
        for (int i = 0; i < 8; ++i) out.q[i] = widen<Half>(reinterpret_cast<const std::uint16_t*>(block)[i]);
    }
    __device__ static void decode_aligned(const Byte* block, Chunk& out) {
        const uint4 words = *reinterpret_cast<const uint4*>(block);
        const unsigned w[4] = {words.x, words.y, words.z, words.w};
        for (int i = 0; i < 8; ++i) out.q[i] = widen<Half>(static_cast<std::uint16_t>(w[i / 2] >> (16 * (i % 2))));
    }
};
struct ChunkI8 : ChunkTraits {
    static constexpr bool scaled = false;
    static constexpr int elems = 8, bytes = 8;
    __device__ static void decode(const Byte* block, int, Chunk& out) {
        for (int i = 0; i < 8; ++i) out.q[i] = static_cast<float>(static_cast<std::int8_t>(block[i]));
    }
    __device__ static void decode_aligned(const Byte* block, Chunk& out) {
        const uint2 words = *reinterpret_cast<const uint2*>(block);
        const unsigned w[2] = {words.x, words.y};
        for (int i = 0; i < 8; ++i) out.q[i] = static_cast<float>(static_cast<std::int8_t>(byte_of(w[i / 4], i % 4)));
    }
};

struct ChunkQ8_0 : ChunkTraits {
    static constexpr int elems = 32, bytes = 34;
    __device__ static void decode(const Byte* block, int k, Chunk& out) {
        out.scale[0] = out.scale[1] = half_value(block);
        const Byte* codes = block + 2 + 8 * k;
        const std::uint32_t w[2] = {load_even(codes), load_even(codes + 4)};
        for (int i = 0; i < 8; ++i) out.q[i] = static_cast<float>(static_cast<std::int8_t>(byte_of(w[i / 4], i % 4)));
    }
};

// Four bytes hold elements j .. j + 3 in their low nibbles and j + 16 .. in the high ones; `has_high`: a fifth bit.
template <bool with_min, bool has_high>
struct ChunkNibbles : ChunkTraits {
    static constexpr bool has_min = with_min;
    static constexpr int high = with_min ? 4 : 2, codes = high + (has_high ? 4 : 0),
                         zero = with_min   ? 0
                                : has_high ? 16
                                           : 8;
    static constexpr int elems = 32, bytes = codes + 16, gap = 16;
    __device__ static constexpr int first(int k) { return 4 * k; }
    __device__ static void decode(const Byte* block, int k, Chunk& out) {
        out.scale[0] = out.scale[1] = half_value(block);
        if (with_min) out.min[0] = out.min[1] = half_value(block + 2);
        const std::uint32_t word = load_even(block + codes + 4 * k);
        const std::uint32_t bits = has_high ? load_even(block + high) >> (4 * k) : 0;
        for (int i = 0; i < 4; ++i) {
            const int byte = byte_of(word, i);
            const int low = (byte & 15) | static_cast<int>(bits >> i & 1U) << 4;
            const int up = byte >> 4 | static_cast<int>(bits >> (16 + i) & 1U) << 4;
            out.q[i] = static_cast<float>(low - zero);
            out.q[4 + i] = static_cast<float>(up - zero);
        }
    }
};

// Groups of 64: 32 bytes, low nibbles first; a scale and a min for each 32.
template <bool has_high>
struct ChunkK45 : ChunkTraits {
    static constexpr bool has_min = true;
    static constexpr int elems = 256, bytes = has_high ? 176 : 144, gap = 32, codes = has_high ? 48 : 16;
    __device__ static constexpr int first(int k) { return 64 * (k / 8) + 4 * (k % 8); }
    __device__ static void decode(const Byte* block, int k, Chunk& out) {
        const int group = k / 8, at = 4 * (k % 8);
        const float d = half_value(block), dmin = half_value(block + 2);
        for (int half = 0; half < 2; ++half) {
            const blocks::ScaleMin sm = blocks::scale_min(block + 4, 2 * group + half);
            out.scale[half] = d * static_cast<float>(sm.scale);
            out.min[half] = -dmin * static_cast<float>(sm.min);
        }
        const std::uint32_t word = load_even(block + codes + 32 * group + at);
        const std::uint32_t bits = has_high ? load_even(block + 16 + at) >> (2 * group) : 0;
        for (int i = 0; i < 4; ++i) {
            const int byte = byte_of(word, i), high = byte_of(bits, i);
            out.q[i] = static_cast<float>((byte & 15) | (high & 1) << 4);
            out.q[4 + i] = static_cast<float>(byte >> 4 | (high & 2) << 3);
        }
    }
};

struct ChunkQ6K : ChunkTraits {
    static constexpr int elems = 256, bytes = 210, gap = 64;
    __device__ static constexpr int first(int k) { return 128 * (k / 16) + 4 * (k % 16); }
    __device__ static void decode(const Byte* block, int k, Chunk& out) {
        const int half = k / 16, at = 4 * (k % 16), plane = at / 32;
        const float d = half_value(block + 208);
        const std::uint32_t word = load_even(block + 64 * half + at);
        const std::uint32_t bits = load_even(block + 128 + 32 * half + at % 32);
        for (int i = 0; i < 2; ++i) {
            const auto scale = static_cast<std::int8_t>(block[192 + (128 * half + at + 64 * i) / 16]);
            out.scale[i] = d * static_cast<float>(scale);
        }
        for (int i = 0; i < 4; ++i) {
            const int byte = byte_of(word, i), high = byte_of(bits, i);
            out.q[i] = static_cast<float>(((byte & 15) | (high >> (2 * plane) & 3) << 4) - 32);
            out.q[4 + i] = static_cast<float>((byte >> 4 | (high >> (2 * plane + 4) & 3) << 4) - 32);
        }
    }
};

template <class Block, int n_elems, int n_bytes>
struct ChunkOf : ChunkTraits {  // of formats that are rarely used: element by element
    static constexpr bool scaled = false;
    static constexpr int elems = n_elems, bytes = n_bytes;
    __device__ static void decode(const Byte* block, int k, Chunk& out) {
        for (int i = 0; i < 8; ++i) out.q[i] = Block::value(block, 8 * k + i);
    }
};

// The eight weights, every operation rounded: the bits of the elements.
template <class C>
__device__ inline void chunk_values(const Chunk& chunk, float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        values[i] = chunk.q[i];
        if constexpr (C::scaled) values[i] = __fmul_rn(values[i], chunk.scale[i / 4]);
        if constexpr (C::has_min) values[i] = __fadd_rn(values[i], chunk.min[i / 4]);
    }
}

[[nodiscard]] inline bool whole_blocks(const DeviceMatrix& w) { return w.cols % dtype_info(w.dtype).block_elems == 0; }

// f(Elements{}, Chunks{}) for a type; false where there are none.
template <class F>
bool with_type(DType type, const F& f) {
    switch (type) {
        case DType::f32:
            return f(PlainF32{}, ChunkF32{}), true;
        case DType::f16:
            return f(PlainF16{}, ChunkHalf<__half>{}), true;
        case DType::bf16:
            return f(PlainBf16{}, ChunkHalf<__nv_bfloat16>{}), true;
        case DType::i8:
            return f(PlainInteger<std::int8_t>{}, ChunkI8{}), true;
        case DType::q8_0:
            return f(InBlocks<blocks::Q8_0, 32, 34>{}, ChunkQ8_0{}), true;
        case DType::q4_0:
            return f(InBlocks<blocks::Q4_0, 32, 18>{}, ChunkNibbles<false, false>{}), true;
        case DType::q4_1:
            return f(InBlocks<blocks::Q4_1, 32, 20>{}, ChunkNibbles<true, false>{}), true;
        case DType::q5_0:
            return f(InBlocks<blocks::Q5_0, 32, 22>{}, ChunkNibbles<false, true>{}), true;
        case DType::q5_1:
            return f(InBlocks<blocks::Q5_1, 32, 24>{}, ChunkNibbles<true, true>{}), true;
        case DType::q2_k:
            return f(InBlocks<blocks::Q2K, 256, 84>{}, ChunkOf<blocks::Q2K, 256, 84>{}), true;
        case DType::q3_k:
            return f(InBlocks<blocks::Q3K, 256, 110>{}, ChunkOf<blocks::Q3K, 256, 110>{}), true;
        case DType::q4_k:
            return f(InBlocks<blocks::Q4K, 256, 144>{}, ChunkK45<false>{}), true;
        case DType::q5_k:
            return f(InBlocks<blocks::Q5K, 256, 176>{}, ChunkK45<true>{}), true;
        case DType::q6_k:
            return f(InBlocks<blocks::Q6K, 256, 210>{}, ChunkQ6K{}), true;
        case DType::iq4_nl:
            return f(InBlocks<blocks::Iq4Nl, 32, 18>{}, ChunkOf<blocks::Iq4Nl, 32, 18>{}), true;
        default:
            return false;
    }
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
