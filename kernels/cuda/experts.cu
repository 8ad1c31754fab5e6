// Mixtures of experts: which token goes where, products of each expert with its tokens, and their weighted sum.
#include <algorithm>

#include "kernels/common/device_code.h"
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/gemm_tiles.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/store.cuh"
#include "kernels/cuda/weight_tiles.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr std::uint32_t most_chosen = 64;

__device__ float never() { return __uint_as_float(0xFF800000U); }  // -infinity

struct Best {
    float score;
    std::uint32_t expert;
};
// Of equals the lower number.
__device__ Best warp_best(Best own) {
    for (int with = warp_size / 2; with > 0; with /= 2) {
        const Best other = {__shfl_xor_sync(all_lanes, own.score, with), __shfl_xor_sync(all_lanes, own.expert, with)};
        if (other.score > own.score || (other.score == own.score && other.expert < own.expert)) own = other;
    }
    return own;
}

// Takes the experts of all groups but the top ones out of the choice; of equal groups the last go first.
__device__ void keep_top_groups(const DeviceRouting& routing, float* eligible, float* groups) {
    const std::uint32_t size = routing.n_experts / routing.n_groups;
    for (std::uint32_t group = threadIdx.x; group < routing.n_groups; group += blockDim.x) {
        float first = never(), second = never();
        for (std::uint32_t i = group * size; i < (group + 1) * size; ++i) {
            if (eligible[i] > first) {
                second = first;
                first = eligible[i];
            } else if (eligible[i] > second) {
                second = eligible[i];
            }
        }
        groups[group] = routing.group_by_two ? first + second : first;
    }
    __syncwarp();
    if (threadIdx.x == 0)
        for (std::uint32_t dropped = routing.top_groups; dropped < routing.n_groups; ++dropped) {
            std::uint32_t worst = 0;
            for (std::uint32_t group = 1; group < routing.n_groups; ++group)
                if (groups[group] <= groups[worst]) worst = group;
            groups[worst] = -never();
            for (std::uint32_t i = worst * size; i < (worst + 1) * size; ++i) eligible[i] = never();
        }
    __syncwarp();
}

// A warp for each token. Scores, sums and weights in f64, as engine/routing.cpp has them, so that both choose alike.
__global__ void choose(DeviceRouting routing, float* all_scores, DeviceSlots slots, unsigned long long* bad) {
    HETERO_DYNAMIC_SHARED(float, eligible);  // [n_experts], then [n_groups]
    __shared__ Best chosen[most_chosen];
    const std::size_t token = blockIdx.x;
    const std::uint32_t n = routing.n_experts, k = routing.top_k;
    float* scores = all_scores + token * n;
    bool finite = true;
    float top = never();
    for (std::uint32_t i = threadIdx.x; i < n; i += warp_size) {
        if (!is_finite(scores[i])) {
            finite = false;
            atomicMin(bad, static_cast<unsigned long long>(token * n + i));
        }
        top = fmaxf(top, scores[i]);
    }
    if (!__all_sync(all_lanes, finite)) {
        for (std::uint32_t i = threadIdx.x; i < k; i += warp_size) {
            slots.expert[token * k + i] = -1;
            slots.weight[token * k + i] = 0;
            slots.slot[token * k + i] = -1;
        }
        return;
    }
    const auto highest = static_cast<double>(warp_max(top));
    double sum = 0;
    for (std::uint32_t i = threadIdx.x; i < n; i += warp_size) sum += exp(static_cast<double>(scores[i]) - highest);
    sum = warp_sum(sum);
    for (std::uint32_t i = threadIdx.x; i < n; i += warp_size) {
        const auto score = static_cast<double>(scores[i]);
        scores[i] = static_cast<float>(routing.sigmoid ? 1 / (1 + exp(-score)) : exp(score - highest) / sum);
        eligible[i] = routing.bias == nullptr ? scores[i] : scores[i] + routing.bias[i];
    }
    __syncwarp();
    if (routing.n_groups > 1) keep_top_groups(routing, eligible, eligible + n);
    for (std::uint32_t picked = 0; picked < k; ++picked) {
        Best best = {never(), n};
        for (std::uint32_t i = threadIdx.x; i < n; i += warp_size)
            if (eligible[i] > best.score || best.expert == n) best = {eligible[i], i};
        best = warp_best(best);
        if (threadIdx.x == 0) {
            std::uint32_t at = picked;  // in the order of the experts' numbers
            for (; at > 0 && chosen[at - 1].expert > best.expert; --at) chosen[at] = chosen[at - 1];
            chosen[at] = {scores[best.expert], best.expert};
            eligible[best.expert] = never();
        }
        __syncwarp();
    }
    if (threadIdx.x != 0) return;
    double total = 1e-20;  // as engine/routing.cpp
    for (std::uint32_t i = 0; i < k; ++i) total += static_cast<double>(chosen[i].score);
    for (std::uint32_t i = 0; i < k; ++i) {
        const auto score = static_cast<double>(chosen[i].score);
        slots.expert[token * k + i] = static_cast<std::int32_t>(chosen[i].expert);
        slots.weight[token * k + i] =
            static_cast<float>((routing.normalize ? score / total : score) * static_cast<double>(routing.scale));
    }
}

