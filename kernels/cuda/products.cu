// Products with few tokens, from weights as they are; weights to other types; rows to 8 bits.
#include <type_traits>

#include "kernels/common/fp8.h"
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/result.cuh"
#include "kernels/cuda/store.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

struct Output {
    float* y;
    std::size_t stride;
    bool add;
};

// Products that differ by a constant step: blockIdx.z counts them. The rows of one follow those of the one before.
struct Heads {
    std::size_t n = 1, x = 0, y = 0;  // elements from one to the next
};

// Products with one x; blocks from `first` on have the rows of one.
struct Together {
    static constexpr int most = static_cast<int>(DeviceProduct::most_together);
    DeviceMatrix w[most];
    Output out[most];
    unsigned first[most];
};

// A block has `rows` rows, and of blockIdx.y the tokens from `tokens` times that on.
template <class E, class C, int rows, int tokens>
__global__ void __launch_bounds__(most_dot_threads)
    multiply_few(Together all, const float* x, std::size_t x_stride, std::size_t n_tokens, Heads heads) {
    DeviceMatrix w = all.w[0];
    Output out = all.out[0];
    unsigned first = 0;
#pragma unroll
    for (int i = 1; i < Together::most; ++i) {
        if (blockIdx.x < all.first[i]) continue;
        w = all.w[i];
        out = all.out[i];
        first = all.first[i];
    }
    const std::size_t head = blockIdx.z;
    w.data = static_cast<const Byte*>(w.data) + head * w.rows * w.row_bytes;
    if (w.row_scale != nullptr) w.row_scale += head * w.rows;
    if (w.bias != nullptr) w.bias += head * w.rows;
    x += head * heads.x;
    out.y += head * heads.y;
    const std::size_t first_row = std::size_t{blockIdx.x - first} * rows,
                      first_token = std::size_t{blockIdx.y} * tokens;
    const int n_rows = static_cast<int>(w.rows - first_row < rows ? w.rows - first_row : rows);
    const float* inputs[tokens];
    for (int t = 0; t < tokens; ++t)
        inputs[t] =
            x + (first_token + static_cast<std::size_t>(t) < n_tokens ? first_token + static_cast<std::size_t>(t)
                                                                      : first_token) *
                    x_stride;
    float sums[rows][tokens] = {};
    const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && x_stride % 4 == 0;
    add_products<E, C>(static_cast<const Byte*>(w.data) + first_row * w.row_bytes, w.row_bytes, n_rows, w.cols, inputs,
                       aligned, sums);
    const float sum = gather_sums(sums);
    const std::size_t r = threadIdx.x / tokens, t = threadIdx.x % tokens, token = first_token + t;
    if (r >= static_cast<std::size_t>(n_rows) || token >= n_tokens) return;
    put_sum({out.y, out.stride, w.row_scale, w.bias, nullptr, out.add}, token, first_row + r, sum);
}

template <class E, class C, int rows, int tokens>
DeviceFault multiply(DeviceStream stream, Together all, const float* x, std::size_t x_stride, std::size_t n_tokens,
                     const Heads& heads) {
    unsigned blocks = 0;
    std::size_t n_rows = 0;
    for (int i = 0; i < Together::most; ++i) {
        all.first[i] = all.w[i].data != nullptr ? blocks : ~0U;
        blocks += blocks_for(all.w[i].rows, rows);
        n_rows += all.w[i].rows;
    }
    const std::size_t cols = all.w[0].cols;
    const Grid grid{{blocks, blocks_for(n_tokens, tokens), static_cast<unsigned>(heads.n)}, {dot_threads(cols), 1, 1}};
    return launch(stream, "gemv", grid, {{"heads", heads.n}, {"rows", n_rows}, {"cols", cols}, {"tokens", n_tokens}},
                  multiply_few<E, C, rows, tokens>, all, x, x_stride, n_tokens, heads);
}

DeviceFault multiply_all(DeviceStream stream, const Together& all, const float* x, std::size_t x_stride,
                         std::size_t n_tokens, const Heads& heads) {
    DeviceFault fault;
    const DeviceMatrix& w = all.w[0];
    const bool known = whole_blocks(w) && with_type(w.dtype, [&](auto elements, auto chunks) {
                           using E = decltype(elements);
                           using C = decltype(chunks);
                           if (n_tokens == 1) {
                               fault = multiply<E, C, 4, 1>(stream, all, x, x_stride, n_tokens, heads);
                           } else if (n_tokens == 2) {
                               fault = multiply<E, C, 4, 2>(stream, all, x, x_stride, n_tokens, heads);
                           } else if (n_tokens <= 4) {
                               fault = multiply<E, C, 2, 4>(stream, all, x, x_stride, n_tokens, heads);
                           } else {
                               fault = multiply<E, C, 2, 8>(stream, all, x, x_stride, n_tokens, heads);
                           }
                       });
    if (!known)
        return unsupported(stream, "gemv", "no kernel for weights of this type and length",
                           {{"dtype", static_cast<std::size_t>(w.dtype)}, {"cols", w.cols}});
    return fault;
}

