// A tile of a product, [128 tokens][128 rows], by eight warps with 16 x 16 x 16 tensor core products.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/result.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// y = x w^T: rows of both are vectors of `cols`.
template <class T>
struct Factors {
    const T* w;  // [rows][cols]
    std::size_t w_stride, rows;
    const T* x;  // [n_tokens][cols]
    std::size_t x_stride, n_tokens, cols;
};

template <class T>
struct Tile {
    static constexpr unsigned rows = 128, tokens = 128, depth = 32, threads = 256;
    static constexpr bool bytes = sizeof(T) == 1;
    // Where the tile keeps column k of row r: rows of halves are padded against bank conflicts; of bytes, 16 columns
    // lie together, as a 16 x 16 matrix has to begin at a multiple of 32 bytes.
    static constexpr unsigned stride = bytes ? 16 : depth + 8;
    static constexpr unsigned elements = bytes ? depth * rows : rows * stride;
    __device__ static unsigned at(unsigned row, unsigned k) {
        return bytes ? (k / 16) * rows * 16 + row * 16 + k % 16 : row * stride + k;
    }

    using Sum = std::conditional_t<bytes, int, float>;
    using A = nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, T, nvcuda::wmma::row_major>;
    using B = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, T, nvcuda::wmma::col_major>;
    using C = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, Sum>;
    // Of a warp: 64 tokens x 32 rows.
    static constexpr unsigned down = 4, across = 2;
    struct Accumulators {
        C part[down][across];
    };
    __device__ static unsigned warp_token() { return threadIdx.x / warp_size % 2 * 64; }
    __device__ static unsigned warp_row() { return threadIdx.x / warp_size / 2 * 32; }

    __device__ static void clear(Accumulators& sums) {
#pragma unroll
        for (unsigned i = 0; i < down; ++i)
#pragma unroll
            for (unsigned j = 0; j < across; ++j) nvcuda::wmma::fill_fragment(sums.part[i][j], Sum{0});
    }

    // Columns [k, k + depth) of 128 vectors from `first` on, zeros beyond `n` vectors and `cols`: on their way to a
    // tile, a part in each thread.
    static constexpr unsigned width = 16 / sizeof(T), per_row = depth / width, pieces = rows * per_row / threads;
    struct Fetched {
        uint4 piece[pieces];
    };
    __device__ static void fetch(Fetched& out, const T* from, std::size_t stride_of, std::size_t n, std::size_t first,
                                 std::size_t cols, std::size_t k) {
        const bool aligned = (reinterpret_cast<std::uintptr_t>(from) | stride_of * sizeof(T)) % 16 == 0;
        fetch_rows(out, k, cols, [&](unsigned row, std::size_t col) {
            if (first + row >= n) return make_uint4(0, 0, 0, 0);
            return piece_of(from + (first + row) * stride_of + col, cols - col, aligned);
        });
    }
    // piece(row of the tile, column), which is below `cols`
    template <class Piece>
    __device__ static void fetch_rows(Fetched& out, std::size_t k, std::size_t cols, const Piece& piece) {
#pragma unroll
        for (unsigned i = 0; i < pieces; ++i) {
            const unsigned place = threadIdx.x + i * threads;
            const std::size_t col = k + place % per_row * width;
            out.piece[i] = col < cols ? piece(place / per_row, col) : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ static uint4 piece_of(const T* from, std::size_t n, bool aligned) {
        if (aligned && n >= width) return *reinterpret_cast<const uint4*>(from);
        return ragged_piece(from, n);
    }
    __device__ static uint4 ragged_piece(const T* from, std::size_t n) {
        using Bits = std::conditional_t<bytes, std::uint8_t, std::uint16_t>;
        unsigned words[4] = {};
        for (unsigned j = 0; j < width && j < n; ++j)
            words[j * sizeof(T) / 4] |= static_cast<unsigned>(reinterpret_cast<const Bits*>(from)[j])
                                        << (8 * sizeof(T) * j % 32);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
    __device__ static void put(T* tile, const Fetched& from) {
#pragma unroll
        for (unsigned i = 0; i < pieces; ++i) {
            const unsigned place = threadIdx.x + i * threads;
            *reinterpret_cast<uint4*>(tile + at(place / per_row, place % per_row * width)) = from.piece[i];
        }
    }

    __device__ static void multiply(const T* w_tile, const T* x_tile, Accumulators& sums) {
#pragma unroll
        for (unsigned k = 0; k < depth; k += 16) {
            A x[down];
            B w[across];
#pragma unroll
            for (unsigned i = 0; i < down; ++i)
                nvcuda::wmma::load_matrix_sync(x[i], x_tile + at(warp_token() + 16 * i, k), stride);
#pragma unroll
            for (unsigned j = 0; j < across; ++j)
                nvcuda::wmma::load_matrix_sync(w[j], w_tile + at(warp_row() + 16 * j, k), stride);
#pragma unroll
            for (unsigned i = 0; i < down; ++i)
#pragma unroll
                for (unsigned j = 0; j < across; ++j)
                    nvcuda::wmma::mma_sync(sums.part[i][j], x[i], w[j], sums.part[i][j]);
        }
    }

    // body(token of the tile, row of the tile, sum)
    template <class Body>
    __device__ static void for_each(const Accumulators& sums, const Body& body) {
        constexpr unsigned pad = 20;
        __shared__ __align__(32) Sum staging[threads / warp_size][16 * pad];
        Sum* own = staging[threadIdx.x / warp_size];
        const unsigned lane = threadIdx.x % warp_size;
#pragma unroll
        for (unsigned i = 0; i < down; ++i)
#pragma unroll
            for (unsigned j = 0; j < across; ++j) {
                nvcuda::wmma::store_matrix_sync(own, sums.part[i][j], pad, nvcuda::wmma::mem_row_major);
                __syncwarp();
                for (unsigned e = lane; e < 256; e += warp_size)
                    body(warp_token() + 16 * i + e / 16, warp_row() + 16 * j + e % 16,
                         static_cast<float>(own[e / 16 * pad + e % 16]));
                __syncwarp();
            }
    }
};

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