// first[blockIdx.x]: how many choices are of experts before this one.
__global__ void count_before(DeviceSlots slots, std::size_t n) {
    int before = 0;
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) {
        const std::int32_t expert = slots.expert[i];
        if (expert >= 0 && expert < static_cast<std::int32_t>(blockIdx.x)) ++before;
    }
    before = block_sum(before);
    if (threadIdx.x == 0) slots.first[blockIdx.x] = before;
}

constexpr unsigned slot_threads = 256;

// A block numbers the choices of its expert, in the order of the tokens.
__global__ void number_slots(DeviceSlots slots, std::size_t n, std::uint32_t top_k) {
    __shared__ int warp_counts[slot_threads / warp_size];
    const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    int next = slots.first[blockIdx.x];
    const int end = slots.first[blockIdx.x + 1];
    for (std::size_t begin = 0; begin < n && next < end; begin += slot_threads) {
        const std::size_t i = begin + threadIdx.x;
        const bool own = i < n && slots.expert[i] == static_cast<std::int32_t>(blockIdx.x);
        const unsigned votes = __ballot_sync(all_lanes, own);
        if (lane == 0) warp_counts[warp] = __popc(votes);
        __syncthreads();
        int slot = next + __popc(votes & ((1U << lane) - 1));
        for (unsigned w = 0; w < slot_threads / warp_size; ++w) {
            if (w < warp) slot += warp_counts[w];
            next += warp_counts[w];
        }
        if (own) {
            slots.slot[i] = slot;
            slots.token[slot] = static_cast<std::int32_t>(i / top_k);
        }
        __syncthreads();
    }
}

DeviceFault route(DeviceStream stream, const DeviceRouting& routing, float* scores, std::size_t n_tokens,
                  const DeviceSlots& slots, unsigned long long* bad) {
    const Shapes shapes = {{"tokens", n_tokens}, {"experts", routing.n_experts}, {"top_k", routing.top_k}};
    if (routing.top_k == 0 || routing.top_k > most_chosen || routing.top_k > routing.n_experts ||
        routing.n_groups == 0 || routing.n_experts % routing.n_groups != 0)
        return unsupported(stream, "route", "of so many experts so many cannot be chosen", shapes);
    const std::size_t shared = (routing.n_experts + routing.n_groups) * sizeof(float), n = n_tokens * routing.top_k;
    if (DeviceFault fault = launch(stream, "choose", {{blocks_for(n_tokens, 1), 1, 1}, {warp_size, 1, 1}, shared},
                                   shapes, choose, routing, scores, slots, bad))
        return fault;
    if (DeviceFault fault = launch(stream, "count_before", {{routing.n_experts + 1, 1, 1}, {slot_threads, 1, 1}},
                                   shapes, count_before, slots, n))
        return fault;
    return launch(stream, "number_slots", {{routing.n_experts, 1, 1}, {slot_threads, 1, 1}}, shapes, number_slots,
                  slots, n, routing.top_k);
}

