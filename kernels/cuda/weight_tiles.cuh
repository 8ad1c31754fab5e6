// Products of weights of any type with up to 64 tokens on matrix units, a block for 64 rows. The bytes of weights and
// the activations come to shared memory by asynchronous copies, while the step before is multiplied. A warp decodes the
// weights of its 16 rows there, each once, and multiplies them with all tokens.
#pragma once
#include <cuda_pipeline.h>
#include <mma.h>

#include "kernels/cuda/weights.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// T: the half that weights are rounded to.
template <class E, class C, class T>
struct WeightTile {
    static constexpr int rows = 64, threads = 128, side = 16;
    static constexpr int depth = 128, chunks = depth / 8;  // columns of a step
    // Halves from row to row: the 16 bytes that a matrix load takes of each of eight rows then lie in different banks.
    static constexpr int stride = depth + 8;
    static constexpr int tile_bytes = rows * stride * 2;

    // Weights come by stages, whole blocks of one or two steps. A stage's window begins at a multiple of 16 bytes of
    // the row; windows are an odd number of 16 bytes apart, against bank conflicts.
    static constexpr int stage_cols = C::elems > depth ? C::elems : depth, stage_steps = stage_cols / depth;
    static constexpr int stage_bytes = stage_cols / C::elems * C::bytes;
    static constexpr int step_of_begin = stage_bytes & -stage_bytes;  // stages begin at multiples of this
    static constexpr int window = (stage_bytes + (step_of_begin < 16 ? 16 - step_of_begin : 0) + 15) / 16 * 16;
    static constexpr int pitch = window % 32 == 0 ? window + 16 : window;

    // Under 99 KB, the least of the devices that this is compiled for: three steps under way where they fit, 64 tokens
    // but of weights of four bytes.
    static constexpr int bytes_with(int steps, int tokens) {
        const int stages = stage_steps == 1 ? steps : 2;
        return tile_bytes + stages * rows * pitch + steps * tokens * stride * 2;
    }
    static constexpr int most_bytes = 99 << 10;
    static constexpr int most_tokens = bytes_with(2, 64) <= most_bytes ? 64 : 16;
    static constexpr int steps_held = bytes_with(3, most_tokens) <= most_bytes ? 3 : 2;
    static constexpr int stages_held = stage_steps == 1 ? steps_held : 2;
    static_assert(bytes_with(steps_held, most_tokens) <= most_bytes);
    static std::size_t shared_bytes(std::size_t n_tokens) {
        return static_cast<std::size_t>(bytes_with(steps_held, static_cast<int>((n_tokens + side - 1) / side * side)));
    }

    using A = nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, side, side, side, T, nvcuda::wmma::row_major>;
    using B = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, side, side, side, T, nvcuda::wmma::col_major>;
    using Sums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, side, side, side, float>;

    // Rows of weights: n_rows <= 64 from `w` on.
    struct Rows {
        const Byte* w;
        std::size_t row_bytes, cols;
        int n_rows;
        [[nodiscard]] __device__ bool aligned() const {
            return (reinterpret_cast<std::uintptr_t>(w) | row_bytes) % 16 == 0;
        }
    };

    [[nodiscard]] __host__ __device__ static std::size_t steps_of(std::size_t cols) {
        return (cols + depth - 1) / depth;
    }

    __device__ static void copy_weights(const Rows& from, std::size_t stage, Byte* to) {
        constexpr int pieces = window / 16;
        const std::size_t whole = (from.cols * C::bytes + C::elems - 1) / C::elems;
        const std::size_t begin = stage * stage_bytes / 16 * 16, end = std::min((stage + 1) * stage_bytes, whole);
        const bool aligned = from.aligned();
        for (int i = static_cast<int>(threadIdx.x); i < from.n_rows * pieces; i += threads) {
            const int row = i / pieces, piece = i % pieces;
            const std::size_t at = begin + static_cast<std::size_t>(piece) * 16;
            if (at >= end) continue;
            const Byte* source = from.w + static_cast<std::size_t>(row) * from.row_bytes + at;
            Byte* target = to + row * pitch + piece * 16;
            if (aligned) {
                __pipeline_memcpy_async(target, source, 16);
            } else {
                for (std::size_t b = 0; b < 16 && at + b < end; ++b) target[b] = source[b];
            }
        }
    }

    // Columns of a step of [n][cols] inputs, zeros beyond `cols` and where row_of(token) is null.
    template <class RowOf>
    __device__ static void copy_inputs(const RowOf& row_of, int n, bool aligned, std::size_t cols, std::size_t step,
                                       std::uint16_t* to) {
        for (int i = static_cast<int>(threadIdx.x); i < n * chunks; i += threads) {
            const int token = i / chunks, first = i % chunks * 8;
            const std::size_t col = step * depth + static_cast<std::size_t>(first);
            const std::uint16_t* row = row_of(token);
            std::uint16_t* target = to + token * stride + first;
            const std::size_t left = row == nullptr || col >= cols ? 0 : cols - col;
            if (aligned && left >= 8) {
                __pipeline_memcpy_async(target, row + col, 16);
            } else {
                for (std::size_t j = 0; j < 8; ++j) target[j] = j < left ? row[col + j] : std::uint16_t{0};
            }
        }
    }

