// The operations every backend implements. kernels/ref (scalar) defines what each one means; a backend may differ from it
// by rounding only, within the bound named beside the op. Buffers are raw pointers that the caller owns; sizes are in
// elements unless the name says otherwise; pointers need only the alignment of their element type.
// A result depends on the backend and the inputs alone: not on how rows, heads or tokens were divided among threads. A row
// of gemv, and of gemm for any number of tokens, has the same bits; so has attention for a query, alone or among others
// (first_position and the KV prefix being the same). The vector backends agree with each other bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"
#include "kernels/api/packed.h"

namespace hetero::kernels {

// How a page stores numbers: as floats of a type, or as codes, value = code * scale + zero (hetero-quant(7)). Codes of 4
// bits are two a byte, the even dim in the low half.
enum class KvCodes : std::uint8_t { floats, i8, u8, i4, u4, e4m3fn };
[[gnu::always_inline]] constexpr bool is_paired(KvCodes codes) { return codes == KvCodes::i4 || codes == KvCodes::u4; }

// K or V of one layer and one KV head in memory, in pages: token t is row t % 64 of the tile [64][head_dim] that begins
// `offset` bytes after pages[t / 64]. Pages without a visible token are not read.
inline constexpr std::size_t kKvPageTokens = 64;
struct KvView {
    DType dtype = DType::f16;                  // of floats: f32, f16, bf16
    const std::byte* const* pages = nullptr;
    std::size_t offset = 0;                    // the same in every page; a multiple of the element's size
    std::size_t token_stride = 0;              // elements from one token to the next; even where codes have 4 bits
    KvCodes codes = KvCodes::floats;
    // Of codes: scales and zeros, f16, by their bytes after pages[i]. Either `group` dims of a token share them,
    // [head_dim / group][64], or `group_tokens` tokens of a dim do, [64 / group_tokens][head_dim], and `group` is 0.
    std::size_t scale_offset = 0, zero_offset = 0;  // zero_offset 0: no zeros
    std::size_t group = 0, group_tokens = 0;
    // Tokens from open_begin on, a multiple of group_tokens, are not in the pages: f16 [token - open_begin][head_dim].
    const std::uint16_t* open = nullptr;       // null: all are in the pages
    std::size_t open_begin = 0;
};

// A block of values of the KV state, [rows][n], at any alignment of their type.
struct KvValues {
    DType type = DType::f32;         // f32, f16, bf16
    const void* data = nullptr;
    std::size_t rows = 0, stride = 0, n = 0;  // stride: elements from one row to the next
};
struct KvOutput {
    DType type = DType::f32;
    void* data = nullptr;
    std::size_t rows = 0, stride = 0, n = 0;
    bool streaming = false;          // will not be read soon: it may go past the caches
};

struct RopeTable {
    const float* cos = nullptr;      // [position][n_pairs]
    const float* sin = nullptr;      // [position][n_pairs]
    std::size_t n_pairs = 0;         // rotated pairs per head; 2 * n_pairs <= head_dim, the rest passes through
};

// How the rows of Q and K are ordered by the weights: pairs (i, i + n_pairs) or (2i, 2i + 1).
// The output is always half-split.
enum class RopePairing : std::uint8_t { half_split, interleaved };

struct AttentionArgs {
    const float* q = nullptr;        // [n_queries][n_heads][head_dim_k], strides q_stride, q_head_stride
    std::size_t q_stride = 0;        // elements from one query token to the next
    KvView k, v;                     // of the KV head that the query heads share
    float* out = nullptr;            // [n_queries][n_heads][head_dim_v], strides out_stride, out_head_stride
    std::size_t out_stride = 0;
    std::size_t n_queries = 0;
    std::size_t kv_tokens = 0;       // tokens in k and v, the queries' own included
    std::size_t first_position = 0;  // query i sees keys [max(0, first_position + i + 1 - window), first_position + i]
    std::size_t window = 0;          // 0: no window
    std::size_t head_dim_k = 0, head_dim_v = 0;
    float scale = 1;                 // usually 1 / sqrt(head_dim)
    float softcap = 0;               // 0: none; else s = softcap * tanh(s / softcap)
    std::size_t n_heads = 1;         // query heads; together they read K and V once
    std::size_t q_head_stride = 0, out_head_stride = 0;  // elements from one head to the next
    bool exact = false;              // attention_spans over codes of 4 or 8 bits: queries and weights are not rounded
};

// 8-bit floats. e4m3fn and e5m2: OCP 8-bit floating point (https://www.opencompute.org, OFP8 1.0). e4m3fnuz: one zero, NaN
// 80, exponent bias 8 (Noune et al., https://arxiv.org/abs/2206.02915).
enum class Fp8 : std::uint8_t { e4m3fn, e4m3fnuz, e5m2 };

struct Ops {
    const char* name;  // "scalar", "avx2", "avx512"

