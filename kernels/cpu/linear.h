// Matrix times vector and matrix times matrix, weights decoded on the way.
//
// One order of summation everywhere: lane i of 16 sums columns i, i + 16, i + 32, ... with FMA, then the lanes are
// folded by sum()'s tree. So an element of y has the same bits whether it came from gemv or gemm, whatever the tile,
// the other tokens of the batch, the division of rows among threads, and with AVX2 as with AVX-512.
// Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

template <class Format>
void dequantize_row(const Byte* src, float* dst, std::size_t n) {
    std::size_t i = 0;
    for (; i + Format::kElems <= n; i += Format::kElems, src += Format::kBytes)
        Format::decode(
            src, [&](int run, F32x16 v) __attribute__((always_inline)) { store(dst + i + 16 * run, v); });
    if (i < n && Format::kElems == kLanes) {  // the end of a row of a plain type
        Byte last[Format::kBytes] = {};
        std::memcpy(last, src, (n - i) * (Format::kBytes / kLanes));
        Format::decode(
            last, [&](int, F32x16 v) __attribute__((always_inline)) { store(dst + i, v, n - i); });
    }
}

void dequantize(DType type, const void* src, float* dst, std::size_t n) {
    const bool known = visit_format(
        type, [&](auto format) { dequantize_row<decltype(format)>(static_cast<const Byte*>(src), dst, n); });
    if (!known) ref::dequantize(type, src, dst, n);
}

// ---- gemv

template <class Format, int Rows>
HETERO_INLINE void gemv_rows(const Byte* w, std::size_t row_bytes, std::size_t cols, const float* x, float* y) {
    F32x16 acc[Rows];
    for (F32x16& a : acc) a = zero();
    std::size_t c = 0;
    const Byte* block = w;
    for (; c + Format::kElems <= cols; c += Format::kElems, block += Format::kBytes) {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const auto multiply = [&](int run, F32x16 v) __attribute__((always_inline)) {
                acc[r] = fma(v, load(x + c + 16 * run), acc[r]);
            };
            const Byte* source = block + static_cast<std::size_t>(r) * row_bytes;
            prefetch(source, Format::kBytes, Rows * row_bytes);  // rows are too short for the hardware to foresee
            Format::decode(source, multiply);
        }
    }
    if (c < cols && Format::kElems == kLanes) {
        const F32x16 last_x = load(x + c, cols - c);
        for (int r = 0; r < Rows; ++r) {
            Byte last[Format::kBytes] = {};
            std::memcpy(last, block + static_cast<std::size_t>(r) * row_bytes, (cols - c) * (Format::kBytes / kLanes));
            Format::decode(
                last, [&](int, F32x16 v) __attribute__((always_inline)) { acc[r] = fma(v, last_x, acc[r]); });
        }
    }
    for (int r = 0; r < Rows; ++r) y[r] = sum(acc[r]);
}

template <class Format>
void gemv_format(const Byte* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end, std::size_t cols,
                 const float* x, float* y) {
    constexpr int kRows = 4;  // independent sums hide the FMA's latency
    std::size_t row = row_begin;
    for (; row + kRows <= row_end; row += kRows)
        gemv_rows<Format, kRows>(w + row * row_bytes, row_bytes, cols, x, y + row);
    for (; row < row_end; ++row) gemv_rows<Format, 1>(w + row * row_bytes, row_bytes, cols, x, y + row);
}

void gemv(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
          std::size_t cols, const float* x, float* y) {
    const bool known = visit_format(type, [&](auto format) {
        gemv_format<decltype(format)>(static_cast<const Byte*>(w), row_bytes, row_begin, row_end, cols, x, y);
    });
    if (!known) ref::gemv(type, w, row_bytes, row_begin, row_end, cols, x, y);
}

// ---- gemm

// A panel of decoded weights stays in the L2 cache while the tokens pass by, four (three) at a time, packed so that
// they stay in the L1 cache while the panel's rows pass by.
constexpr std::size_t kTileRows = 4, kTileTokens = kParts == 1 ? 6 : 3;  // sums kept in registers
constexpr std::size_t kPanelRows = 64, kMaxDepth = 768;
constexpr std::size_t kMaxStride = kMaxDepth + kLanes;
// Sums of a panel between one block of columns and the next: [token][row], 16 lanes each.
constexpr std::size_t kCarryTokens =
    (kScratchFloats - (kPanelRows + kTileTokens) * kMaxStride) / (kPanelRows * kLanes) / kTileTokens * kTileTokens;
static_assert(kCarryTokens >= 96 && kCarryTokens < kScratchFloats);

struct Tile {
    const float *w, *x;  // [row or token][stride], zero from depth to the next multiple of 16
    std::size_t stride, depth;
    float* y;  // element of the first token and row
    std::size_t y_stride;
    float* carry;      // [token][row][lane]
    bool first, last;  // block of columns
};

