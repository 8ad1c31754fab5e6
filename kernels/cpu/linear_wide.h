// Matrix times matrix for many tokens: the sums of linear.h, bit for bit, with rows side by side.
//
// Columns i, i + 16, i + 32, ... are lane i of linear.h. Here a register holds rows. They are multiplied by the columns
// of one lane after the other, and the sums of the lanes are folded by sum()'s tree. So a load of weights serves eight
// tokens, and a load of a token 48 rows (AVX2: four and 24); with columns side by side it is six and four.
// Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr int kWideParts = 3, kWideTokens = kParts == 2 ? 4 : 8;  // sums kept in registers
constexpr std::size_t kWideTileRows = kWideParts * kPartLanes;
// Of a panel of weights, decoded and transposed, that stays in the L2 cache while the tokens pass by.
constexpr std::size_t kWideRows = 48, kWideCols = 2048;
static_assert(kWideRows % kWideTileRows == 0 && kWideRows % kLanes == 0);
constexpr std::size_t kLaneGap = kLanes;  // between lanes: a power of two apart, they would share cache sets
constexpr std::size_t kWidePanel = kWideRows / kWideTileRows * kLanes * (kWideCols / kLanes * kWideTileRows + kLaneGap);

struct WideTile {
    const float *w, *x;  // [lane][step][row], [lane][step][token]
    std::size_t w_lane, x_lane, steps;
    float* y;  // [token][kWideTileRows]
};

template <int Tokens, int Parts>
void run_wide(const WideTile& tile) {
    alignas(64) float kept[4][Tokens][Parts][kPartLanes];  // what waits in the tree, one a level
    for (unsigned n = 0; n < kLanes; ++n) {
        // Bits reversed: 0, 8, 4, 12, ..., so that two that are added follow each other.
        const std::size_t lane = (n & 1) << 3 | (n & 2) << 1 | (n & 4) >> 1 | (n & 8) >> 3;
        const float *w = tile.w + lane * tile.w_lane, *x = tile.x + lane * tile.x_lane;
        Part sums[Tokens][Parts];
        const auto each = [&](auto visit) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; ++t)
#pragma GCC unroll 3
                for (int p = 0; p < Parts; ++p) visit(t, p);
        };
        each([&](int t, int p) __attribute__((always_inline)) { sums[t][p] = part_zero(); });
        for (std::size_t step = 0; step < tile.steps; ++step, w += kWideTileRows, x += kWideTokens) {
            Part ws[Parts];
#pragma GCC unroll 3
            for (int p = 0; p < Parts; ++p) ws[p] = part_load(w + p * kPartLanes);
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; ++t) {
                const Part xt = part_splat(x[t]);
#pragma GCC unroll 3
                for (int p = 0; p < Parts; ++p) sums[t][p] = part_fma(ws[p], xt, sums[t][p]);
            }
        }
        unsigned level = 0;
        for (; (n >> level & 1) != 0; ++level)
            each([&](int t, int p) __attribute__((always_inline)) {
                sums[t][p] = part_add(part_load(kept[level][t][p]), sums[t][p]);
            });
        if (level < 4)
            each([&](int t, int p) __attribute__((always_inline)) { part_store(kept[level][t][p], sums[t][p]); });
        else
            each([&](int t, int p) __attribute__((always_inline)) {
                part_store(tile.y + t * kWideTileRows + p * kPartLanes, sums[t][p]);
            });
    }
}

template <int Parts>
void run_wide(const WideTile& tile, std::size_t tokens) {
    if (2 * tokens > kWideTokens) return run_wide<kWideTokens, Parts>(tile);
    return run_wide<kWideTokens / 2, Parts>(tile);
}

// x of some tokens as [lane][step][token], zeros where there is none.
void pack_tokens(const float* x, std::size_t x_stride, std::size_t tokens, std::size_t cols, float* dst,
                 std::size_t lane_stride) {
    constexpr int kSteps = kLanes / kWideTokens;  // at once
    for (std::size_t c = 0; c < cols; c += kSteps * kLanes, dst += kLanes) {
        F32x16 v[kLanes];
#pragma GCC unroll 4
        for (std::size_t s = 0; s < kSteps; ++s)
#pragma GCC unroll 8
            for (std::size_t t = 0; t < kWideTokens; ++t) {
                const std::size_t at = c + s * kLanes;
                F32x16& values = v[s * kWideTokens + t];
                if (t >= tokens || at >= cols)
                    values = zero();
                else if (cols - at >= kLanes)
                    values = load(x + t * x_stride + at);
                else
                    values = load(x + t * x_stride + at, cols - at);
            }
        transpose(v);
#pragma GCC unroll 16
        for (std::size_t lane = 0; lane < kLanes; ++lane) store(dst + lane * lane_stride, v[lane]);
    }
}