// The expert that has the slot: the last one that begins no later.
__device__ std::uint32_t expert_of(const std::int32_t* first, std::uint32_t n_experts, std::int32_t slot) {
    std::uint32_t low = 0, high = n_experts;
    while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        (first[middle] <= slot ? low : high) = middle;
    }
    return low;
}

// As gemv for one token: blockIdx.x is a slot.
template <class E, class C, int rows>
__global__ void __launch_bounds__(most_dot_threads)
    multiply_slots(DeviceExperts experts, DeviceSlots slots, const float* x, std::size_t x_stride, bool x_by_slot,
                   float* y, std::size_t y_stride) {
    const auto n_experts = static_cast<std::uint32_t>(experts.n_experts);
    const auto slot = static_cast<std::int32_t>(blockIdx.x);
    if (slot >= slots.first[n_experts]) return;
    const DeviceMatrix& w = experts.first;
    const std::size_t expert = expert_of(slots.first, n_experts, slot), first_row = std::size_t{blockIdx.y} * rows;
    const int n_rows = static_cast<int>(w.rows - first_row < rows ? w.rows - first_row : rows);
    const float* inputs[1] = {x + static_cast<std::size_t>(x_by_slot ? slot : slots.token[slot]) * x_stride};
    float sums[rows][1] = {};
    const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && x_stride % 4 == 0;
    add_products<E, C>(static_cast<const Byte*>(w.data) + expert * experts.expert_bytes + first_row * w.row_bytes,
                       w.row_bytes, n_rows, w.cols, inputs, aligned, sums);
    const float sum = gather_sums(sums);
    if (static_cast<int>(threadIdx.x) >= n_rows) return;
    const std::size_t row = first_row + threadIdx.x;
    const float* scale = w.row_scale;  // [expert][rows]
    y[static_cast<std::size_t>(slot) * y_stride + row] = scale == nullptr ? sum : sum * scale[expert * w.rows + row];
}

// The tile number `tile`, of those of each expert's slots one after the other.
struct SlotTile {
    std::uint32_t expert;  // n_experts: there are not so many
    std::size_t first, end;
};
__device__ SlotTile slot_tile(const DeviceSlots& slots, std::size_t n_experts, unsigned tile, unsigned most_slots) {
    for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
        const auto first = static_cast<unsigned>(slots.first[expert]),
                   end = static_cast<unsigned>(slots.first[expert + 1]);
        const unsigned own = (end - first + most_slots - 1) / most_slots;
        if (tile < own) {
            const std::size_t begin = std::size_t{first} + std::size_t{tile} * most_slots;
            return {expert, begin, std::min<std::size_t>(begin + most_slots, end)};
        }
        tile -= own;
    }
    return {static_cast<std::uint32_t>(n_experts), 0, 0};
}

