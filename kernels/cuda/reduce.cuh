// Sums and largest values over the threads of a block, in an order that depends on the block's size alone.
#pragma once
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// Over neighbouring lanes of a warp, a power of two; all lanes of the warp call it.
template <int lanes = warp_size, class T, class Reduce>
__device__ inline T warp_reduce(T value, Reduce reduce) {
#pragma unroll
    for (int with = lanes / 2; with > 0; with /= 2) value = reduce(value, __shfl_xor_sync(all_lanes, value, with));
    return value;
}
template <int lanes = warp_size, class T>
__device__ inline T warp_sum(T value) {
    return warp_reduce<lanes>(value, [](T a, T b) { return a + b; });
}
template <int lanes = warp_size>
__device__ inline float warp_max(float value) {
    return warp_reduce<lanes>(value, [](float a, float b) { return fmaxf(a, b); });
}
template <int lanes = warp_size>
__device__ inline float warp_min(float value) {
    return warp_reduce<lanes>(value, [](float a, float b) { return fminf(a, b); });
}

// Every thread gets the result. Blocks are one-dimensional and of whole warps.
template <class T, class Reduce>
__device__ inline T block_reduce(T value, Reduce reduce) {
    __shared__ T parts[warp_size];
    const unsigned warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
    value = warp_reduce(value, reduce);
    if (warps == 1) return value;
    __syncthreads();  // what an earlier call left in `parts` has been read
    if (threadIdx.x % warp_size == 0) parts[warp] = value;
    __syncthreads();
    value = parts[0];
    for (unsigned i = 1; i < warps; ++i) value = reduce(value, parts[i]);
    return value;
}

template <class T>
__device__ inline T block_sum(T value) {
    return block_reduce(value, [](T a, T b) { return a + b; });
}

__device__ inline float block_max(float value) {
    return block_reduce(value, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