    // Conversions, IEEE round to nearest even; overflow to f16 gives infinity, NaN stays NaN. Exact.
    void (*f32_to_f16)(const float* src, std::uint16_t* dst, std::size_t n);
    void (*f32_to_bf16)(const float* src, std::uint16_t* dst, std::size_t n);
    void (*f16_to_f32)(const std::uint16_t* src, float* dst, std::size_t n);
    void (*bf16_to_f32)(const std::uint16_t* src, float* dst, std::size_t n);

    // n elements (whole blocks) of any weight type. Exact: bit for bit as the reference.
    void (*dequantize)(DType type, const void* src, float* dst, std::size_t n);

    // y[row] = sum over cols of w[row][col] * x[col], rows [row_begin, row_end). w has row_bytes from row to row.
    // Accumulated in f32 or better. |error| <= c * |w row|_2 * |x|_2 * 2^-24, c = 2 * sqrt(cols) + 8.
    void (*gemv)(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
                 std::size_t cols, const float* x, float* y);
    // y[t][row] for t in [0, n_tokens), rows [row_begin, row_end): the same sum for many tokens at once.
    // x: [n_tokens][cols] with stride x_stride; y: [n_tokens][...] with stride y_stride. Same bound.
    void (*gemm)(DType type, const void* w, std::size_t row_bytes, std::size_t row_begin, std::size_t row_end,
                 std::size_t cols, const float* x, std::size_t x_stride, std::size_t n_tokens,
                 float* y, std::size_t y_stride);

    // n_tokens rows of `cols` values, stride x_stride, to activation_bytes(n_tokens, cols) bytes for packed_gemm; `out` is
    // aligned to 4 bytes, better to 64. A block whose largest magnitude is below 2^-100 becomes zeros; one that holds a
    // value that is not finite gets a scale of NaN. `residual` is null or gets what the rounding took away, for a second
    // product that is added: fma(-scale, q, x) [n_tokens][cols]. Exact.
    void (*quantize_activations)(const float* x, std::size_t x_stride, std::size_t n_tokens, std::size_t cols, void* out,
                                 float* residual);
    // y[t][row] = w[row] . x[t] for packed weights and activations as quantized for n_tokens tokens, rows [row_begin, row_end) of the matrix that
    // starts at `packed`. For each row and token, over the blocks b in order, with integer dots D[b] of (code - zero) and q:
    //   sum = fma(D[b], scale_w[b] * scale_x[b], sum), low = fma(min_w[b], weighted_x[b], low), y = sum + low.
    // `residual` is null or activations of the same shape, whose product, computed in the same way, is added to y.
    // Exact: every backend gives these bits, for any number of tokens and any division of the rows.
    void (*packed_gemm)(Packing packing, const void* packed, std::size_t row_begin, std::size_t row_end, std::size_t cols,
                        const void* activations, const void* residual, std::size_t n_tokens, float* y,
                        std::size_t y_stride);

