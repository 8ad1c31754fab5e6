// Attention of many tokens on matrix units, keys tile by tile with running maxima (FlashAttention,
// https://arxiv.org/abs/2205.14135). A block has up to 64 queries of one head, a warp 16 of them; a tile is the 64 keys
// of a page, so that a query has the same bits in any chunk.
//
// Q counts as a sum of two halves, and so does K where it is not stored in this half; weights and V as one.
#include <mma.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/halves.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int side = 16;                                 // of a matrix product
constexpr int key_blocks = page_tokens / side, pad = 8;  // halves between the rows, against bank conflicts
constexpr int scores_stride = page_tokens + 4, weights_stride = page_tokens + pad;

// Where things lie in a block's shared memory, bytes; sizes of rows in halves.
struct Layout {
    int q_stride, v_stride;
    int q_low, k_high, k_low, v, scores, weights, rows, bytes;
};
__host__ __device__ inline int round_up(int n, int to) { return (n + to - 1) / to * to; }
__host__ __device__ inline Layout layout_of(int queries, int query_dim, int columns, int k_parts, bool v_in_k) {
    Layout at{};
    at.q_stride = round_up(query_dim, side) + pad;
    at.v_stride = v_in_k ? at.q_stride : round_up(columns, side) + pad;
    int end = 0;
    const auto place = [&end](int bytes) {
        const int begin = end;
        end += round_up(bytes, 128);
        return begin;
    };
    place(queries * at.q_stride * 2);  // the high half of Q
    at.q_low = place(queries * at.q_stride * 2);
    at.k_high = place(page_tokens * at.q_stride * 2);
    at.k_low = k_parts == 2 ? place(page_tokens * at.q_stride * 2) : at.k_high;
    at.v = v_in_k ? at.k_high : place(page_tokens * at.v_stride * 2);
    at.scores = place(queries * scores_stride * 4);
    at.weights = place(queries * weights_stride * 2);
    at.rows = place(queries * 2 * 4);
    at.bytes = end;
    return at;
}

// A tile of K or V: `columns` dims from `first` on, [64][stride], zeros in rows beyond `rows` and columns beyond
// `dims`.
template <class Half, Stored S>
__device__ void load_tile(const DeviceKv& kv, const std::byte* tile, const std::uint16_t* open_rows, int open, int rows,
                          int first, int dims, int columns, int stride, std::uint16_t* high, std::uint16_t* low) {
    constexpr bool as_stored = (S == Stored::f16 && is_f16<Half>) || (S == Stored::bf16 && !is_f16<Half>);
    const int chunks = columns / chunk_dims;
    for (int i = static_cast<int>(threadIdx.x); i < page_tokens * chunks; i += static_cast<int>(blockDim.x)) {
        const int row = i / chunks, column = i % chunks * chunk_dims;
        const int n = row < rows ? std::max(0, std::min(int{chunk_dims}, dims - column)) : 0;
        std::uint16_t bits[chunk_dims], rest[chunk_dims] = {};
        if constexpr (as_stored) {
            const auto* from = reinterpret_cast<const std::uint16_t*>(tile);
            read_plain(
                from + static_cast<std::size_t>(row) * kv.token_stride + static_cast<std::size_t>(first + column), n,
                bits);
        } else {
            float x[chunk_dims] = {};
            if (n > 0 && row >= open)
                read_tail(open_rows + static_cast<std::size_t>(row - open) * kv.head_dim, first + column, n, x);
            else if (n > 0)
                read_row<S>(kv, tile, row, first + column, n, x);
#pragma unroll
            for (int d = 0; d < chunk_dims; ++d) {
                bits[d] = narrow<Half>(x[d]);
                rest[d] = narrow<Half>(x[d] - widen<Half>(bits[d]));
            }
        }
        uint4 wide;
        memcpy(&wide, bits, sizeof wide);
        *reinterpret_cast<uint4*>(high + row * stride + column) = wide;
        if (low == nullptr) continue;
        memcpy(&wide, rest, sizeof wide);
        *reinterpret_cast<uint4*>(low + row * stride + column) = wide;
    }
}

// The power of two that brings a row whose largest magnitude is `largest` to [1, 2), so that the low half of f16 is
// exact enough, and its reciprocal.
struct RowScale {
    float factor, inverse;
};
__device__ inline RowScale row_scale(float largest) {
    const unsigned exponent = bits_as<std::uint32_t>(largest) >> 23 & 255U;
    if (exponent == 0 || exponent >= 254) return {1, 1};
    return {bits_as<float>((254 - exponent) << 23), bits_as<float>(exponent << 23)};
}