// As gemm: blockIdx.y counts the tiles of 128 slots. Weights are of type T.
template <class T>
__global__ __launch_bounds__(Tile<T>::threads) void multiply_expert_tiles(DeviceExperts experts, DeviceSlots slots,
                                                                          const T* x, std::size_t x_stride,
                                                                          bool x_by_slot, float* y,
                                                                          std::size_t y_stride) {
    using Parts = Tile<T>;
    __shared__ __align__(32) T w_tile[Parts::elements];
    __shared__ __align__(32) T x_tile[Parts::elements];
    const DeviceMatrix& w = experts.first;
    const std::size_t first_row = std::size_t{blockIdx.x} * Parts::rows;
    const SlotTile own = slot_tile(slots, experts.n_experts, blockIdx.y, Parts::tokens);
    if (own.expert == experts.n_experts) return;
    const auto* weights =
        reinterpret_cast<const T*>(static_cast<const Byte*>(w.data) + own.expert * experts.expert_bytes);
    const bool x_aligned = (reinterpret_cast<std::uintptr_t>(x) | x_stride * sizeof(T)) % 16 == 0;

    typename Parts::Fetched w_piece, x_piece;
    const auto fetch = [&](std::size_t k) {
        Parts::fetch_rows(x_piece, k, w.cols, [&](unsigned r, std::size_t col) {
            const std::size_t slot = own.first + r;
            if (slot >= own.end) return make_uint4(0, 0, 0, 0);
            const std::size_t row = x_by_slot ? slot : static_cast<std::size_t>(slots.token[slot]);
            return Parts::piece_of(x + row * x_stride + col, w.cols - col, x_aligned);
        });
        Parts::fetch(w_piece, weights, w.row_bytes / sizeof(T), w.rows, first_row, w.cols, k);
    };
    typename Parts::Accumulators sums;
    Parts::clear(sums);
    fetch(0);
    for (std::size_t k = 0; k < w.cols; k += Parts::depth) {
        Parts::put(w_tile, w_piece);
        Parts::put(x_tile, x_piece);
        __syncthreads();
        if (k + Parts::depth < w.cols) fetch(k + Parts::depth);
        Parts::multiply(w_tile, x_tile, sums);
        __syncthreads();
    }
    const float* scale = w.row_scale == nullptr ? nullptr : w.row_scale + own.expert * w.rows;
    Parts::for_each(sums, [&](std::size_t token, std::size_t row, float sum) {
        const std::size_t slot = own.first + token;
        row += first_row;
        if (slot < own.end && row < w.rows) put_sum({y, y_stride, scale}, slot, row, sum);
    });
}

// Weights of any type: blockIdx.y counts the tiles of up to 64 slots.
template <class E, class C, class T>
__global__ void __launch_bounds__(WeightTile<E, C, T>::threads)
    multiply_decoded_experts(DeviceExperts experts, DeviceSlots slots, const std::uint16_t* x, std::size_t x_stride,
                             bool x_by_slot, float* y, std::size_t y_stride) {
    using Parts = WeightTile<E, C, T>;
    const DeviceMatrix& w = experts.first;
    const std::size_t first_row = std::size_t{blockIdx.x} * Parts::rows;
    const SlotTile own = slot_tile(slots, experts.n_experts, blockIdx.y, Parts::most_tokens);
    if (own.expert == experts.n_experts) return;
    const Byte* weights =
        static_cast<const Byte*>(w.data) + own.expert * experts.expert_bytes + first_row * w.row_bytes;
    const auto row_of = [&](int token) -> const std::uint16_t* {
        const std::size_t slot = own.first + static_cast<std::size_t>(token);
        if (slot >= own.end) return nullptr;
        return x + (x_by_slot ? slot : static_cast<std::size_t>(slots.token[slot])) * x_stride;
    };
    const int rows = static_cast<int>(std::min<std::size_t>(w.rows - first_row, Parts::rows));
    const float* scale = w.row_scale == nullptr ? nullptr : w.row_scale + own.expert * w.rows;
    Parts::multiply({weights, w.row_bytes, w.cols, rows}, row_of, static_cast<int>(own.end - own.first),
                    Parts::most_tokens, (reinterpret_cast<std::uintptr_t>(x) | 2 * x_stride) % 16 == 0, 0,
                    Parts::steps_of(w.cols), [&](int row, int token, float sum) {
                        put_sum({y, y_stride, scale}, own.first + static_cast<std::size_t>(token),
                                first_row + static_cast<std::size_t>(row), sum);
                    });
}

