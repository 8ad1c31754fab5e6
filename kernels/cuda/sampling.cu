// The largest logits, and probabilities.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

using Key = unsigned long long;

constexpr unsigned threads = 512, most = 256;  // of top_k

// Larger for larger values; NaN is the smallest, the two zeros are equal.
__device__ unsigned rank_of(float value) {
    if (value != value) return 0;
    const unsigned bits = __float_as_uint(value + 0.0F);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}
// Of equal values the first has the largest key.
__device__ Key key_of(float value, std::size_t index) {
    return static_cast<Key>(rank_of(value)) << 32 | (0xFFFFFFFFU - static_cast<unsigned>(index));
}
__device__ std::int32_t index_of(Key key) {
    return static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<unsigned>(key & 0xFFFFFFFFU));
}

__global__ void find_largest(const float* logits, std::size_t stride, std::size_t n, std::int32_t* index,
                             float* value) {
    const float* row = logits + blockIdx.x * stride;
    Key best = 0;
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) {
        const Key key = key_of(row[i], i);
        best = key > best ? key : best;
    }
    best = block_reduce(best, [](Key a, Key b) { return a > b ? a : b; });
    if (threadIdx.x != 0) return;
    index[blockIdx.x] = index_of(best);
    if (value != nullptr) value[blockIdx.x] = row[index_of(best)];
}

DeviceFault argmax(DeviceStream stream, const float* logits, std::size_t stride, std::size_t n_tokens, std::size_t n,
                   std::int32_t* index, float* value) {
    if (n == 0) return unsupported(stream, "argmax", "there are no logits", {{"tokens", n_tokens}});
    return launch(stream, "argmax", {{blocks_for(n_tokens, 1), 1, 1}, {threads, 1, 1}},
                  {{"tokens", n_tokens}, {"cols", n}}, find_largest, logits, stride, n, index, value);
}

// Falling, of 256 keys in shared memory.
__device__ void sort_keys(Key* keys) {
    for (unsigned size = 2; size <= most; size *= 2)
        for (unsigned step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            const unsigned i = threadIdx.x, other = i ^ step;
            if (i < most && other > i) {
                const bool falling = (i & size) == 0;
                const Key a = keys[i], b = keys[other];
                if ((a < b) == falling) keys[i] = b, keys[other] = a;
            }
        }
    __syncthreads();
}

// The rank of the k-th largest value, byte by byte from the highest; then what is above it, and of its equals the
// first.
__global__ void find_top(const float* logits, std::size_t stride, std::size_t n, unsigned k, std::int32_t* index,
                         float* value) {
    __shared__ unsigned counts[256], prefix, left, taken, warp_counts[threads / warp_size];
    __shared__ Key keys[most];
    const float* row = logits + blockIdx.x * stride;
    const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    if (threadIdx.x == 0) prefix = 0, left = k, taken = 0;
    if (threadIdx.x < most) keys[threadIdx.x] = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        const unsigned above = shift == 24 ? 0 : ~0U << (shift + 8), wanted = prefix;
        for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) {
            const unsigned rank = rank_of(row[i]);
            if ((rank & above) == wanted) atomicAdd(&counts[rank >> shift & 255U], 1U);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned byte = 255;
            for (; byte > 0 && counts[byte] < left; --byte) left -= counts[byte];
            prefix |= byte << shift;
        }
        __syncthreads();
    }
    const unsigned last = prefix, equals = left;  // so many of rank `last` are among the k
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x)
        if (rank_of(row[i]) > last) keys[atomicAdd(&taken, 1U)] = key_of(row[i], i);
    __syncthreads();
    unsigned found = 0;
    for (std::size_t first = 0; first < n && found < equals; first += blockDim.x) {
        const std::size_t i = first + threadIdx.x;
        const bool equal = i < n && rank_of(row[i]) == last;
        const unsigned votes = __ballot_sync(all_lanes, equal);
        if (lane == 0) warp_counts[warp] = static_cast<unsigned>(__popc(votes));
        __syncthreads();
        unsigned before = found;
        for (unsigned w = 0; w < warp; ++w) before += warp_counts[w];
        before += static_cast<unsigned>(__popc(votes & ((1U << lane) - 1)));
        if (equal && before < equals) keys[k - equals + before] = key_of(row[i], i);
        for (unsigned w = 0; w < threads / warp_size; ++w) found += warp_counts[w];
        __syncthreads();
    }
    sort_keys(keys);
    for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
        index[blockIdx.x * k + i] = index_of(keys[i]);
        value[blockIdx.x * k + i] = row[index_of(keys[i])];
    }
}

DeviceFault top_k(DeviceStream stream, const float* logits, std::size_t stride, std::size_t n_tokens, std::size_t n,
                  std::size_t k, std::int32_t* index, float* value) {
    const Shapes shapes = {{"tokens", n_tokens}, {"cols", n}, {"k", k}};
    if (k == 0 || k > most || k > n)
        return unsupported(stream, "top_k", "k must be 1 to 256 and no more than there are", shapes);
    return launch(stream, "top_k", {{blocks_for(n_tokens, 1), 1, 1}, {threads, 1, 1}}, shapes, find_top, logits, stride,
                  n, static_cast<unsigned>(k), index, value);
}

__global__ void softmax_rows(const float* x, std::size_t x_stride, float factor, float* y, std::size_t y_stride,
                             std::size_t n) {
    const float* from = x + blockIdx.x * x_stride;
    float* to = y + blockIdx.x * y_stride;
    float largest = __uint_as_float(0xFF800000U);
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) largest = fmaxf(largest, from[i] * factor);
    largest = block_max(largest);
    float sum = 0;
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float e = expf(from[i] * factor - largest);
        to[i] = e;
        sum += e;
    }
    sum = block_sum(sum);
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) to[i] /= sum;
}

DeviceFault softmax(DeviceStream stream, const float* x, std::size_t x_stride, float factor, float* y,
                    std::size_t y_stride, std::size_t n_tokens, std::size_t n) {
    return launch(stream, "softmax", {{blocks_for(n_tokens, 1), 1, 1}, {threads, 1, 1}},
                  {{"tokens", n_tokens}, {"cols", n}}, softmax_rows, x, x_stride, factor, y, y_stride, n);
}

}  // namespace

void fill_sampling(DeviceOps& ops) {
    ops.argmax = argmax;
    ops.top_k = top_k;
    ops.softmax = softmax;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