// grid: [block of queries, the last first][query head][slice of the output's dims]. Blocks: Columns blocks of 16 dims.
template <class Half, Stored S, int Columns>
__global__ void __launch_bounds__(128) attention_tiles(DeviceAttention a, DeviceKv values, DeviceSequences s) {
    constexpr int k_parts = S == Stored::f16 || S == Stored::bf16 ? 1 : 2;
    const int tid = static_cast<int>(threadIdx.x), warp = tid / warp_size, lane = tid % warp_size;
    const int queries = static_cast<int>(blockDim.x) / 2, query_dim = static_cast<int>(a.query_dim);
    const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * queries;
    const int last = std::min(first + queries, static_cast<int>(s.n_tokens));
    const std::size_t head = blockIdx.y, kv_head = head / (a.n_heads / a.k.n_heads);
    const int slice = static_cast<int>(blockIdx.z) * Columns * side;
    const int dims = std::min(static_cast<int>(a.output_dim) - slice, Columns * side), columns = round_up(dims, side);
    const bool v_in_k = is_latent(a);
    const Layout at =
        layout_of(queries, query_dim, std::min(static_cast<int>(a.output_dim), Columns * side), k_parts, v_in_k);

    HETERO_DYNAMIC_SHARED(unsigned char, shared);
    const int own = warp * side;  // the warp's first row
    auto* q_high = reinterpret_cast<std::uint16_t*>(shared) + own * at.q_stride;
    auto* q_low = reinterpret_cast<std::uint16_t*>(shared + at.q_low) + own * at.q_stride;
    auto* k_high = reinterpret_cast<std::uint16_t*>(shared + at.k_high);
    auto* k_low = k_parts == 2 ? reinterpret_cast<std::uint16_t*>(shared + at.k_low) : nullptr;
    auto* v = reinterpret_cast<std::uint16_t*>(shared + at.v) + (v_in_k ? slice : 0);
    float* scores = reinterpret_cast<float*>(shared + at.scores) + own * scores_stride;
    auto* weights = reinterpret_cast<std::uint16_t*>(shared + at.weights) + own * weights_stride;
    float* inverse = reinterpret_cast<float*>(shared + at.rows) + 2 * own;  // of the rows' scales
    float* rescale = inverse + side;
    const auto matrix = [](const std::uint16_t* bits) { return reinterpret_cast<const Half*>(bits); };

    using Sums = wmma::fragment<wmma::accumulator, side, side, side, float>;
    using Left = wmma::fragment<wmma::matrix_a, side, side, side, Half, wmma::row_major>;
    using Keys = wmma::fragment<wmma::matrix_b, side, side, side, Half, wmma::col_major>;
    using Values = wmma::fragment<wmma::matrix_b, side, side, side, Half, wmma::row_major>;
    // The row that an element of an accumulator belongs to is not documented: a matrix of row numbers tells.
    int row_of[Sums::num_elements];
    for (int i = lane; i < side * side; i += warp_size)
        scores[i / side * scores_stride + i % side] = static_cast<float>(i / side);
    __syncwarp();
    {
        Sums rows;
        wmma::load_matrix_sync(rows, scores, scores_stride, wmma::mem_row_major);
        for (int i = 0; i < Sums::num_elements; ++i) row_of[i] = static_cast<int>(rows.x[i]);
    }

    for (int begin = first, end = first; begin < last; begin = end) {  // the tokens of one sequence
        const int sequence = s.sequence[begin], position = s.position[begin];
        for (end = begin + 1; end < last && s.sequence[end] == sequence;) ++end;
        const int seen = position + end - begin, window = a.window == 0 || a.window > static_cast<std::size_t>(seen)
                                                              ? seen
                                                              : static_cast<int>(a.window);
        const std::uint32_t* pages = s.pages + static_cast<std::size_t>(sequence) * s.max_pages;
        const int group = static_cast<int>(a.k.group_tokens), open = group != 0 ? position / group * group : seen;
        const std::uint16_t* tail =
            group != 0 ? tail_row(a.k, s.tails[sequence], kv_head, static_cast<std::size_t>(open)) : nullptr;

        __syncwarp();
        for (int row = 0; row < side; ++row) {
            const int token = first + own + row;
            const bool is_here = token >= begin && token < end;
            const float* q =
                a.q.data + static_cast<std::size_t>(is_here ? token : begin) * a.q.stride + head * a.q.head_stride;
            float largest = 0;
            for (int dim = lane; is_here && dim < query_dim; dim += warp_size) largest = fmaxf(largest, fabsf(q[dim]));
            for (int distance = warp_size / 2; distance > 0; distance /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, distance));
            const RowScale scale = row_scale(largest);
            for (int dim = lane; dim < at.q_stride - pad; dim += warp_size) {
                const float x = is_here && dim < query_dim ? q[dim] * scale.factor : 0.0F;
                const std::uint16_t bits = narrow<Half>(x);
                q_high[row * at.q_stride + dim] = bits;
                q_low[row * at.q_stride + dim] = narrow<Half>(x - widen<Half>(bits));
            }
            if (lane == 0) inverse[row] = scale.inverse;
        }
        Sums out[Columns];
#pragma unroll
        for (int j = 0; j < Columns; ++j) wmma::fill_fragment(out[j], 0.0F);
        // Two lanes have a row of scores.
        const int row = lane / 2, token = first + own + row;
        const int row_seen = token >= begin && token < end ? position + token - begin + 1 : 0;
        const int row_begin = std::max(0, row_seen - window);
        const int warp_end = std::min(first + own + side, end);
        const int warp_seen = warp_end > std::max(begin, first + own) ? position + warp_end - begin : 0;  // 0: no rows
        float max = -INFINITY, sum = 0;

        for (int page = std::max(0, position + 1 - window) / page_tokens; page * page_tokens < seen; ++page) {
            const int key = page * page_tokens, rows = std::min(int{page_tokens}, seen - key);
            __syncthreads();
            load_tile<Half, S>(a.k, tile_of(a.k, pages[page], kv_head),
                               tail == nullptr ? nullptr
                                               : tail + static_cast<std::ptrdiff_t>(std::max(0, key - open)) *
                                                            static_cast<std::ptrdiff_t>(a.k.head_dim),
                               std::max(0, open - key), rows, 0, query_dim, at.q_stride - pad, at.q_stride, k_high,
                               k_low);
            if (!v_in_k)
                load_tile<Half, S>(values, tile_of(values, pages[page], kv_head), nullptr, page_tokens, rows, slice,
                                   dims, columns, at.v_stride, v, nullptr);
            __syncthreads();
            if (key >= warp_seen) continue;

            Sums products[key_blocks];
#pragma unroll
            for (int j = 0; j < key_blocks; ++j) wmma::fill_fragment(products[j], 0.0F);
            for (int dim = 0; dim < query_dim; dim += side) {
                Left high, low;
                wmma::load_matrix_sync(high, matrix(q_high + dim), static_cast<unsigned>(at.q_stride));
                wmma::load_matrix_sync(low, matrix(q_low + dim), static_cast<unsigned>(at.q_stride));
#pragma unroll
                for (int j = 0; j < key_blocks; ++j) {
                    Keys keys;
                    wmma::load_matrix_sync(keys, matrix(k_high + j * side * at.q_stride + dim),
                                           static_cast<unsigned>(at.q_stride));
                    wmma::mma_sync(products[j], high, keys, products[j]);
                    wmma::mma_sync(products[j], low, keys, products[j]);
                    if constexpr (k_parts == 2) {
                        wmma::load_matrix_sync(keys, matrix(k_low + j * side * at.q_stride + dim),
                                               static_cast<unsigned>(at.q_stride));
                        wmma::mma_sync(products[j], high, keys, products[j]);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < key_blocks; ++j)
                wmma::store_matrix_sync(scores + j * side, products[j], scores_stride, wmma::mem_row_major);
            __syncwarp();

            float* of_row = scores + row * scores_stride;
            float top = max;
            for (int i = lane % 2; i < page_tokens; i += 2) {
                const bool is_seen = key + i < row_seen && key + i >= row_begin;
                of_row[i] = is_seen ? score_of(a, of_row[i] * inverse[row]) : -INFINITY;
                top = fmaxf(top, of_row[i]);
            }
            top = fmaxf(top, __shfl_xor_sync(all_lanes, top, 1));
            const bool none = top == -INFINITY;
            const float factor = none ? 1.0F : expf(max - top);
            float added = 0;
            for (int i = lane % 2; i < page_tokens; i += 2) {
                const float weight = none ? 0.0F : expf(of_row[i] - top);
                added += weight;
                weights[row * weights_stride + i] = narrow<Half>(weight);
            }
            added += __shfl_xor_sync(all_lanes, added, 1);
            sum = fmaf(sum, factor, added);
            max = top;
            if (lane % 2 == 0) rescale[row] = factor;
            __syncwarp();

            float factors[Sums::num_elements];
#pragma unroll
            for (int i = 0; i < Sums::num_elements; ++i) factors[i] = rescale[row_of[i]];
#pragma unroll
            for (int j = 0; j < Columns; ++j)
#pragma unroll
                for (int i = 0; i < Sums::num_elements; ++i) out[j].x[i] *= factors[i];
            for (int block = 0; block < key_blocks; ++block) {
                Left left;
                wmma::load_matrix_sync(left, matrix(weights + block * side), weights_stride);
#pragma unroll
                for (int j = 0; j < Columns; ++j) {
                    if (j * side >= columns) continue;
                    Values right;
                    wmma::load_matrix_sync(right, matrix(v + block * side * at.v_stride + j * side),
                                           static_cast<unsigned>(at.v_stride));
                    wmma::mma_sync(out[j], left, right, out[j]);
                }
            }
            __syncwarp();
        }

        if (lane % 2 == 0) rescale[row] = sum > 0 ? 1 / sum : sum == 0 ? 0.0F : sum;  // NaN stays
        __syncwarp();
#pragma unroll
        for (int j = 0; j < Columns; ++j) {
            if (j * side >= columns) continue;
            wmma::store_matrix_sync(scores, out[j], scores_stride, wmma::mem_row_major);
            __syncwarp();
            for (int i = lane; i < side * side; i += warp_size) {
                const int to = first + own + i / side, dim = j * side + i % side;
                if (to < begin || to >= end || dim >= dims) continue;
                a.out.data[static_cast<std::size_t>(to) * a.out.stride + head * a.out.head_stride +
                           static_cast<std::size_t>(slice + dim)] =
                    scores[i / side * scores_stride + i % side] * rescale[i / side];
            }
            __syncwarp();
        }
    }
}

int columns_of(const DeviceAttention& a) { return a.output_dim <= 64 ? 4 : a.output_dim <= 128 ? 8 : 16; }

std::size_t block_bytes(const DeviceAttention& a, int queries) {
    const Stored stored = stored_as(a.k);
    const int columns = std::min(static_cast<int>(a.output_dim), columns_of(a) * side);
    return static_cast<std::size_t>(layout_of(queries, static_cast<int>(a.query_dim), columns,
                                              stored == Stored::f16 || stored == Stored::bf16 ? 1 : 2, is_latent(a))
                                        .bytes);
}

template <class Half, Stored S, int Columns>
DeviceFault tiles_by(DeviceStream stream, const DeviceAttention& a, const DeviceSequences& s, int queries) {
    const std::size_t columns = Columns * side;
    const Grid grid{dim3(blocks_for(s.n_tokens, static_cast<std::size_t>(queries)), static_cast<unsigned>(a.n_heads),
                         blocks_for(a.output_dim, columns)),
                    dim3(static_cast<unsigned>(2 * queries)), block_bytes(a, queries)};
    return launch(stream, "attention_tiles", grid,
                  {{"tokens", s.n_tokens},
                   {"heads", a.n_heads},
                   {"kv_heads", a.k.n_heads},
                   {"query_dim", a.query_dim},
                   {"output_dim", a.output_dim}},
                  attention_tiles<Half, S, Columns>, a, values_of(a), s);
}
template <class Half, Stored S>
DeviceFault tiles_of(DeviceStream stream, const DeviceAttention& a, const DeviceSequences& s, int queries) {
    switch (columns_of(a)) {
        case 4:
            return tiles_by<Half, S, 4>(stream, a, s, queries);
        case 8:
            return tiles_by<Half, S, 8>(stream, a, s, queries);
        default:
            return tiles_by<Half, S, 16>(stream, a, s, queries);
    }
}

}  // namespace

bool tiles_fit(const DeviceAttention& a, std::size_t shared_bytes) { return block_bytes(a, side) <= shared_bytes; }

DeviceFault attend_by_tiles(DeviceStream stream, const DeviceAttention& a, const DeviceSequences& s,
                            std::size_t shared_bytes) {
    int queries = 4 * side;
    while (queries > side &&
           (block_bytes(a, queries) > shared_bytes || static_cast<std::size_t>(queries) >= 2 * s.n_tokens))
        queries /= 2;
    switch (stored_as(a.k)) {
        case Stored::f16:
            return tiles_of<__half, Stored::f16>(stream, a, s, queries);
        case Stored::bf16:
            return tiles_of<__nv_bfloat16, Stored::bf16>(stream, a, s, queries);
        case Stored::f32:
            return tiles_of<__nv_bfloat16, Stored::f32>(stream, a, s, queries);
        default:
            return tiles_of<__nv_bfloat16, Stored::codes>(stream, a, s, queries);
    }
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
