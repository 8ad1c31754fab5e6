// Products with many tokens on matrix units: by cuBLASLt, or where it is missing by the kernel here.
#include <mma.h>

#include <algorithm>
#include <type_traits>

#include "kernels/common/fp8.h"
#include "kernels/cuda/gemm_library.h"
#include "kernels/cuda/gemm_tiles.cuh"
#include "kernels/cuda/gemm_weights.h"
#include "kernels/cuda/halves.cuh"
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

// Codes of e4m3fn, which f16 holds exactly.
using Fp8Code = std::uint8_t;
__device__ uint4 widen_codes(const Fp8Code* from, std::size_t n) {
    unsigned words[4] = {};
    for (unsigned j = 0; j < 8 && j < n; ++j)
        words[j / 2] |= static_cast<unsigned>(narrow<__half>(e4m3fn_to_f32(from[j]))) << (16 * (j % 2));
    return make_uint4(words[0], words[1], words[2], words[3]);
}
template <class T, class From>
__device__ void fetch_tile(typename Tile<T>::Fetched& out, const From* from, std::size_t stride, std::size_t n,
                           std::size_t first, std::size_t cols, std::size_t k) {
    if constexpr (std::is_same_v<T, From>) {
        Tile<T>::fetch(out, from, stride, n, first, cols, k);
    } else {
        Tile<T>::fetch_rows(out, k, cols, [&](unsigned row, std::size_t col) {
            if (first + row >= n) return make_uint4(0, 0, 0, 0);
            return widen_codes(from + (first + row) * stride + col, cols - col);
        });
    }
}

// y[token][row] for a tile of each, blockIdx.x of rows and blockIdx.y of tokens.
template <class T, class From>
__global__ __launch_bounds__(Tile<T>::threads) void multiply_tiles(Factors<From> p, Result out) {
    using Parts = Tile<T>;
    __shared__ __align__(32) T w_tile[Parts::elements];
    __shared__ __align__(32) T x_tile[Parts::elements];
    const std::size_t first_row = std::size_t{blockIdx.x} * Parts::rows,
                      first_token = std::size_t{blockIdx.y} * Parts::tokens;
    typename Parts::Accumulators sums;
    Parts::clear(sums);
    typename Parts::Fetched w, x;
    const auto fetch = [&](std::size_t k) {
        fetch_tile<T>(w, p.w, p.w_stride, p.rows, first_row, p.cols, k);
        fetch_tile<T>(x, p.x, p.x_stride, p.n_tokens, first_token, p.cols, k);
    };
    fetch(0);
    for (std::size_t k = 0; k < p.cols; k += Parts::depth) {
        Parts::put(w_tile, w);
        Parts::put(x_tile, x);
        __syncthreads();
        if (k + Parts::depth < p.cols) fetch(k + Parts::depth);  // comes while the products are computed
        Parts::multiply(w_tile, x_tile, sums);
        __syncthreads();
    }
    Parts::for_each(sums, [&](std::size_t token, std::size_t row, float sum) {
        token += first_token;
        row += first_row;
        if (token < p.n_tokens && row < p.rows) put_sum(out, token, row, sum);
    });
}

template <class T, class From = T>
DeviceFault launch_tiles(DeviceStream stream, const Factors<From>& p, const Result& out) {
    const Grid grid{{blocks_for(p.rows, Tile<T>::rows), blocks_for(p.n_tokens, Tile<T>::tokens), 1},
                    {Tile<T>::threads, 1, 1}};
    return launch(stream, "gemm", grid, {{"rows", p.rows}, {"cols", p.cols}, {"tokens", p.n_tokens}},
                  multiply_tiles<T, From>, p, out);
}

// Of operands of one 16-bit type.
DeviceFault multiply_halves(DeviceStream stream, DType type, const DeviceMatrix& w, const DeviceRows& x,
                            std::size_t n_tokens, const Result& out) {
    const std::size_t w_stride = w.row_bytes / 2;
    if (of(stream).library != nullptr && out.row_scale == nullptr) {
        bool done = false;
        DeviceFault fault = multiply_by_library(stream, type == DType::f16 ? DeviceInput::f16 : DeviceInput::bf16, w,
                                                w_stride, x, n_tokens, out, done);
        if (fault || done) return fault;
    }
    if (type == DType::f16)
        return launch_tiles<__half>(stream,
                                    {static_cast<const __half*>(w.data), w_stride, w.rows,
                                     static_cast<const __half*>(x.data), x.stride, n_tokens, w.cols},
                                    out);
    return launch_tiles<__nv_bfloat16>(stream,
                                       {static_cast<const __nv_bfloat16*>(w.data), w_stride, w.rows,
                                        static_cast<const __nv_bfloat16*>(x.data), x.stride, n_tokens, w.cols},
                                       out);
}

std::size_t gemm_scratch_bytes(const DeviceMatrix& w, DeviceInput x, std::size_t n_tokens) {
    const std::size_t granule = 256;
    const auto up = [](std::size_t n) { return (n + granule - 1) / granule * granule; };
    switch (x) {
        case DeviceInput::f16:
        case DeviceInput::bf16:
            if (w.dtype == (x == DeviceInput::f16 ? DType::f16 : DType::bf16)) return 0;
            return up(std::min<std::size_t>(w.rows, Tile<__half>::rows) * (w.cols + 8) * 2);
        case DeviceInput::i8:
        case DeviceInput::e4m3fn:
            return up(w.rows * n_tokens * sizeof(float));
        case DeviceInput::f32:
            break;
    }
    return 0;
}

