// How kernels find and read the rows of K and V in the pages (DeviceKv).
#pragma once
#include "kernels/common/codes.h"
#include "kernels/common/fp8.h"
#include "kernels/common/half.h"
#include "kernels/cuda/halves.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

inline constexpr int page_tokens = static_cast<int>(kKvPageTokens);

// What a kernel was compiled to read; which codes is told by DeviceKv.
enum class Stored { f32, f16, bf16, codes };

inline Stored stored_as(const DeviceKv& kv) {
    if (kv.codes != KvCodes::floats) return Stored::codes;
    return kv.dtype == DType::f32 ? Stored::f32 : kv.dtype == DType::f16 ? Stored::f16 : Stored::bf16;
}

__device__ inline std::byte* tile_of(const DeviceKv& kv, std::size_t page, std::size_t head) {
    return kv.memory + page * kv.page_bytes + kv.offset + head * kv.head_bytes;
}
// The row of a token in the tail of its sequence.
__device__ inline std::uint16_t* tail_row(const DeviceKv& kv, std::uint16_t* tail, std::size_t head,
                                          std::size_t token) {
    return tail + kv.tail_offset + (head * kv.group_tokens + token % kv.group_tokens) * kv.head_dim;
}

// A chunk is eight dims of a row, in one or two loads where they lie well.
inline constexpr int chunk_dims = 8;
__host__ __device__ inline int chunks_of(int dims) { return (dims + chunk_dims - 1) / chunk_dims; }