    // In the norms and activations y may be x.
    // y = x / sqrt(mean(x^2) + eps) * w.   |error| <= (n^0.5 + 8) * 2^-24 * |y|
    void (*rms_norm)(const float* x, const float* w, float* y, std::size_t n, float eps);
    // y = (x - mean(x)) / s * w + b, s = sqrt(mean((x - mean)^2) + eps).
    // |error| <= 16 * 2^-24 * (|x|max / s * |w| + |b|)
    void (*layer_norm)(const float* x, const float* w, const float* b, float* y, std::size_t n, float eps);
    // One token's heads: rotates src [n_heads][head_dim] into dst of the same shape (they may be equal). Exact: two products
    // and a sum, each rounded, for every output.
    void (*rope)(const float* src, float* dst, std::size_t n_heads, std::size_t head_dim, const RopeTable& table,
                 std::size_t position, RopePairing pairing);
    // y = silu(gate) * up, silu(x) = x / (1 + exp(-x)).  relative error <= 16 * 2^-24 (+ one subnormal)
    void (*silu_mul)(const float* gate, const float* up, float* y, std::size_t n);
    // y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), and y = x / 2 * (1 + erf(x / sqrt(2)))
    // (https://arxiv.org/abs/1606.08415).  |error| <= 8 * 2^-24 * |x| (+ one subnormal)
    void (*gelu_tanh)(const float* x, float* y, std::size_t n);
    void (*gelu_erf)(const float* x, float* y, std::size_t n);
    // x = cap * tanh(x / cap), cap > 0.  |error| <= 8 * 2^-24 * cap
    void (*softcap)(float* x, float cap, std::size_t n);
    void (*add)(const float* x, float* y, std::size_t n);   // y += x. Exact.
    void (*mul)(const float* x, float* y, std::size_t n);   // y *= x. Exact.
    void (*scale)(float* x, float factor, std::size_t n);   // x *= factor. Exact.

    // softmax(q k^T * scale) v, causal, online in tiles; accumulated in f32 or better. Keys out of sight
    // never reach the result; a query that sees none gives zeros. With u = 2^-24 and e = ((2 sqrt(head_dim_k) + 8) |q| |k|max scale
    // + 4 |score|max + 8 softcap) u, the error of the scores: |error| <= (2 e + (2 sqrt(keys) + 64) u) |v|max.
    void (*attention)(const AttentionArgs& args);

    // The same for one query (n_queries is 1) and the keys [key_begin, key_end) alone, at least one, whatever of them the
    // query's position and window show, cut at the multiples of `span`, which is a power of two and 64 at least. For each
    // span, [span][head_dim_v + 2]: {max, sum, acc[head_dim_v]}, the largest score, the sum of exp(score - max), and the
    // sum of exp(score - max) * v; those of the next head begin `parts_stride` floats further. A span of a head has the
    // same bits alone or with others. out, kv_tokens, first_position and window are not read.
    // Over codes of 4 or 8 bits, unless `exact`, the vector backends multiply in integers: for each head they round the
    // query (for K by channel: times the scales of a group of tokens) to multiples of m / 32639, m its largest magnitude
    // in a group, and the weights times V's scales, exp(score - max) * scale, of 64 keys likewise. That adds at most
    // m / 65278 * the sum of |code * scale| over the dims (by channel: of |code|) to a product with a key, and
    // m / 65278 * the sum of |code| over each 64 keys to acc.
    void (*attention_spans)(const AttentionArgs& args, std::size_t key_begin, std::size_t key_end, std::size_t span,
                            float* parts, std::size_t parts_stride);
    // Attention from the parts of one head's spans [n_spans >= 1][head_dim + 2]. Together the two have the bound of
    // attention.
    void (*attention_merge)(const float* parts, std::size_t n_spans, std::size_t head_dim, float* out);