__global__ void scale_sums(const std::int32_t* integers, const float* floats, std::size_t rows, Result out) {
    const std::size_t row = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (row >= rows) return;
    put_sum(out, token, row,
            integers != nullptr ? static_cast<float>(integers[token * rows + row]) : floats[token * rows + row]);
}

DeviceFault multiply_bytes(DeviceStream stream, const DeviceMatrix& w, const DeviceRows& x, std::size_t n_tokens,
                           const Result& out, void* scratch, std::size_t scratch_bytes) {
    const Shapes shapes = {{"rows", w.rows}, {"cols", w.cols}, {"tokens", n_tokens}};
    const bool is_fp8 = x.type == DeviceInput::e4m3fn;
    if (w.dtype != (is_fp8 ? DType::u8 : DType::i8) || x.scale == nullptr)
        return unsupported(stream, "gemm", "8-bit inputs need weights of their type, and scales", shapes);
    if (of(stream).library != nullptr && scratch_bytes >= w.rows * n_tokens * sizeof(float)) {
        Result sums;
        sums.y = static_cast<float*>(scratch);
        sums.stride = w.rows;
        bool done = false;
        if (DeviceFault fault = multiply_by_library(stream, x.type, w, w.row_bytes, x, n_tokens, sums, done))
            return fault;
        if (done) {
            constexpr unsigned threads = 256;
            return launch(stream, "scale_sums",
                          {{blocks_for(n_tokens, 1), blocks_for(w.rows, threads), 1}, {threads, 1, 1}}, shapes,
                          scale_sums, is_fp8 ? nullptr : static_cast<const std::int32_t*>(scratch),
                          is_fp8 ? static_cast<const float*>(scratch) : nullptr, w.rows, out);
        }
    }
    if (is_fp8)
        return launch_tiles<__half, Fp8Code>(stream,
                                             {static_cast<const Fp8Code*>(w.data), w.row_bytes, w.rows,
                                              static_cast<const Fp8Code*>(x.data), x.stride, n_tokens, w.cols},
                                             out);
    return launch_tiles<signed char>(stream,
                                     {static_cast<const signed char*>(w.data), w.row_bytes, w.rows,
                                      static_cast<const signed char*>(x.data), x.stride, n_tokens, w.cols},
                                     out);
}

DeviceFault gemm(DeviceStream stream, const DeviceMatrix& w, const DeviceRows& x, std::size_t n_tokens, float* y,
                 std::size_t y_stride, bool add, void* scratch, std::size_t scratch_bytes) {
    const DeviceOps& ops = table();
    if (n_tokens == 0 || w.rows == 0) return {};
    if (x.type == DeviceInput::f32)
        return ops.gemv(stream, w, static_cast<const float*>(x.data), x.stride, n_tokens, y, y_stride, add);
    Result out{y, y_stride, w.row_scale, w.bias, x.scale, add};
    if (x.type == DeviceInput::i8 || x.type == DeviceInput::e4m3fn)
        return multiply_bytes(stream, w, x, n_tokens, out, scratch, scratch_bytes);
    out.token_scale = nullptr;
    const DType type = x.type == DeviceInput::f16 ? DType::f16 : DType::bf16;
    if (w.dtype == type) return multiply_halves(stream, type, w, x, n_tokens, out);
    if (n_tokens <= most_decoded_tokens) return multiply_weights(stream, w, x, n_tokens, out, scratch, scratch_bytes);

    const std::size_t padded = (w.cols + 7) / 8 * 8, row_bytes = padded * 2;
    std::size_t rows = std::min(w.rows, scratch_bytes / row_bytes);
    if (rows < w.rows) rows = rows / Tile<__half>::rows * Tile<__half>::rows;
    if (rows == 0)
        return unsupported(stream, "gemm", "the scratch is too small to widen weights in",
                           {{"scratch bytes", scratch_bytes}, {"needed", gemm_scratch_bytes(w, x.type, n_tokens)}});
    for (std::size_t first = 0; first < w.rows; first += rows) {
        DeviceMatrix part = w;
        part.rows = std::min(rows, w.rows - first);
        const void* from = static_cast<const std::byte*>(w.data) + first * w.row_bytes;
        if (DeviceFault fault =
                ops.convert(stream, w.dtype, from, w.row_bytes, type, scratch, row_bytes, part.rows, w.cols))
            return fault;
        part.dtype = type;
        part.data = scratch;
        part.row_bytes = row_bytes;
        Result part_out = out;
        part_out.y += first;
        if (out.row_scale != nullptr) part_out.row_scale += first;
        if (out.bias != nullptr) part_out.bias += first;
        if (DeviceFault fault = multiply_halves(stream, type, part, x, n_tokens, part_out)) return fault;
    }
    return {};
}

}  // namespace

void fill_gemm(DeviceOps& ops) {
    ops.gemm_scratch_bytes = gemm_scratch_bytes;
    ops.gemm = gemm;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