template <class E, class C, class T>
DeviceFault launch_expert_tiles(DeviceStream stream, const DeviceExperts& experts, const DeviceSlots& slots,
                                std::size_t n_slots, const DeviceRows& x, bool x_by_slot, float* y,
                                std::size_t y_stride, Shapes shapes) {
    const DeviceMatrix& w = experts.first;
    const auto grid = [&](std::size_t rows, std::size_t most_slots, std::size_t threads, std::size_t shared) {
        const std::size_t tiles = n_slots / most_slots + std::min(experts.n_experts, n_slots);
        return Grid{
            {blocks_for(w.rows, rows), blocks_for(tiles, 1), 1}, {static_cast<unsigned>(threads), 1, 1}, shared};
    };
    if constexpr (std::is_same_v<C, ChunkHalf<T>>) {
        return launch(stream, "experts_gemm", grid(Tile<T>::rows, Tile<T>::tokens, Tile<T>::threads, 0), shapes,
                      multiply_expert_tiles<T>, experts, slots, static_cast<const T*>(x.data), x.stride, x_by_slot, y,
                      y_stride);
    } else {
        using Parts = WeightTile<E, C, T>;
        return launch(stream, "experts_gemm_decoded",
                      grid(Parts::rows, Parts::most_tokens, Parts::threads, Parts::shared_bytes(Parts::most_tokens)),
                      shapes, multiply_decoded_experts<E, C, T>, experts, slots,
                      static_cast<const std::uint16_t*>(x.data), x.stride, x_by_slot, y, y_stride);
    }
}

DeviceFault experts_gemm(DeviceStream stream, const DeviceExperts& experts, const DeviceSlots& slots,
                         std::size_t n_slots, const DeviceRows& x, bool x_by_slot, float* y, std::size_t y_stride) {
    const DeviceMatrix& w = experts.first;
    const Shapes shapes = {{"experts", experts.n_experts}, {"slots", n_slots}, {"rows", w.rows}, {"cols", w.cols}};
    if (n_slots == 0 || w.rows == 0) return {};
    DeviceFault fault;
    const bool known =
        whole_blocks(w) && with_type(w.dtype, [&](auto elements, auto chunks) {
            using E = decltype(elements);
            using C = decltype(chunks);
            if (x.type == DeviceInput::f16) {
                fault = launch_expert_tiles<E, C, __half>(stream, experts, slots, n_slots, x, x_by_slot, y, y_stride,
                                                          shapes);
            } else if (x.type == DeviceInput::bf16) {
                fault = launch_expert_tiles<E, C, __nv_bfloat16>(stream, experts, slots, n_slots, x, x_by_slot, y,
                                                                 y_stride, shapes);
            } else if (x.type == DeviceInput::f32) {
                constexpr int rows = 4;
                const Grid grid{{blocks_for(n_slots, 1), blocks_for(w.rows, rows), 1}, {dot_threads(w.cols), 1, 1}};
                fault = launch(stream, "experts_gemv", grid, shapes, multiply_slots<E, C, rows>, experts, slots,
                               static_cast<const float*>(x.data), x.stride, x_by_slot, y, y_stride);
            } else {
                fault = unsupported(stream, "experts_gemm", "experts take f32, f16 or bf16", shapes);
            }
        });
    return known ? fault : unsupported(stream, "experts_gemm", "no kernel for experts of this type and length", shapes);
}

__global__ void combine_slots(DeviceSlots slots, std::size_t top_k, const float* y, std::size_t y_stride, std::size_t n,
                              float* out, std::size_t out_stride) {
    const std::size_t token = blockIdx.x, col = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x;
    if (col >= n || slots.expert[token * top_k] < 0) return;
    float sum = 0;
    for (std::size_t k = 0; k < top_k; ++k) {
        const auto slot = static_cast<std::size_t>(slots.slot[token * top_k + k]);
        const float product = __fmul_rn(y[slot * y_stride + col], slots.weight[token * top_k + k]);
        sum = k == 0 ? product : __fadd_rn(sum, product);
    }
    out[token * out_stride + col] += sum;
}

DeviceFault combine(DeviceStream stream, const DeviceSlots& slots, std::size_t top_k, const float* y,
                    std::size_t y_stride, std::size_t n_tokens, std::size_t n, float* out, std::size_t out_stride) {
    constexpr unsigned threads = 128;
    return launch(stream, "combine", {{blocks_for(n_tokens, 1), blocks_for(n, threads), 1}, {threads, 1, 1}},
                  {{"tokens", n_tokens}, {"top_k", top_k}, {"cols", n}}, combine_slots, slots, top_k, y, y_stride, n,
                  out, out_stride);
}

}  // namespace

void fill_experts(DeviceOps& ops) {
    ops.route = route;
    ops.experts_gemm = experts_gemm;
    ops.combine = combine;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
