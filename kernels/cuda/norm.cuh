// Norms of a row, by the threads of a block or of a warp.
#pragma once
#include <algorithm>

#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

struct BlockThreads {
    __device__ static std::size_t index() { return threadIdx.x; }
    __device__ static std::size_t count() { return blockDim.x; }
    __device__ static float max(float value) { return block_max(value); }
    template <class T>
    __device__ static T sum(T value) {
        return block_sum(value);
    }
};
struct WarpThreads {
    __device__ static std::size_t index() { return threadIdx.x % warp_size; }
    __device__ static std::size_t count() { return warp_size; }
    __device__ static float max(float value) { return warp_max(value); }
    template <class T>
    __device__ static T sum(T value) {
        return warp_sum(value);
    }
};

__device__ inline float scaled_by(const DeviceNorm& norm, std::size_t i, float value) {
    value *= norm.weight[i];
    return norm.bias != nullptr ? value + norm.bias[i] : value;
}

// put(i, value) for the values of the row; it may write to the row.
template <class Threads, class Put>
__device__ inline void rms_norm_row(const DeviceNorm& norm, const float* row, std::size_t n, const Put& put) {
    float largest = 0;
    for (std::size_t i = Threads::index(); i < n; i += Threads::count()) largest = fmaxf(largest, fabsf(row[i]));
    largest = Threads::max(largest);
    // Squares leave the range of f32 before values do: a power of two brings the largest value to [1, 2), or near it
    // where eps would leave the range.
    const unsigned exponent = __float_as_uint(largest) >> 23, bounded = std::min(std::max(exponent, 127U - 60U), 253U);
    const float factor = __uint_as_float((254U - bounded) << 23);
    float squares = 0;
    for (std::size_t i = Threads::index(); i < n; i += Threads::count()) {
        const float scaled = row[i] * factor;
        squares = fmaf(scaled, scaled, squares);
    }
    const float mean = Threads::sum(squares) / static_cast<float>(n);
    const float inverse = 1 / sqrtf(mean + norm.eps * factor * factor);
    for (std::size_t i = Threads::index(); i < n; i += Threads::count())
        put(i, scaled_by(norm, i, row[i] * factor * inverse));
}

// In f64: the mean may be far larger than what differs from it.
template <class Threads, class Put>
__device__ inline void layer_norm_row(const DeviceNorm& norm, const float* row, std::size_t n, const Put& put) {
    const double count = static_cast<double>(n);
    double sum = 0;
    for (std::size_t i = Threads::index(); i < n; i += Threads::count()) sum += static_cast<double>(row[i]);
    const double mean = Threads::sum(sum) / count;
    double squares = 0;
    for (std::size_t i = Threads::index(); i < n; i += Threads::count()) {
        const double centred = static_cast<double>(row[i]) - mean;
        squares += centred * centred;
    }
    const double inverse = 1 / sqrt(Threads::sum(squares) / count + static_cast<double>(norm.eps));
    for (std::size_t i = Threads::index(); i < n; i += Threads::count())
        put(i, scaled_by(norm, i, static_cast<float>((static_cast<double>(row[i]) - mean) * inverse)));
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