DeviceFault gemv(DeviceStream stream, const DeviceMatrix& w, const float* x, std::size_t x_stride, std::size_t n_tokens,
                 float* y, std::size_t y_stride, bool add) {
    return multiply_all(stream, {{w}, {{y, y_stride, add}}, {}}, x, x_stride, n_tokens, {});
}

DeviceFault gemv_together(DeviceStream stream, const DeviceProduct* products, std::size_t n_products, const float* x,
                          std::size_t x_stride, std::size_t n_tokens) {
    bool alike = n_products >= 1 && n_products <= DeviceProduct::most_together;
    Together all{};
    for (std::size_t i = 0; alike && i < n_products; ++i) {
        all.w[i] = products[i].w;
        all.out[i] = {products[i].y, products[i].y_stride, false};
        alike = all.w[i].dtype == all.w[0].dtype && all.w[i].cols == all.w[0].cols;
    }
    if (!alike)
        return unsupported(stream, "gemv_together", "1 to 3 matrices of one type and as many columns are multiplied",
                           {{"products", n_products}});
    return multiply_all(stream, all, x, x_stride, n_tokens, {});
}

DeviceFault gemv_heads(DeviceStream stream, const DeviceMatrix& w, std::size_t n_heads, const float* x,
                       std::size_t x_stride, std::size_t x_head, std::size_t n_tokens, float* y, std::size_t y_stride,
                       std::size_t y_head) {
    return multiply_all(stream, {{w}, {{y, y_stride, false}}, {}}, x, x_stride, n_tokens, {n_heads, x_head, y_head});
}

constexpr unsigned convert_threads = 128;

// n values to columns `first` .. of a row, in one store where they lie well.
template <int n>
__device__ void put_run(Byte* row, std::size_t first, const float* values, DType to) {
    if (to == DType::f32) {
        float* y = reinterpret_cast<float*>(row) + first;
        if (reinterpret_cast<std::uintptr_t>(y) % sizeof(float4) == 0) {
#pragma unroll
            for (int i = 0; i < n; i += 4)
                *reinterpret_cast<float4*>(y + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < n; ++i) y[i] = values[i];
        }
        return;
    }
    std::uint16_t* y = reinterpret_cast<std::uint16_t*>(row) + first;
    std::uint16_t bits[n];
#pragma unroll
    for (int i = 0; i < n; ++i) bits[i] = to_half(values[i], to);
    if (reinterpret_cast<std::uintptr_t>(y) % sizeof bits == 0) {
        std::conditional_t<n == 8, uint4, uint2> wide;
        static_assert(sizeof wide == sizeof bits);
        memcpy(&wide, bits, sizeof wide);
        *reinterpret_cast<decltype(wide)*>(y) = wide;
    } else {
#pragma unroll
        for (int i = 0; i < n; ++i) y[i] = bits[i];
    }
}

// A thread has a chunk of a row. Chunks of blocks have the bits of their elements: the same operations, rounded each.
template <class E, class C>
__global__ void __launch_bounds__(convert_threads) convert_rows(const Byte* x, std::size_t x_stride_bytes, DType to,
                                                                Byte* y, std::size_t y_stride_bytes, std::size_t cols) {
    const std::size_t c = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, row = blockIdx.x;
    if (8 * c >= cols) return;
    const Byte* from = x + row * x_stride_bytes;
    Byte* at = y + row * y_stride_bytes;
    float values[8];
    if constexpr (C::elems == 8) {
        const Byte* chunk = from + c * C::bytes;
        if (cols - 8 * c < 8) {
            for (std::size_t col = 8 * c; col < cols; ++col) {
                if (to == DType::f32)
                    reinterpret_cast<float*>(at)[col] = E::at(from, col);
                else
                    reinterpret_cast<std::uint16_t*>(at)[col] = to_half(E::at(from, col), to);
            }
            return;
        }
        using Word = std::conditional_t<C::bytes == 8, uint2, uint4>;
        if (reinterpret_cast<std::uintptr_t>(chunk) % sizeof(Word) == 0) {
            Word words[C::bytes / sizeof(Word)];
#pragma unroll
            for (std::size_t i = 0; i < C::bytes / sizeof(Word); ++i)
                words[i] = reinterpret_cast<const Word*>(chunk)[i];
            alignas(Word) Byte copy[C::bytes];
            memcpy(copy, words, sizeof copy);
#pragma unroll
            for (int i = 0; i < 8; ++i) values[i] = E::at(copy, static_cast<std::size_t>(i));
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) values[i] = E::at(chunk, static_cast<std::size_t>(i));
        }
        put_run<8>(at, 8 * c, values, to);
    } else {
        constexpr std::size_t chunks = C::elems / 8;
        const int k = static_cast<int>(c % chunks);
        Chunk chunk;
        C::decode(from + c / chunks * C::bytes, k, chunk);
        chunk_values<C>(chunk, values);
        const std::size_t first = c / chunks * C::elems + static_cast<std::size_t>(C::first(k));
        if constexpr (C::gap == 4) {
            put_run<8>(at, first, values, to);
        } else {
            put_run<4>(at, first, values, to);
            put_run<4>(at, first + C::gap, values + 4, to);
        }
    }
}