__device__ inline bool is_aligned(const void* p, std::uintptr_t bytes) {
    return (reinterpret_cast<std::uintptr_t>(p) & (bytes - 1)) == 0;
}
template <class T>
__device__ inline void read_plain(const T* from, int n, T (&x)[chunk_dims]) {
    using Wide = uint4;
    constexpr int per_load = static_cast<int>(sizeof(Wide) / sizeof(T));
    if (n == chunk_dims && is_aligned(from, sizeof(Wide))) {
#pragma unroll
        for (int i = 0; i < chunk_dims; i += per_load) {
            const Wide wide = *reinterpret_cast<const Wide*>(from + i);
            memcpy(&x[i], &wide, sizeof wide);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < chunk_dims; ++i) x[i] = i < n ? from[i] : T{};
}

__device__ inline float f16_at(const std::byte* tile, std::size_t offset, std::size_t index) {
    return widen<__half>(*reinterpret_cast<const std::uint16_t*>(tile + offset + 2 * index));
}
__device__ inline float code_value(KvCodes codes, unsigned code) {
    switch (codes) {
        case KvCodes::i8:
            return static_cast<float>(static_cast<std::int8_t>(code));
        case KvCodes::i4:
            return static_cast<float>(static_cast<int>(code ^ 8U) - 8);
        case KvCodes::e4m3fn:
            return e4m3fn_to_f32(static_cast<std::uint8_t>(code));
        default:
            return static_cast<float>(code);
    }
}
__device__ inline void code_values(KvCodes codes, const std::uint8_t (&q)[chunk_dims], float (&x)[chunk_dims]) {
    const auto all = [&](auto value) {
#pragma unroll
        for (int i = 0; i < chunk_dims; ++i) x[i] = value(q[i]);
    };
    switch (codes) {  // once for all
        case KvCodes::i8:
            return all([](unsigned code) { return code_value(KvCodes::i8, code); });
        case KvCodes::i4:
            return all([](unsigned code) { return code_value(KvCodes::i4, code); });
        case KvCodes::e4m3fn:
            return all([](unsigned code) { return code_value(KvCodes::e4m3fn, code); });
        default:
            return all([](unsigned code) { return code_value(KvCodes::u8, code); });
    }
}
// Whether dims in order share scales by eights.
__device__ inline bool groups_hold_chunks(const DeviceKv& kv) {
    return kv.group != 0 && (kv.group % chunk_dims == 0 || kv.group == kv.head_dim);
}
__device__ inline std::size_t scale_index(const DeviceKv& kv, int row, int dim) {
    if (kv.group != 0) return static_cast<std::size_t>(dim) / kv.group * page_tokens + static_cast<std::size_t>(row);
    return static_cast<std::size_t>(row) / kv.group_tokens * kv.head_dim + static_cast<std::size_t>(dim);
}

// n <= 8 dims, from `dim` on, a multiple of 8, of row `row` of a tile; zeros beyond n.
template <Stored S>
__device__ inline void read_row(const DeviceKv& kv, const std::byte* tile, int row, int dim, int n,
                                float (&x)[chunk_dims]) {
    const std::size_t at = static_cast<std::size_t>(row) * kv.token_stride + static_cast<std::size_t>(dim);
    if constexpr (S == Stored::f32) {
        read_plain(reinterpret_cast<const float*>(tile) + at, n, x);
    } else if constexpr (S != Stored::codes) {
        std::uint16_t bits[chunk_dims];
        read_plain(reinterpret_cast<const std::uint16_t*>(tile) + at, n, bits);
#pragma unroll
        for (int i = 0; i < chunk_dims; ++i) x[i] = S == Stored::f16 ? widen<__half>(bits[i]) : bf16_to_f32(bits[i]);
    } else {
        std::uint8_t codes[chunk_dims];
        if (is_paired(kv.codes)) {
            std::uint8_t bytes[chunk_dims / 2];
            const auto* from = reinterpret_cast<const std::uint8_t*>(tile) + at / 2;
            if (n == chunk_dims && is_aligned(from, sizeof bytes)) {
                const unsigned wide = *reinterpret_cast<const unsigned*>(from);
                memcpy(bytes, &wide, sizeof bytes);
            } else {
                for (int i = 0; i < chunk_dims / 2; ++i) bytes[i] = 2 * i < n ? from[i] : std::uint8_t{0};
            }
#pragma unroll
            for (int i = 0; i < chunk_dims; ++i)
                codes[i] = static_cast<std::uint8_t>(i % 2 == 0 ? bytes[i / 2] & 15U : bytes[i / 2] >> 4);
        } else {
            const auto* from = reinterpret_cast<const std::uint8_t*>(tile) + at;
            if (n == chunk_dims && is_aligned(from, sizeof(uint2))) {
                const uint2 wide = *reinterpret_cast<const uint2*>(from);
                memcpy(codes, &wide, sizeof wide);
            } else {
                for (int i = 0; i < chunk_dims; ++i) codes[i] = i < n ? from[i] : std::uint8_t{0};
            }
        }
        code_values(kv.codes, codes, x);
        if (groups_hold_chunks(kv)) {
            const std::size_t index = scale_index(kv, row, dim);
            const float scale = f16_at(tile, kv.scale_offset, index);
            const float zero = kv.zero_offset != 0 ? f16_at(tile, kv.zero_offset, index) : 0;
#pragma unroll
            for (int i = 0; i < chunk_dims; ++i) x[i] = i < n ? fmaf(x[i], scale, zero) : 0.0F;
            return;
        }
#pragma unroll
        for (int i = 0; i < chunk_dims; ++i) {
            const std::size_t index = scale_index(kv, row, i < n ? dim + i : dim);
            const float scale = f16_at(tile, kv.scale_offset, index);
            const float zero = kv.zero_offset != 0 ? f16_at(tile, kv.zero_offset, index) : 0;
            x[i] = i < n ? fmaf(x[i], scale, zero) : 0.0F;
        }
    }
}

// The same of f16 values in a tail.
__device__ inline void read_tail(const std::uint16_t* row, int dim, int n, float (&x)[chunk_dims]) {
    std::uint16_t bits[chunk_dims];
    read_plain(row + dim, n, bits);
#pragma unroll
    for (int i = 0; i < chunk_dims; ++i) x[i] = widen<__half>(bits[i]);
}

// y = H x / sqrt(n) in place, over `n` floats in shared memory and blocks of the largest power of two that divides n;
// by one warp (Ops::hadamard).
__device__ inline void hadamard_warp(float* x, int n) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size, block = n & -n;
    for (int stride = 1; stride < block; stride *= 2) {
        __syncwarp();
        for (int i = lane; i < n / 2; i += warp_size) {
            const int first = i / stride * 2 * stride + i % stride;
            const float a = x[first], b = x[first + stride];
            x[first] = rounded_sum(a, b);
            x[first + stride] = rounded_sum(a, -b);
        }
    }
    __syncwarp();
    const float factor = hadamard_factor(static_cast<std::size_t>(block));
    for (int i = lane; i < n; i += warp_size) x[i] = rounded_product(x[i], factor);
    __syncwarp();
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
