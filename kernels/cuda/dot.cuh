// Products of a few rows of weights with a few tokens, by the threads of one block. How a row's columns are divided and
// summed depends on its type and length alone, so a token has the same bits in any batch.
#pragma once
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/weights.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// Whole warps, no more than have a chunk.
inline constexpr unsigned most_dot_threads = 128;
inline unsigned dot_threads(std::size_t cols) { return cols >= 2048 ? most_dot_threads : cols >= 1024 ? 64 : 32; }

__device__ inline void load_inputs(const float* x, bool aligned, float (&out)[4]) {
    if (aligned) {
        const float4 quad = *reinterpret_cast<const float4*>(x);
        out[0] = quad.x, out[1] = quad.y, out[2] = quad.z, out[3] = quad.w;
    } else {
        for (int i = 0; i < 4; ++i) out[i] = x[i];
    }
}

// sums[r][t] of this thread += its chunks of row r (`row_bytes` apart, n_rows of them) times token t (x[t]).
template <class E, class C, int rows, int tokens>
__device__ void add_products(const Byte* w, std::size_t row_bytes, int n_rows, std::size_t cols,
                             const float* const (&x)[tokens], bool x_aligned, float (&sums)[rows][tokens]) {
    constexpr int chunks = C::elems / 8;  // of a block
    const bool w_aligned = (reinterpret_cast<std::uintptr_t>(w) | row_bytes) % 16 == 0;
    const std::size_t n = cols / 8;
    for (std::size_t c = threadIdx.x; c < n; c += blockDim.x) {
        const std::size_t block = c / chunks;
        const int k = static_cast<int>(c % chunks);
        Chunk chunk[rows];
#pragma unroll
        for (int r = 0; r < rows; ++r) {
            // Beyond the last row: the last row again, for nothing.
            const Byte* at = w + static_cast<std::size_t>(r < n_rows ? r : n_rows - 1) * row_bytes + block * C::bytes;
            if constexpr (C::elems == 8) {
                w_aligned ? C::decode_aligned(at, chunk[r]) : C::decode(at, k, chunk[r]);
            } else {
                C::decode(at, k, chunk[r]);
            }
        }
        const std::size_t first = block * C::elems + static_cast<std::size_t>(C::first(k));
#pragma unroll
        for (int t = 0; t < tokens; ++t) {
            float low[4], high[4];
            load_inputs(x[t] + first, x_aligned, low);
            load_inputs(x[t] + first + C::gap, x_aligned, high);
#pragma unroll
            for (int r = 0; r < rows; ++r) {
                const Chunk& one = chunk[r];
                if constexpr (!C::scaled) {
                    for (int i = 0; i < 4; ++i) sums[r][t] = fmaf(one.q[i], low[i], sums[r][t]);
                    for (int i = 0; i < 4; ++i) sums[r][t] = fmaf(one.q[4 + i], high[i], sums[r][t]);
                } else {
                    float a = one.q[0] * low[0], b = one.q[4] * high[0];
                    for (int i = 1; i < 4; ++i) a = fmaf(one.q[i], low[i], a), b = fmaf(one.q[4 + i], high[i], b);
                    sums[r][t] = fmaf(one.scale[0], a, sums[r][t]);
                    sums[r][t] = fmaf(one.scale[1], b, sums[r][t]);
                    if constexpr (C::has_min) {
                        sums[r][t] = fmaf(one.min[0], low[0] + low[1] + low[2] + low[3], sums[r][t]);
                        sums[r][t] = fmaf(one.min[1], high[0] + high[1] + high[2] + high[3], sums[r][t]);
                    }
                }
            }
        }
    }
    if constexpr (C::elems == 8) {  // what no chunk has; blocks are whole
        for (std::size_t col = 8 * n + threadIdx.x; col < cols; col += blockDim.x)
            for (int r = 0; r < rows; ++r) {
                const float weight = E::at(w + static_cast<std::size_t>(r < n_rows ? r : n_rows - 1) * row_bytes, col);
                for (int t = 0; t < tokens; ++t) sums[r][t] = fmaf(weight, x[t][col], sums[r][t]);
            }
    }
}

// One step of gather_sums: lanes `width` apart, which have `count` sums each, add up half of them each.
template <int count, int width>
__device__ void halve_sums(float* sums) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(width)) != 0;
    if constexpr (count > 1) {
        constexpr int half = count / 2;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float kept = upper ? sums[half + i] : sums[i], sent = upper ? sums[i] : sums[half + i];
            sums[i] = kept + __shfl_xor_sync(all_lanes, sent, width);
        }
        if constexpr (width > 1) halve_sums<half, width / 2>(sums);
    } else {
        sums[0] += __shfl_xor_sync(all_lanes, sums[0], width);
        if constexpr (width > 1) halve_sums<1, width / 2>(sums);
    }
}

// The sum over the block's threads, in thread (r * tokens + t) for sums[r][t]. The lanes' sums are added in the order
// of warp_sum(), but all at a time: a lane hands on the half that others sum up.
template <int rows, int tokens>
__device__ float gather_sums(float (&sums)[rows][tokens]) {
    constexpr int count = rows * tokens, most_warps = most_dot_threads / warp_size;
    static_assert(count <= warp_size && (count & (count - 1)) == 0);
    __shared__ float parts[most_warps][count];
    const int warp = static_cast<int>(threadIdx.x) / warp_size, warps = static_cast<int>(blockDim.x) / warp_size;
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    halve_sums<count, warp_size / 2>(&sums[0][0]);
    float own = __shfl_sync(all_lanes, sums[0][0], lane % count * (warp_size / count));
    if (warps == 1) return own;
    if (lane < count) parts[warp][lane] = own;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count)
        for (int i = 1; i < warps; ++i) own += parts[i][threadIdx.x];
    return own;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
