// The likeliest tokens. Each piece of a row is searched by a block, then a block has what the pieces of a row gave.
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

// Larger for larger values, of equal ones for the first; NaN is the smallest, the two zeros are equal. 0: no logit.
using Key = unsigned long long;

constexpr unsigned threads = 256, most = 256;                      // of k
constexpr unsigned per_thread = 16, piece = threads * per_thread;  // logits

__device__ Key key_of(float value, std::size_t index) {
    unsigned rank = 0;
    if (value == value) {
        const unsigned bits = __float_as_uint(value + 0.0F);
        rank = bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
    }
    return static_cast<Key>(rank) << 32 | (0xFFFFFFFFU - static_cast<unsigned>(index));
}
__device__ std::uint32_t index_of(Key key) { return 0xFFFFFFFFU - static_cast<unsigned>(key & 0xFFFFFFFFU); }
__device__ Key larger(Key a, Key b) { return a > b ? a : b; }

// Of a piece: sum of exp((logit - largest) * factor).
struct Share {
    double sum;
    float largest;
    unsigned odd;  // NaN and +infinity
};

// The byte at which, from 255 down, `left` of the counted ones are reached; `left` becomes how many of that byte are
// needed. By the first warp: a lane has eight bytes, the first lane the highest.
__device__ unsigned byte_at(const unsigned* counts, unsigned& left) {
    constexpr unsigned own_bytes = 256 / warp_size;
    const unsigned lane = threadIdx.x, first = 255 - own_bytes * lane;
    unsigned own = 0;
    for (unsigned i = 0; i < own_bytes; ++i) own += counts[first - i];
    unsigned up_to = own;
    for (unsigned by = 1; by < warp_size; by *= 2) {
        const unsigned before = __shfl_up_sync(all_lanes, up_to, by);
        if (lane >= by) up_to += before;
    }
    const unsigned holder = static_cast<unsigned>(__ffs(static_cast<int>(__ballot_sync(all_lanes, up_to >= left)))) - 1;
    unsigned rest = left - (up_to - own), byte = first;
    if (lane == holder)
        for (; counts[byte] < rest; --byte) rest -= counts[byte];
    left = __shfl_sync(all_lanes, rest, static_cast<int>(holder));
    return __shfl_sync(all_lanes, byte, static_cast<int>(holder));
}

// At least k keys, all different, are called by for_each(body), by each thread its own: k of them are no smaller than
// the result. Byte by byte from the highest.
template <class ForEach>
__device__ Key least_of_top(const ForEach& for_each, unsigned k) {
    __shared__ unsigned counts[256];
    __shared__ Key prefix;
    __shared__ bool whole;  // all that begin with the prefix are among the k
    unsigned left = k;      // in the first warp
    if (threadIdx.x == 0) prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        const Key above = shift == 56 ? 0 : ~Key{0} << (shift + 8), wanted = prefix;
        for_each([&](Key key) {
            if ((key & above) == wanted) atomicAdd(&counts[key >> shift & 255U], 1U);
        });
        __syncthreads();
        if (threadIdx.x < warp_size) {
            const unsigned byte = byte_at(counts, left);
            if (threadIdx.x == 0) {
                prefix = wanted | static_cast<Key>(byte) << shift;
                whole = counts[byte] == left;
            }
        }
        __syncthreads();
        if (whole) break;
    }
    return prefix;
}