// y[t][r] = w[r] . x[t], or a part of it that is carried on.
template <int Rows, int Tokens>
void run_tile(const Tile& tile) {
    F32x16 acc[Tokens][Rows];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {  // AVX2: the low lanes of each 16, then the high ones
        const float* w = tile.w + static_cast<std::size_t>(part) * kPartLanes;
        const float* x = tile.x + static_cast<std::size_t>(part) * kPartLanes;
        float* carry = tile.carry + static_cast<std::size_t>(part) * kPartLanes;
        Part sums[Tokens][Rows];
#pragma GCC unroll 6
        for (int t = 0; t < Tokens; ++t)
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r)
                sums[t][r] = tile.first ? part_zero()
                                        : part_load(carry + (static_cast<std::size_t>(t) * kPanelRows + r) * kLanes);
        for (std::size_t c = 0; c < tile.depth; c += kLanes) {
            Part xs[Tokens];
#pragma GCC unroll 6
            for (int t = 0; t < Tokens; ++t) xs[t] = part_load(x + static_cast<std::size_t>(t) * tile.stride + c);
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r) {
                const Part wr = part_load(w + static_cast<std::size_t>(r) * tile.stride + c);
#pragma GCC unroll 6
                for (int t = 0; t < Tokens; ++t) sums[t][r] = part_fma(wr, xs[t], sums[t][r]);
            }
        }
        if (!tile.last) {
#pragma GCC unroll 6
            for (int t = 0; t < Tokens; ++t)
#pragma GCC unroll 4
                for (int r = 0; r < Rows; ++r)
                    part_store(carry + (static_cast<std::size_t>(t) * kPanelRows + r) * kLanes, sums[t][r]);
        }
#pragma GCC unroll 6
        for (int t = 0; t < Tokens; ++t)
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r) acc[t][r].part[part] = sums[t][r];
    }
    if (!tile.last) return;
    if constexpr (Rows == 4) {
        store_sums(acc, tile.y, tile.y_stride);
    } else {
        for (int t = 0; t < Tokens; ++t)
            for (int r = 0; r < Rows; ++r) tile.y[static_cast<std::size_t>(t) * tile.y_stride + r] = sum(acc[t][r]);
    }
}

template <int Rows>
void run_tile(const Tile& tile, std::size_t tokens) {
    if (tokens == kTileTokens) return run_tile<Rows, static_cast<int>(kTileTokens)>(tile);
    switch (tokens) {
        case 1:
            return run_tile<Rows, 1>(tile);
        case 2:
            return run_tile<Rows, 2>(tile);
        case 3:
            return run_tile<Rows, 3>(tile);
        case 4:
            return run_tile<Rows, 4>(tile);
        default:
            return run_tile<Rows, 5>(tile);
    }
}

// n values, then zeros up to a multiple of 16.
HETERO_INLINE void pack(const float* src, float* dst, std::size_t n) {
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(dst + i, load(src + i));
    if (i < n) store(dst + i, load(src + i, n - i));
}

template <class Format>
void gemm_format(const Byte* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end, std::size_t cols,
                 const float* x, std::size_t x_stride, std::size_t n_tokens, float* y, std::size_t y_stride,
                 float* scratch) {
    float* panel = scratch;
    float* packed_x = panel + kPanelRows * kMaxStride;
    float* carry = packed_x + kTileTokens * kMaxStride;
    const std::size_t token_block = cols <= kMaxDepth ? n_tokens : kCarryTokens;
    for (std::size_t row = row_begin; row < row_end; row += kPanelRows) {
        const std::size_t rows = smaller(kPanelRows, row_end - row);
        for (std::size_t t0 = 0; t0 < n_tokens; t0 += token_block) {
            const std::size_t t1 = smaller(n_tokens, t0 + token_block);
            for (std::size_t c = 0; c < cols; c += kMaxDepth) {
                const std::size_t depth = smaller(kMaxDepth, cols - c);
                const std::size_t padded = (depth + kLanes - 1) / kLanes * kLanes;
                const std::size_t stride = padded + kLanes;  // not a power of two: rows would share cache sets
                for (std::size_t r = 0; r < rows; ++r) {
                    float* dst = panel + r * stride;
                    if (depth < padded) store(dst + padded - kLanes, zero());
                    dequantize_row<Format>(w + (row + r) * row_bytes + c / Format::kElems * Format::kBytes, dst, depth);
                }
                for (std::size_t t = t0; t < t1; t += kTileTokens) {
                    const std::size_t tokens = smaller(kTileTokens, t1 - t);
                    for (std::size_t i = 0; i < tokens; ++i)
                        pack(x + (t + i) * x_stride + c, packed_x + i * stride, depth);
                    for (std::size_t r = 0; r < rows;) {
                        const Tile tile{.w = panel + r * stride,
                                        .x = packed_x,
                                        .stride = stride,
                                        .depth = padded,
                                        .y = y + t * y_stride + row + r,
                                        .y_stride = y_stride,
                                        .carry = carry + ((t - t0) * kPanelRows + r) * kLanes,
                                        .first = c == 0,
                                        .last = c + depth == cols};
                        if (rows - r >= kTileRows) {
                            run_tile<4>(tile, tokens);
                            r += kTileRows;
                        } else {
                            run_tile<1>(tile, tokens);
                            r += 1;
                        }
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
