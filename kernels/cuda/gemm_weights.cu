#include <algorithm>

#include "kernels/cuda/gemm_weights.h"
#include "kernels/cuda/weight_tiles.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

// grid: [64 rows][tokens of a tile][part of the columns]; with more than one part sums go to parts
// [part][token][row].
template <class E, class C, class T>
__global__ void __launch_bounds__(WeightTile<E, C, T>::threads)
    multiply_decoded(DeviceMatrix w, const std::uint16_t* x, std::size_t x_stride, std::size_t n_tokens,
                     std::size_t part_steps, float* parts, Result out) {
    using Tile = WeightTile<E, C, T>;
    const std::size_t first_row = std::size_t{blockIdx.x} * Tile::rows;
    const std::size_t first_token = std::size_t{blockIdx.y} * Tile::most_tokens;
    const std::size_t first_step = blockIdx.z * part_steps, steps = Tile::steps_of(w.cols);
    const auto own = [](std::size_t n, int most) {
        return static_cast<int>(n < std::size_t(most) ? n : std::size_t(most));
    };
    const int tokens = own(n_tokens - first_token, Tile::most_tokens);
    const auto row_of = [&](int token) {
        return token < tokens ? x + (first_token + static_cast<std::size_t>(token)) * x_stride : nullptr;
    };
    Tile::multiply({static_cast<const Byte*>(w.data) + first_row * w.row_bytes, w.row_bytes, w.cols,
                    own(w.rows - first_row, Tile::rows)},
                   row_of, tokens, (own(n_tokens, Tile::most_tokens) + Tile::side - 1) / Tile::side * Tile::side,
                   (reinterpret_cast<std::uintptr_t>(x) | 2 * x_stride) % 16 == 0, first_step,
                   std::min(first_step + part_steps, steps), [&](int row, int token, float sum) {
                       const std::size_t to_row = first_row + static_cast<std::size_t>(row);
                       const std::size_t to_token = first_token + static_cast<std::size_t>(token);
                       if (gridDim.z == 1)
                           put_sum(out, to_token, to_row, sum);
                       else
                           parts[(blockIdx.z * n_tokens + to_token) * w.rows + to_row] = sum;
                   });
}

// In the order of the parts.
__global__ void add_parts(const float* parts, std::size_t n_parts, std::size_t n_tokens, std::size_t rows, Result out) {
    const std::size_t row = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (std::size_t part = 0; part < n_parts; ++part) sum += parts[(part * n_tokens + token) * rows + row];
    put_sum(out, token, row, sum);
}

template <class E, class C, class T>
DeviceFault launch_decoded(DeviceStream stream, const DeviceMatrix& w, const DeviceRows& x, std::size_t n_tokens,
                           const Result& out, float* parts, std::size_t most_parts) {
    using Tile = WeightTile<E, C, T>;
    constexpr std::size_t blocks_each = 2;  // of a multiprocessor
    constexpr std::size_t least_steps = 4;  // of a part
    const unsigned by_rows = blocks_for(w.rows, Tile::rows), by_tokens = blocks_for(n_tokens, Tile::most_tokens);
    const std::size_t wanted = blocks_each * static_cast<std::size_t>(of(stream).multiprocessors);
    const std::size_t steps = Tile::steps_of(w.cols);
    std::size_t n_parts = std::min({wanted / (by_rows * by_tokens), steps / least_steps, most_parts});
    n_parts = std::max<std::size_t>(n_parts, 1);
    // Parts begin with a stage.
    const std::size_t part_steps =
        (steps + n_parts * Tile::stage_steps - 1) / (n_parts * Tile::stage_steps) * Tile::stage_steps;
    n_parts = (steps + part_steps - 1) / part_steps;

    const Shapes shapes = {{"rows", w.rows}, {"cols", w.cols}, {"tokens", n_tokens}, {"parts", n_parts}};
    const Grid grid{{by_rows, by_tokens, static_cast<unsigned>(n_parts)},
                    {Tile::threads, 1, 1},
                    Tile::shared_bytes(std::min<std::size_t>(n_tokens, Tile::most_tokens))};
    DeviceFault fault = launch(stream, "gemm_decoded", grid, shapes, multiply_decoded<E, C, T>, w,
                               static_cast<const std::uint16_t*>(x.data), x.stride, n_tokens, part_steps, parts, out);
    if (fault || n_parts == 1) return fault;
    constexpr unsigned threads = 256;
    return launch(stream, "add_parts", {{blocks_for(n_tokens, 1), blocks_for(w.rows, threads), 1}, {threads, 1, 1}},
                  shapes, add_parts, parts, n_parts, n_tokens, w.rows, out);
}

}  // namespace

DeviceFault multiply_weights(DeviceStream stream, const DeviceMatrix& w, const DeviceRows& x, std::size_t n_tokens,
                             const Result& out, void* scratch, std::size_t scratch_bytes) {
    auto* parts = static_cast<float*>(scratch);
    const std::size_t most_parts = scratch_bytes / (n_tokens * w.rows * sizeof(float));
    DeviceFault fault;
    const bool known =
        whole_blocks(w) && with_type(w.dtype, [&](auto elements, auto chunks) {
            using E = decltype(elements);
            using C = decltype(chunks);
            fault = x.type == DeviceInput::f16
                        ? launch_decoded<E, C, __half>(stream, w, x, n_tokens, out, parts, most_parts)
                        : launch_decoded<E, C, __nv_bfloat16>(stream, w, x, n_tokens, out, parts, most_parts);
        });
    if (!known)
        return unsupported(stream, "gemm", "no kernel for weights of this type and length",
                           {{"dtype", static_cast<std::size_t>(w.dtype)}, {"cols", w.cols}});
    return fault;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
