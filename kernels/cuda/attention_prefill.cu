// Attention of many tokens on matrix units, keys tile by tile with running maxima (FlashAttention-2,
// https://arxiv.org/abs/2307.08691). A block has up to 64 queries of one head, a warp 16 of them; a tile is up to 64
// keys of a page, as many as the shape of a head leaves room for, so that a query has the same bits in any chunk.
//
// V of a tile is on its way to shared memory while its keys are multiplied, and K of the next tile while its weights
// are: each needs one buffer alone. (A latent is both at once: it has two.) What is not stored as the products' halves
// is converted on its way, which nothing overlaps but other warps.
//
// Q counts as a sum of two halves, and so does K where it is not stored in this half; weights and V as one.
#include <cuda_pipeline.h>
#include <mma.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/halves.cuh"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int side = 16;                        // of a matrix product
constexpr int key_blocks = page_tokens / side;  // at most

// A matrix load takes 16 bytes of each of eight rows: rows of 16 n + 8 halves, or 16 n + 4 floats, are an odd multiple
// of four banks apart, so that they lie in different ones.
constexpr int pad = 8, float_pad = 4;

// What a block has at a time.
struct Tile {
    int queries, keys;
};

// Where things lie in a block's shared memory, bytes; sizes of rows in elements.
struct Layout {
    int q_stride, v_stride, scores_stride, weights_stride;
    int q_low, k_high, k_low, k_bytes, v, scores, weights, rows, bytes;
};
__host__ __device__ inline int round_up(int n, int to) { return (n + to - 1) / to * to; }
__host__ __device__ inline Layout layout_of(Tile tile, int query_dim, int columns, int k_parts, bool v_in_k) {
    Layout at{};
    at.q_stride = round_up(query_dim, side) + pad;
    at.v_stride = v_in_k ? at.q_stride : round_up(columns, side) + pad;
    at.scores_stride = tile.keys + float_pad;
    at.weights_stride = tile.keys + pad;
    int end = 0;
    const auto place = [&end](int bytes) {
        const int begin = end;
        end += round_up(bytes, 128);
        return begin;
    };
    place(tile.queries * at.q_stride * 2);  // the high half of Q
    at.q_low = place(tile.queries * at.q_stride * 2);
    at.k_high = place(tile.keys * at.q_stride * 2);
    at.k_low = k_parts == 2 ? place(tile.keys * at.q_stride * 2) : at.k_high;
    at.k_bytes = end - at.k_high;
    if (v_in_k) place(at.k_bytes);
    at.v = v_in_k ? at.k_high : place(tile.keys * at.v_stride * 2);
    at.scores = place(tile.queries * at.scores_stride * 4);
    at.weights = place(tile.queries * at.weights_stride * 2);
    at.rows = place(tile.queries * 2 * 4);
    at.bytes = end;
    return at;
}

// Rows [first, first + n) of a page's tile; those from `open` on lie in a tail.
struct Rows {
    const std::byte* tile;
    int first, n;
    int open;
    const std::uint16_t* open_rows;
};