// 16 rows of weights, or fewer and zeros, as the parts from `part` on of [tile][lane][step][row].
template <class Format>
void pack_rows(const Byte* w, std::size_t row_bytes, std::size_t rows, std::size_t cols, float* panel, std::size_t part,
               std::size_t lane_stride) {
    constexpr std::size_t kPiece = 256, kPieceBytes = kPiece / Format::kElems * Format::kBytes;
    alignas(64) float decoded[kLanes][kPiece + kLanes];  // rows of weights are often a power of two apart
    float* dst[kParts];
    for (std::size_t p = 0; p < kParts; ++p)
        dst[p] = panel + (part + p) / kWideParts * kLanes * lane_stride + (part + p) % kWideParts * kPartLanes;
    for (std::size_t c = 0; c < cols; c += kPiece, w += kPieceBytes) {
        const std::size_t n = smaller(kPiece, cols - c), whole = (n + kLanes - 1) / kLanes * kLanes;
        for (std::size_t r = 0; r < rows; ++r) {
            const Byte* row = w + r * row_bytes;
            prefetch_once(row, kPieceBytes, row_bytes);
            if (n < whole) store(decoded[r] + whole - kLanes, zero());
            dequantize_row<Format>(row, decoded[r], n);
        }
        for (std::size_t at = 0; at < n; at += kLanes) {
            F32x16 v[kLanes];
#pragma GCC unroll 16
            for (std::size_t r = 0; r < kLanes; ++r) v[r] = r < rows ? load(decoded[r] + at) : zero();
            transpose(v);
#pragma GCC unroll 16
            for (std::size_t lane = 0; lane < kLanes; ++lane)
#pragma GCC unroll 4
                for (std::size_t p = 0; p < kParts; ++p) part_store(dst[p] + lane * lane_stride, v[lane].part[p]);
            for (float*& to : dst) to += kWideTileRows;
        }
    }
}

// From how many tokens and columns on, and up to which, this is faster.
HETERO_INLINE bool is_wide(std::size_t n_tokens, std::size_t cols) {
    return n_tokens >= 24 && cols >= 256 && cols <= kWideCols;
}

template <class Format>
void gemm_wide(const Byte* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end, std::size_t cols,
               const float* x, std::size_t x_stride, std::size_t n_tokens, float* y, std::size_t y_stride,
               float* scratch) {
    constexpr std::size_t kTogether = kLanes / kWideTokens * kLanes, kRoom = kLargeScratchFloats - kWidePanel;
    const std::size_t steps = (cols + kLanes - 1) / kLanes, w_lane = steps * kWideTileRows + kLaneGap,
                      x_lane = (cols + kTogether - 1) / kTogether * kLanes + kLaneGap;
    const std::size_t most = kRoom / (x_lane * kLanes) * kWideTokens, blocks = (n_tokens + most - 1) / most;
    const std::size_t block = ((n_tokens + blocks - 1) / blocks + kWideTokens - 1) / kWideTokens * kWideTokens;
    float *panel = scratch, *packed_x = scratch + kWidePanel;
    alignas(64) float out[kWideTokens * kWideTileRows];
    for (std::size_t t0 = 0; t0 < n_tokens; t0 += block) {
        const std::size_t t1 = smaller(n_tokens, t0 + block);
        const auto packed = [&](std::size_t t) { return packed_x + (t - t0) / kWideTokens * kLanes * x_lane; };
        for (std::size_t t = t0; t < t1; t += kWideTokens)
            pack_tokens(x + t * x_stride, x_stride, smaller(kWideTokens, t1 - t), cols, packed(t), x_lane);
        for (std::size_t row = row_begin; row < row_end; row += kWideRows) {
            const std::size_t panel_rows = smaller(kWideRows, row_end - row);
            for (std::size_t r = 0; r < panel_rows; r += kLanes)
                pack_rows<Format>(w + (row + r) * row_bytes, row_bytes, smaller(kLanes, panel_rows - r), cols, panel,
                                  r / kPartLanes, w_lane);
            for (std::size_t t = t0; t < t1; t += kWideTokens) {
                const std::size_t tokens = smaller(kWideTokens, t1 - t);
                for (std::size_t r = 0; r < panel_rows; r += kWideTileRows) {
                    const WideTile tile{
                        panel + r / kWideTileRows * kLanes * w_lane, packed(t), w_lane, x_lane, steps, out};
                    const std::size_t rows = smaller(kWideTileRows, panel_rows - r);
                    if (rows > 2 * kPartLanes)
                        run_wide<3>(tile, tokens);
                    else if (rows > kPartLanes)
                        run_wide<2>(tile, tokens);
                    else
                        run_wide<1>(tile, tokens);
                    for (std::size_t i = 0; i < tokens; ++i)
                        std::memcpy(y + (t + i) * y_stride + row + r, out + i * kWideTileRows, rows * sizeof(float));
                }
            }
        }
    }
}

void gemm(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
          std::size_t cols, const float* x, std::size_t x_stride, std::size_t n_tokens, float* y,
          std::size_t y_stride) {
    float* scratch = n_tokens > 1 && cols > 0 ? thread_scratch() : nullptr;
    if (!scratch) {  // the same sums, token by token
        for (std::size_t t = 0; t < n_tokens; ++t)
            gemv(type, w, row_bytes, row_begin, row_end, cols, x + t * x_stride, y + t * y_stride);
        return;
    }
    const bool known = visit_format(type, [&](auto format) {
        if (is_wide(n_tokens, cols))
            return gemm_wide<decltype(format)>(static_cast<const Byte*>(w), row_bytes, row_begin, row_end, cols, x,
                                               x_stride, n_tokens, y, y_stride, scratch);
        gemm_format<decltype(format)>(static_cast<const Byte*>(w), row_bytes, row_begin, row_end, cols, x, x_stride,
                                      n_tokens, y, y_stride, scratch);
    });
    if (!known) ref::gemm(type, w, row_bytes, row_begin, row_end, cols, x, x_stride, n_tokens, y, y_stride);
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