    // The warp's 16 rows of a step, [16][stride]; zeros beyond the matrix.
    __device__ static void decode(const Rows& from, const Byte* windows, std::size_t step, std::uint16_t* tile) {
        const int first_row = static_cast<int>(threadIdx.x) / warp_size * side;
        const int lane = static_cast<int>(threadIdx.x) % warp_size;
        const std::size_t stage = step / stage_steps;
        const int begin = static_cast<int>(stage * stage_bytes % 16), turn = static_cast<int>(step % stage_steps);
        for (int i = lane; i < side * chunks; i += warp_size) {
            const int row = i / chunks, number = turn * chunks + i % chunks;  // of the stage's chunks
            const Byte* at = windows + (first_row + row) * pitch + begin;
            float values[8] = {};
            int first = number * 8;
            if constexpr (C::elems == 8) {
                const std::size_t col = stage * stage_cols + static_cast<std::size_t>(first);
                const std::size_t left = first_row + row >= from.n_rows || col >= from.cols ? 0 : from.cols - col;
                at += number * C::bytes;
                if (left >= 8) {
                    Chunk chunk;
                    C::decode_aligned(at, chunk);
                    chunk_values<C>(chunk, values);
                } else {
#pragma unroll
                    for (std::size_t j = 0; j < 8; ++j)
                        if (j < left) values[j] = E::at(at, j);
                }
            } else {
                constexpr int of_block = C::elems / 8;
                const int block = number / of_block, k = number % of_block;
                first = block * C::elems + C::first(k);
                if (first_row + row < from.n_rows &&
                    stage * stage_cols + static_cast<std::size_t>(block * C::elems) < from.cols) {
                    Chunk chunk;
                    C::decode(at + block * C::bytes, k, chunk);
                    chunk_values<C>(chunk, values);
                }
            }
            std::uint16_t* target = tile + row * stride + first - turn * depth;
            put(target, values);
            put(target + C::gap, values + 4);
        }
    }
    __device__ static void put(std::uint16_t* to, const float* values) {
        const auto pair = [](float low, float high) {
            return static_cast<unsigned>(narrow<T>(low)) | static_cast<unsigned>(narrow<T>(high)) << 16;
        };
        *reinterpret_cast<uint2*>(to) = make_uint2(pair(values[0], values[1]), pair(values[2], values[3]));
    }

    // y[row][token] += w x^T over steps [first_step, end_step), whole stages but at the end. body(row, token, sum), by
    // the lanes of a warp together. `held`: tokens that the block's shared memory was asked for, a multiple of 16.
    template <class RowOf, class Body>
    __device__ static void multiply(const Rows& from, const RowOf& row_of, int n_tokens, int held, bool aligned,
                                    std::size_t first_step, std::size_t end_step, const Body& body) {
        namespace wmma = nvcuda::wmma;
        HETERO_DYNAMIC_SHARED(Byte, shared);
        const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
        auto* tile = reinterpret_cast<std::uint16_t*>(shared) + warp * side * stride;
        Byte* windows = shared + tile_bytes;
        auto* inputs = reinterpret_cast<std::uint16_t*>(windows + stages_held * rows * pitch);
        const int blocks = (n_tokens + side - 1) / side;
        const auto copy = [&](std::size_t step) {
            if (step < end_step) {
                const std::size_t stage = step / stage_steps;
                if (step % stage_steps == 0) copy_weights(from, stage, windows + stage % stages_held * (rows * pitch));
                copy_inputs(row_of, blocks * side, aligned, from.cols, step,
                            inputs + static_cast<int>(step % steps_held) * held * stride);
            }
            __pipeline_commit();
        };

        constexpr int most_blocks = most_tokens / side;
        Sums sums[most_blocks];
#pragma unroll
        for (int j = 0; j < most_blocks; ++j) wmma::fill_fragment(sums[j], 0.0F);
        for (int ahead = 0; ahead < steps_held - 1; ++ahead) copy(first_step + static_cast<std::size_t>(ahead));
        for (std::size_t step = first_step; step < end_step; ++step) {
            __pipeline_wait_prior(steps_held - 2);
            __syncthreads();  // this step is there, and all warps have done with the one before
            copy(step + steps_held - 1);
            decode(from, windows + step / stage_steps % stages_held * (rows * pitch), step, tile);
            __syncwarp();
            const std::uint16_t* x = inputs + static_cast<int>(step % steps_held) * held * stride;
            for (int k = 0; k < depth; k += side) {
                A left;
                wmma::load_matrix_sync(left, reinterpret_cast<const T*>(tile + k), stride);
#pragma unroll
                for (int j = 0; j < most_blocks; ++j) {
                    if (j >= blocks) break;
                    B right;
                    wmma::load_matrix_sync(right, reinterpret_cast<const T*>(x + j * side * stride + k), stride);
                    wmma::mma_sync(sums[j], left, right, sums[j]);
                }
            }
            __syncwarp();
        }

        constexpr int across = side + 4;
        auto* staged = reinterpret_cast<float*>(tile);  // [token][row]
        static_assert(side * across * 4 <= side * stride * 2);
#pragma unroll
        for (int j = 0; j < most_blocks; ++j) {
            if (j >= blocks) break;
            wmma::store_matrix_sync(staged, sums[j], across, wmma::mem_col_major);
            __syncwarp();
            for (int i = lane; i < side * side; i += warp_size) {
                const int row = warp * side + i % side, token = j * side + i / side;
                if (row < from.n_rows && token < n_tokens) body(row, token, staged[i / side * across + i % side]);
            }
            __syncwarp();
        }
    }
};

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