DeviceFault convert(DeviceStream stream, DType from, const void* x, std::size_t x_stride_bytes, DType to, void* y,
                    std::size_t y_stride_bytes, std::size_t rows, std::size_t cols) {
    DeviceFault fault;
    const Shapes shapes = {
        {"from", static_cast<std::size_t>(from)}, {"to", static_cast<std::size_t>(to)}, {"rows", rows}, {"cols", cols}};
    const bool fits =
        (to == DType::f32 || to == DType::f16 || to == DType::bf16) && cols % dtype_info(from).block_elems == 0;
    const bool known =
        fits && with_type(from, [&](auto elements, auto chunks) {
            const Grid grid{{blocks_for(rows, 1), blocks_for(cols, 8 * convert_threads), 1}, {convert_threads, 1, 1}};
            fault =
                launch(stream, "convert", grid, shapes, convert_rows<decltype(elements), decltype(chunks)>,
                       static_cast<const Byte*>(x), x_stride_bytes, to, static_cast<Byte*>(y), y_stride_bytes, cols);
        });
    return known ? fault : unsupported(stream, "convert", "no kernel for these types and lengths", shapes);
}

template <class E>
__global__ void embed_tokens(DeviceMatrix table, const std::int32_t* ids, float scale, float* out, std::size_t stride) {
    const std::size_t token = blockIdx.x;
    const auto id = static_cast<std::size_t>(static_cast<std::int64_t>(ids[token]));
    const std::size_t col = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x;
    if (col >= table.cols) return;
    float value = 0;
    if (id < table.rows) {
        value = E::at(static_cast<const Byte*>(table.data) + id * table.row_bytes, col);
        if (table.row_scale != nullptr) value *= table.row_scale[id];
        value *= scale;
    }
    out[token * stride + col] = value;
}

DeviceFault embed(DeviceStream stream, const DeviceMatrix& table, const std::int32_t* ids, std::size_t n_tokens,
                  float scale, float* out, std::size_t stride) {
    DeviceFault fault;
    const bool known = whole_blocks(table) && with_type(table.dtype, [&](auto elements, auto) {
                           constexpr unsigned threads = 128;
                           fault =
                               launch(stream, "embed",
                                      {{blocks_for(n_tokens, 1), blocks_for(table.cols, threads), 1}, {threads, 1, 1}},
                                      {{"tokens", n_tokens}, {"rows", table.rows}, {"cols", table.cols}},
                                      embed_tokens<decltype(elements)>, table, ids, scale, out, stride);
                       });
    if (!known)
        return unsupported(stream, "embed", "no kernel for a table of this type and length",
                           {{"dtype", static_cast<std::size_t>(table.dtype)}, {"cols", table.cols}});
    return fault;
}

__global__ void quantize_tokens(const float* x, std::size_t x_stride, std::size_t cols, bool is_fp8, std::uint8_t* q,
                                std::size_t q_stride, float* scales) {
    const float* row = x + blockIdx.x * x_stride;
    std::uint8_t* codes = q + blockIdx.x * q_stride;
    float largest = 0;
    int bad = 0;
    for (std::size_t i = threadIdx.x; i < cols; i += blockDim.x) {
        if (!is_finite(row[i])) bad = 1;
        largest = fmaxf(largest, fabsf(row[i]));
    }
    largest = block_max(largest);
    bad = block_sum(bad);
    const float scale = __fdiv_rn(largest, is_fp8 ? 448.0F : 127.0F);
    const Fp8Layout layout = fp8_layout(Fp8::e4m3fn);
    for (std::size_t i = threadIdx.x; i < cols; i += blockDim.x) {
        if (bad != 0) {
            codes[i] = 0;
        } else if (is_fp8) {
            codes[i] = fp8_code(layout, row[i], scale);
        } else {
            const float code = scale == 0 ? 0.0F : rintf(__fdiv_rn(row[i], scale));
            codes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(fmaxf(-127, fminf(127, code))));
        }
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = bad != 0 ? __uint_as_float(0x7FC00000U) : scale;
}

DeviceFault quantize_rows(DeviceStream stream, const float* x, std::size_t x_stride, std::size_t rows, std::size_t cols,
                          DeviceInput type, void* q, std::size_t q_stride, float* scale) {
    if (type != DeviceInput::i8 && type != DeviceInput::e4m3fn)
        return unsupported(stream, "quantize_rows", "rows are quantized to i8 or e4m3fn",
                           {{"type", static_cast<std::size_t>(type)}});
    return launch(stream, "quantize_rows", {{blocks_for(rows, 1), 1, 1}, {cols >= 1024 ? 256U : 128U, 1, 1}},
                  {{"rows", rows}, {"cols", cols}}, quantize_tokens, x, x_stride, cols, type == DeviceInput::e4m3fn,
                  static_cast<std::uint8_t*>(q), q_stride, scale);
}

}  // namespace

void fill_products(DeviceOps& ops) {
    ops.gemv = gemv;
    ops.gemv_together = gemv_together;
    ops.gemv_heads = gemv_heads;
    ops.convert = convert;
    ops.embed = embed;
    ops.quantize_rows = quantize_rows;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