    // Weights of one scale: q = clamp(rne(x / scale), -127, 127); scale 0: every q is 0; x NaN: -127. Exact: division, not
    // multiplication by a reciprocal.
    void (*quantize_i8)(const float* x, float scale, std::int8_t* q, std::size_t n);
    // Smallest and largest of n >= 1 values; false (and the outputs unspecified) if any is NaN or infinite. Exact.
    bool (*min_max)(const float* x, std::size_t n, float* min, float* max);

    // KV state to codes and back, whole blocks; a run is a row of the block, and runs or columns have a scale each. Exact.
    // Smallest and largest of each; `min` may be null, `max` is then the largest magnitude. False (and the outputs
    // unspecified) if any value is NaN or infinite. The sign of a zero is unspecified. Columns need a row at least.
    bool (*min_max_rows)(const KvValues& x, float* min, float* max);
    bool (*min_max_columns)(const KvValues& x, float* min, float* max);
    // Copies rows to `y`, y_stride elements from row to row, past the caches where lines of 64 bytes are whole. False if any
    // value is NaN or infinite; all are copied then, too. The two do not overlap. Exact.
    bool (*copy_finite)(const KvValues& x, void* y, std::size_t y_stride);
    // f16 scales (and zeros) of n groups with these extremes. With a zero: the largest that is <= min, +0 for zero; then the
    // smallest scale that is >= (max - zero) / levels, computed in binary64. `zero` null: that of max / levels, max being the
    // largest magnitude. False if any is infinite.
    bool (*group_scales)(const float* min, const float* max, std::size_t n, int levels, std::uint16_t* scale, std::uint16_t* zero);
    // min_max_rows, group_scales and quantize_rows in one, signed codes where `zero` is null. False (and the outputs
    // unspecified) where one of them says so. `streaming`: the codes will not be read soon, and may go past the caches.
    bool (*encode_rows)(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                        std::size_t q_stride, float* error, bool streaming);
    // The same of columns, of a row at least: min_max_columns, group_scales and quantize_columns in one.
    bool (*encode_columns)(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                           std::size_t q_stride, float* error, bool streaming);
    // q = rne((x - zero) / scale) as a byte (two's complement where is_signed), q_stride bytes from row to row; that the code
    // fits is the caller's to see to. x finite, scale finite and >= 0, where 0 gives the code 0; `zero` null: 0.
    // `error`: null, or raised to the largest |q * scale + zero - x| in f32.
    void (*quantize_rows)(const KvValues& x, const float* scale, const float* zero, bool is_signed, std::uint8_t* q,
                          std::size_t q_stride, float* error);
    void (*quantize_columns)(const KvValues& x, const float* scale, const float* zero, bool is_signed, std::uint8_t* q,
                             std::size_t q_stride, float* error);
    // x = q * scale + zero in f32, no FMA, rounded to x.type (nearest even). False if that makes a value infinite.
    // `error`: null, or raised to the largest |x - (q * scale + zero)|.
    bool (*dequantize_rows)(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale, const float* zero,
                            const KvOutput& x, float* error);
    bool (*dequantize_columns)(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                               const float* zero, const KvOutput& x, float* error);
    // Rotated heads: a row is a head, and `hadamard` is over blocks of the largest power of two that divides x.n.
    // y[rows][n]: the rows, rotated, in f32.
    void (*rotate_rows)(const KvValues& x, float* y);
    // rotate_rows and encode_rows in one. `error`: null, or raised to the largest distance in f32 of x from what
    // dequantize_rotated gives for it.
    bool (*encode_rotated)(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                           std::size_t q_stride, float* error, bool streaming);
    // q * scale + zero, rotated, with a scale (and zero) for each row, as dequantize_rows; nothing may overflow f32.
    bool (*dequantize_rotated)(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                               const float* zero, const KvOutput& x, float* error);
    // Columns whose codes have unlike widths, 1 to 12 bits (the wf codecs of hetero-quant(7)).
    // Of n ranges, finite, >= 0, +0 for zero: `width` begins with 1 everywhere; then, n * (mean_width - 1) times, the column
    // with the largest step gets a bit more, the first of them among equals, unless it has 12. step = range / (2^width - 1).
    void (*fill_widths)(const float* range, std::size_t n, int mean_width, std::uint8_t* width, float* step);
    // q = rne((x - zero) / step), which is to fit its column's width; step 0: 0; other steps are normal numbers, as their
    // reciprocals. The codes of a row one after the other, lowest bit first, then zeros up to row_bytes, a multiple of 4 and
    // enough for all widths; rows are q_stride bytes apart. `error` as in quantize_rows.
    void (*quantize_widths)(const KvValues& x, const float* step, const float* zero, const std::uint8_t* width, std::uint8_t* q,
                            std::size_t q_stride, std::size_t row_bytes, float* error);
    // x = q * step + zero, and the rest as in dequantize_rows.
    bool (*dequantize_widths)(const std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, const float* step,
                              const float* zero, const std::uint8_t* width, const KvOutput& x, float* error);
    // Raises `error` to the largest |x - y|, both finite, y: [rows][n] without gaps. f32.
    void (*max_difference)(const KvValues& x, const float* y, float* error);
    // memcpy for bytes that will not be read soon: past the caches.
    void (*copy_streaming)(void* to, const void* from, std::size_t bytes);