// grid: [piece][token]. Its top k keys, in any order, 0 where it has no more: [token][piece][k].
__global__ void __launch_bounds__(threads) search_pieces(const float* logits, std::size_t stride, std::size_t n,
                                                         unsigned k, double factor, Key* keys, Share* shares) {
    __shared__ unsigned taken;
    const std::size_t first = std::size_t{blockIdx.x} * piece, token = blockIdx.y;
    const float* row = logits + token * stride;
    const auto held = static_cast<unsigned>(n - first < piece ? n - first : piece);
    const std::size_t place = token * gridDim.x + blockIdx.x;
    Key own[per_thread];
    float largest = __uint_as_float(0xFF800000U);
    int odd = 0;
#pragma unroll
    for (unsigned i = 0; i < per_thread; ++i) {
        const unsigned at = i * threads + threadIdx.x;
        own[i] = 0;
        if (at >= held) continue;
        const float value = row[first + at];
        own[i] = key_of(value, first + at);
        odd += value != value || value == __uint_as_float(0x7F800000U) ? 1 : 0;
        largest = fmaxf(largest, value);
    }
    largest = block_max(largest);
    odd = block_sum(odd);
    double sum = 0;
    if (factor != 0) {
#pragma unroll
        for (unsigned i = 0; i < per_thread; ++i) {
            const unsigned at = i * threads + threadIdx.x;
            if (at < held) sum += exp((static_cast<double>(row[first + at]) - static_cast<double>(largest)) * factor);
        }
        sum = block_sum(sum);
    }
    if (threadIdx.x == 0) shares[place] = {sum, largest, static_cast<unsigned>(odd)};

    keys += place * k;
    if (k == 1) {
        Key best = 0;
#pragma unroll
        for (unsigned i = 0; i < per_thread; ++i) best = larger(best, own[i]);
        best = block_reduce(best, larger);
        if (threadIdx.x == 0) keys[0] = best;
        return;
    }
    if (threadIdx.x == 0) taken = 0;
    const auto each = [&](const auto& body) {
#pragma unroll
        for (unsigned i = 0; i < per_thread; ++i)
            if (own[i] != 0) body(own[i]);
    };
    const Key least = held > k ? least_of_top(each, k) : 1;
    __syncthreads();
    each([&](Key key) {
        if (key >= least) keys[atomicAdd(&taken, 1U)] = key;
    });
    __syncthreads();
    for (unsigned i = taken + threadIdx.x; i < k; i += threads) keys[i] = 0;
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

// A block has the n_pieces * k keys of a token.
__global__ void __launch_bounds__(threads)
    merge_pieces(const float* logits, std::size_t stride, unsigned n_pieces, unsigned k, double factor, const Key* keys,
                 const Share* shares, DeviceTop to) {
    __shared__ Key top[most];
    __shared__ unsigned taken;
    const std::size_t token = blockIdx.x;
    keys += token * n_pieces * k;
    shares += token * n_pieces;
    float largest = __uint_as_float(0xFF800000U);
    int odd = 0;
    for (unsigned i = threadIdx.x; i < n_pieces; i += threads) {
        largest = fmaxf(largest, shares[i].largest);
        odd += static_cast<int>(shares[i].odd);
    }
    largest = block_max(largest);
    odd = block_sum(odd);
    double sum = 0;
    for (unsigned i = threadIdx.x; i < n_pieces && factor != 0; i += threads)
        if (shares[i].sum > 0)
            sum +=
                shares[i].sum * exp((static_cast<double>(shares[i].largest) - static_cast<double>(largest)) * factor);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        to.total[token] = sum;
        to.odd[token] = static_cast<std::uint32_t>(odd);
        taken = 0;
    }
    top[threadIdx.x] = 0;
    const auto each = [&](const auto& body) {
        for (unsigned i = threadIdx.x; i < n_pieces * k; i += threads)
            if (keys[i] != 0) body(keys[i]);
    };
    if (k == 1) {
        Key best = 0;
        each([&](Key key) { best = larger(best, key); });
        best = block_reduce(best, larger);
        if (threadIdx.x == 0) top[0] = best;
        __syncthreads();
    } else {
        const Key least = n_pieces > 1 ? least_of_top(each, k) : 1;
        __syncthreads();
        each([&](Key key) {
            if (key >= least) top[atomicAdd(&taken, 1U)] = key;
        });
        sort_keys(top);
    }
    if (threadIdx.x < k) {
        const std::uint32_t index = index_of(top[threadIdx.x]);
        to.index[token * k + threadIdx.x] = static_cast<std::int32_t>(index);
        to.value[token * k + threadIdx.x] = logits[token * stride + index];
    }
}

std::size_t keys_bytes(std::size_t n_tokens, std::size_t n, std::size_t k) {
    return n_tokens * blocks_for(n, piece) * k * sizeof(Key);
}
std::size_t top_k_scratch_bytes(std::size_t n_tokens, std::size_t n, std::size_t k) {
    return keys_bytes(n_tokens, n, k) + n_tokens * blocks_for(n, piece) * sizeof(Share);
}

DeviceFault top_k(DeviceStream stream, const float* logits, std::size_t stride, std::size_t n_tokens, std::size_t n,
                  std::size_t k, double factor, const DeviceTop& to, void* scratch) {
    const Shapes shapes = {{"tokens", n_tokens}, {"cols", n}, {"k", k}};
    if (k == 0 || k > most || k > n)
        return unsupported(stream, "top_k", "k must be 1 to 256 and no more than there are", shapes);
    const unsigned n_pieces = blocks_for(n, piece);
    auto* keys = static_cast<Key*>(scratch);
    auto* shares = reinterpret_cast<Share*>(static_cast<std::byte*>(scratch) + keys_bytes(n_tokens, n, k));
    if (DeviceFault fault =
            launch(stream, "search_pieces", {{n_pieces, blocks_for(n_tokens, 1), 1}, {threads, 1, 1}}, shapes,
                   search_pieces, logits, stride, n, static_cast<unsigned>(k), factor, keys, shares))
        return fault;
    return launch(stream, "merge_pieces", {{blocks_for(n_tokens, 1), 1, 1}, {threads, 1, 1}}, shapes, merge_pieces,
                  logits, stride, n_pieces, static_cast<unsigned>(k), factor, keys, shares, to);
}

}  // namespace

void fill_sampling(DeviceOps& ops) {
    ops.top_k_scratch_bytes = top_k_scratch_bytes;
    ops.top_k = top_k;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