// Brings `columns` dims from `first` on to [keys][stride], zeros in rows beyond those there are and columns beyond
// `dims`: by asynchronous copies where that is possible.
template <class Half, Stored S>
__device__ void load_tile(const DeviceKv& kv, const Rows& rows, int keys, int first, int dims, int columns, int stride,
                          std::uint16_t* high, std::uint16_t* low) {
    constexpr bool as_stored = (S == Stored::f16 && is_f16<Half>) || (S == Stored::bf16 && !is_f16<Half>);
    const int chunks = columns / chunk_dims;
    const auto* halves = reinterpret_cast<const std::uint16_t*>(rows.tile);
    const bool copied =
        as_stored && dims % chunk_dims == 0 && kv.token_stride % chunk_dims == 0 && is_aligned(halves + first, 16);
    for (int i = static_cast<int>(threadIdx.x); i < keys * chunks; i += static_cast<int>(blockDim.x)) {
        const int row = i / chunks, column = i % chunks * chunk_dims, from = rows.first + row;
        const int n = row < rows.n ? std::max(0, std::min(int{chunk_dims}, dims - column)) : 0;
        std::uint16_t* to = high + row * stride + column;
        std::uint16_t bits[chunk_dims], rest[chunk_dims] = {};
        if constexpr (as_stored) {
            const std::size_t at =
                n == 0 ? 0
                       : static_cast<std::size_t>(from) * kv.token_stride + static_cast<std::size_t>(first + column);
            if (copied) {
                __pipeline_memcpy_async(to, halves + at, 16, n == 0 ? 16 : 0);
                continue;
            }
            read_plain(halves + at, n, bits);
        } else {
            float x[chunk_dims] = {};
            if (n > 0 && from >= rows.open)
                read_tail(rows.open_rows + static_cast<std::size_t>(from - rows.open) * kv.head_dim, first + column, n,
                          x);
            else if (n > 0)
                read_row<S>(kv, rows.tile, from, first + column, n, x);
#pragma unroll
            for (int d = 0; d < chunk_dims; ++d) {
                bits[d] = narrow<Half>(x[d]);
                rest[d] = narrow<Half>(x[d] - widen<Half>(bits[d]));
            }
        }
        uint4 wide;
        memcpy(&wide, bits, sizeof wide);
        *reinterpret_cast<uint4*>(to) = wide;
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
__global__ void __launch_bounds__(128)
    attention_tiles(DeviceAttention a, DeviceKv values, DeviceSequences s, int keys) {
    constexpr int k_parts = S == Stored::f16 || S == Stored::bf16 ? 1 : 2;
    const int tid = static_cast<int>(threadIdx.x), warp = tid / warp_size, lane = tid % warp_size;
    const int queries = static_cast<int>(blockDim.x) / 2, query_dim = static_cast<int>(a.query_dim);
    const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * queries;
    const int last = std::min(first + queries, static_cast<int>(s.n_tokens));
    const std::size_t head = blockIdx.y, kv_head = head / (a.n_heads / a.k.n_heads);
    const int slice = static_cast<int>(blockIdx.z) * Columns * side;
    const int dims = std::min(static_cast<int>(a.output_dim) - slice, Columns * side), columns = round_up(dims, side);
    const bool v_in_k = is_latent(a);
    const Layout at = layout_of({queries, keys}, query_dim, std::min(static_cast<int>(a.output_dim), Columns * side),
                                k_parts, v_in_k);

    HETERO_DYNAMIC_SHARED(unsigned char, shared);
    const int own = warp * side;  // the warp's first row
    auto* q_high = reinterpret_cast<std::uint16_t*>(shared) + own * at.q_stride;
    auto* q_low = reinterpret_cast<std::uint16_t*>(shared + at.q_low) + own * at.q_stride;
    auto* scores = reinterpret_cast<float*>(shared + at.scores) + own * at.scores_stride;
    auto* weights = reinterpret_cast<std::uint16_t*>(shared + at.weights) + own * at.weights_stride;
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
        scores[i / side * at.scores_stride + i % side] = static_cast<float>(i / side);
    __syncwarp();
    {
        Sums rows;
        wmma::load_matrix_sync(rows, scores, static_cast<unsigned>(at.scores_stride), wmma::mem_row_major);
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
            const RowScale scale = row_scale(warp_max(largest));
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

        const auto rows_of = [&](const DeviceKv& part, int key) {
            const int page = key / page_tokens;
            return Rows{tile_of(part, pages[page], kv_head), key % page_tokens, std::min(keys, seen - key), page_tokens,
                        nullptr};
        };
        // The buffers of K take turns where there are two.
        const int first_key = std::max(0, position + 1 - window) / keys * keys;
        const auto k_of = [&](int key) {
            return shared + at.k_high + (v_in_k ? (key - first_key) / keys % 2 * at.k_bytes : 0);
        };
        const auto load_k = [&](int key) {
            Rows rows = rows_of(a.k, key);
            if (tail != nullptr) {  // of the group that is open at the first query
                const int begin_of_page = key / page_tokens * page_tokens;
                rows.open = std::max(0, open - begin_of_page);
                rows.open_rows = tail + static_cast<std::ptrdiff_t>(std::max(0, begin_of_page - open)) *
                                            static_cast<std::ptrdiff_t>(a.k.head_dim);
            }
            auto* high = reinterpret_cast<std::uint16_t*>(k_of(key));
            load_tile<Half, S>(a.k, rows, keys, 0, query_dim, at.q_stride - pad, at.q_stride, high,
                               k_parts == 2 ? high + (at.k_low - at.k_high) / 2 : nullptr);
            __pipeline_commit();
        };
        __syncthreads();  // a latent that is V for the sequence before may still be read
        load_k(first_key);
        for (int key = first_key; key < seen; key += keys) {
            __pipeline_wait_prior(0);
            __syncthreads();  // K is there, and nobody reads the last tile's V
            const auto* k_high = reinterpret_cast<const std::uint16_t*>(k_of(key));
            const std::uint16_t* k_low = k_high + (at.k_low - at.k_high) / 2;
            auto* v = reinterpret_cast<std::uint16_t*>(v_in_k ? k_of(key) : shared + at.v) + (v_in_k ? slice : 0);
            if (!v_in_k) {
                load_tile<Half, S>(values, rows_of(values, key), keys, slice, dims, columns, at.v_stride, v, nullptr);
                __pipeline_commit();
            }
            const bool sees = key < warp_seen;  // else the warp has no part in it
            if (sees) {
                Sums products[key_blocks];
#pragma unroll
                for (int j = 0; j < key_blocks; ++j) wmma::fill_fragment(products[j], 0.0F);
                for (int dim = 0; dim < query_dim; dim += side) {
                    Left high, low;
                    wmma::load_matrix_sync(high, matrix(q_high + dim), static_cast<unsigned>(at.q_stride));
                    wmma::load_matrix_sync(low, matrix(q_low + dim), static_cast<unsigned>(at.q_stride));
#pragma unroll
                    for (int j = 0; j < key_blocks; ++j) {
                        if (j * side >= keys) break;
                        Keys right;
                        wmma::load_matrix_sync(right, matrix(k_high + j * side * at.q_stride + dim),
                                               static_cast<unsigned>(at.q_stride));
                        wmma::mma_sync(products[j], high, right, products[j]);
                        wmma::mma_sync(products[j], low, right, products[j]);
                        if constexpr (k_parts == 2) {
                            wmma::load_matrix_sync(right, matrix(k_low + j * side * at.q_stride + dim),
                                                   static_cast<unsigned>(at.q_stride));
                            wmma::mma_sync(products[j], high, right, products[j]);
                        }
                    }
                }
#pragma unroll
                for (int j = 0; j < key_blocks; ++j) {
                    if (j * side >= keys) break;
                    wmma::store_matrix_sync(scores + j * side, products[j], static_cast<unsigned>(at.scores_stride),
                                            wmma::mem_row_major);
                }
            }
            __pipeline_wait_prior(0);
            __syncthreads();  // V is there, and nobody reads this K
            if (key + keys < seen) load_k(key + keys);
            if (!sees) continue;

            // Rows that are eight apart have the same banks: they take the halves of each four columns in turn. What is
            // added up is so in one order for all rows.
            float* of_row = scores + row * at.scores_stride;
            const int turn = row / 8 * 2;
            float top = max;
            for (int i = 0; i < keys; i += 2) {
                const int column = (i ^ turn) + lane % 2;
                const bool is_seen = key + column < row_seen && key + column >= row_begin;
                of_row[column] = is_seen ? score_of(a, of_row[column] * inverse[row]) : -INFINITY;
                top = fmaxf(top, of_row[column]);
            }
            top = warp_max<2>(top);
            const bool none = top == -INFINITY;
            const float factor = none ? 1.0F : expf(max - top);
            float low = 0, high = 0;  // of each four columns
            for (int i = 0; i < keys; i += 2) {
                const int column = (i ^ turn) + lane % 2;
                const float weight = none ? 0.0F : expf(of_row[column] - top);
                (column % 4 < 2 ? low : high) += weight;
                weights[row * at.weights_stride + column] = narrow<Half>(weight);
            }
            const float added = warp_sum<2>(low + high);
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
            for (int block = 0; block < keys; block += side) {
                Left left;
                wmma::load_matrix_sync(left, matrix(weights + block), static_cast<unsigned>(at.weights_stride));
#pragma unroll
                for (int j = 0; j < Columns; ++j) {
                    if (j * side >= columns) continue;
                    Values right;
                    wmma::load_matrix_sync(right, matrix(v + block * at.v_stride + j * side),
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
            wmma::store_matrix_sync(scores, out[j], static_cast<unsigned>(at.scores_stride), wmma::mem_row_major);
            __syncwarp();
            for (int i = lane; i < side * side; i += warp_size) {
                const int to = first + own + i / side, dim = j * side + i % side;
                if (to < begin || to >= end || dim >= dims) continue;
                a.out.data[static_cast<std::size_t>(to) * a.out.stride + head * a.out.head_stride +
                           static_cast<std::size_t>(slice + dim)] =
                    scores[i / side * at.scores_stride + i % side] * rescale[i / side];
            }
            __syncwarp();
        }
    }
}

int columns_of(const DeviceAttention& a) { return a.output_dim <= 64 ? 4 : a.output_dim <= 128 ? 8 : 16; }

std::size_t block_bytes(const DeviceAttention& a, Tile tile) {
    const Stored stored = stored_as(a.k);
    const int columns = std::min(static_cast<int>(a.output_dim), columns_of(a) * side);
    return static_cast<std::size_t>(layout_of(tile, static_cast<int>(a.query_dim), columns,
                                              stored == Stored::f16 || stored == Stored::bf16 ? 1 : 2, is_latent(a))
                                        .bytes);
}

// The largest that fits, queries first: the more of them, the less often K and V are read. No keys: none does. In 99
// KB, with K and V of 16 bits: heads of 64 dims take 63 KB for 64 queries x 64 keys, of 128 dims 95 KB for as many, of
// 256 dims 91 KB for 64 x 16; and 163, 207 and 251 registers a thread (sm_90), of which none is kept elsewhere.
Tile tile_for(const DeviceAttention& a, std::size_t shared_bytes) {
    for (const int queries : {4 * side, 2 * side, side})
        for (const int keys : {int{page_tokens}, 2 * side, side})
            if (block_bytes(a, {queries, keys}) <= shared_bytes) return {queries, keys};
    return {};
}

template <class Half, Stored S, int Columns>
DeviceFault tiles_by(DeviceStream stream, const DeviceAttention& a, const DeviceSequences& s, Tile tile) {
    const std::size_t columns = Columns * side;
    const Grid grid{dim3(blocks_for(s.n_tokens, static_cast<std::size_t>(tile.queries)),
                         static_cast<unsigned>(a.n_heads), blocks_for(a.output_dim, columns)),
                    dim3(static_cast<unsigned>(2 * tile.queries)), block_bytes(a, tile)};
    return launch(stream, "attention_tiles", grid,
                  {{"tokens", s.n_tokens},
                   {"heads", a.n_heads},
                   {"kv_heads", a.k.n_heads},
                   {"query_dim", a.query_dim},
                   {"output_dim", a.output_dim}},
                  attention_tiles<Half, S, Columns>, a, values_of(a), s, tile.keys);
}
template <class Half, Stored S>
DeviceFault tiles_of(DeviceStream stream, const DeviceAttention& a, const DeviceSequences& s, Tile tile) {
    switch (columns_of(a)) {
        case 4:
            return tiles_by<Half, S, 4>(stream, a, s, tile);
        case 8:
            return tiles_by<Half, S, 8>(stream, a, s, tile);
        default:
            return tiles_by<Half, S, 16>(stream, a, s, tile);
    }
}

}  // namespace

bool tiles_fit(const DeviceAttention& a, std::size_t shared_bytes) { return tile_for(a, shared_bytes).keys != 0; }

DeviceFault attend_by_tiles(DeviceStream stream, const DeviceAttention& a, const DeviceSequences& s,
                            std::size_t shared_bytes) {
    Tile tile = tile_for(a, shared_bytes);  // its keys depend on the heads' shape alone
    while (tile.queries > side && static_cast<std::size_t>(tile.queries) >= 2 * s.n_tokens) tile.queries /= 2;
    switch (stored_as(a.k)) {
        case Stored::f16:
            return tiles_of<__half, Stored::f16>(stream, a, s, tile);
        case Stored::bf16:
            return tiles_of<__nv_bfloat16, Stored::bf16>(stream, a, s, tile);
        case Stored::f32:
            return tiles_of<__nv_bfloat16, Stored::f32>(stream, a, s, tile);
        default:
            return tiles_of<__nv_bfloat16, Stored::codes>(stream, a, s, tile);
    }
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