    // The low `bits` (2 to 7) of each of n bytes as one string of bits, first byte first, lowest bit first:
    // ceil(n * bits / 8) bytes, the unused high bits of the last one 0. And back, as unsigned or two's complement bytes.
    void (*pack_bits)(int bits, const std::uint8_t* codes, std::uint8_t* packed, std::size_t n);
    void (*unpack_bits)(int bits, bool is_signed, const std::uint8_t* packed, std::uint8_t* codes, std::size_t n);

    // y = H x / sqrt(n) for each of `blocks` consecutive blocks of n values, n a power of two: Sylvester's Hadamard matrix as
    // a fast transform, strides 1, 2, 4 ... in this order, then times the float nearest to 1 / sqrt(n). y may be x. Exact.
    void (*hadamard)(const float* x, float* y, std::size_t blocks, std::size_t n);

    // n finite values, a multiple of 32, to q8_0, q4_0 or q4_1, with the bits of ggml's reference quantizers
    // (quantize_row_q8_0_ref and its like in ggml-quants.c, https://github.com/ggml-org/ggml): scales from f32, codes from the
    // unrounded scale's reciprocal, the scale stored as f16. False (and `out` unspecified) where a scale or minimum is beyond
    // f16.
    bool (*quantize_blocks)(DType type, const float* x, std::size_t n, void* out);
    // Rows with a scale each, >= 0: x / scale in 8 bits, nearest even, beyond the largest: the largest; scale 0: zero. NaN
    // stays NaN. Exact. `error`: null, or, of finite x, raised to the largest |value(q) * scale - x| in f32.
    void (*quantize_fp8)(Fp8 format, const KvValues& x, const float* scale, std::uint8_t* q, std::size_t q_stride, float* error);
    // value(q) * scale in f32, and the rest as in dequantize_rows. False, too, where a code is no number.
    bool (*dequantize_fp8)(Fp8 format, const std::uint8_t* q, std::size_t q_stride, const float* scale, const KvOutput& x,
                           float* error);
};

// The best backend this CPU can run, or the one that the environment variable HETERO_BACKEND names.
// backend_error() is null, or says why HETERO_BACKEND was not followed (unknown name, CPU cannot run it); a tool refuses then.
[[nodiscard]] const Ops& ops() noexcept;
[[nodiscard]] const char* backend_error() noexcept;

// For tests: all backends that were compiled in; null terminated. supported() tells whether this CPU runs one.
[[nodiscard]] const Ops* const* all_backends() noexcept;
[[nodiscard]] bool backend_supported(const Ops& backend) noexcept;

}  // namespace hetero::kernels
