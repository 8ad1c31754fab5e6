// Sums and largest values over the threads of a block, in an order that depends on the block's size alone.
#pragma once
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

template <class T>
__device__ inline T warp_sum(T value) {
    for (int with = warp_size / 2; with > 0; with /= 2) value += __shfl_xor_sync(all_lanes, value, with);
    return value;
}

__device__ inline float warp_max(float value) {
    for (int with = warp_size / 2; with > 0; with /= 2) value = fmaxf(value, __shfl_xor_sync(all_lanes, value, with));
    return value;
}

// Every thread gets the result. Blocks are one-dimensional and of whole warps.
template <class T, class Reduce>
__device__ inline T block_reduce(T value, Reduce reduce) {
    __shared__ T parts[warp_size];
    const unsigned warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
    for (int with = warp_size / 2; with > 0; with /= 2) value = reduce(value, __shfl_xor_sync(all_lanes, value, with));
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
