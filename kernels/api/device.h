// What a device with memory of its own (a GPU) does for the engine: memory, streams, graphs, and the ops of Ops and
// TileOps over buffers that lie there. kernels/ref defines what an op computes; a bound named beside an op is against
// it.
//
// Unless a parameter says "host", pointers are to device memory of the stream's device; sizes and strides are in
// elements unless the name says bytes. Matrices of values are [token][column], `stride` elements from one token to the
// next. Rows of weights, and rows of 16-bit activations, begin at multiples of 16 bytes where an op is to be fast; it
// is correct for any alignment of the element.
//
// Ops are put into a stream and return before they ran; buffers must live until the stream has passed them. What
// changes from one step of decode to the next (token ids, positions, page tables) is read from device memory, so that a
// captured graph can be launched again with new values; sizes and pointers are those of the capture. A result depends
// on the inputs of its own token alone, not on how many tokens came together, except gemm and experts_gemm, where the
// kernel is chosen by size.
//
// Several threads may call at a time, for a stream one of them.
//
// Nothing throws, prints or exits. A fault of the device itself (an access out of bounds in a kernel, a lost GPU) is
// reported by a later call, and every call after it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/api/activation.h"
#include "kernels/api/dtype.h"
#include "kernels/api/ops.h"

namespace hetero::kernels {

// Why a call failed; converts to false where it did not.
struct [[nodiscard]] DeviceFault {
    enum class Kind : std::uint8_t {
        none,
        no_memory,    // less free memory than asked for
        unsupported,  // a type or shape that this op or device has no kernel for
        failed        // everything else
    };
    Kind kind = Kind::none;
    int code = 0;        // the runtime's (cudaError_t) or the library's (cublasStatus_t); 0: found before any call
    int device = -1;     // -1: none in particular
    std::string where;   // the kernel or call: "rms_norm", "cudaMalloc"
    std::string reason;  // "invalid configuration argument"
    std::string shapes;  // "tokens 4, cols 576, grid 4x1x1, block 256"; may be empty
    explicit operator bool() const noexcept { return kind != Kind::none; }
    // "cuda:0: rms_norm: invalid configuration argument (9) [tokens 4, cols 576, grid 4x1x1, block 256]"
    [[nodiscard]] std::string message() const;
};

struct DeviceInfo {
    std::string name;          // "NVIDIA H100 80GB HBM3"
    int major = 0, minor = 0;  // compute capability
    std::size_t total_bytes = 0, free_bytes = 0;
    int multiprocessors = 0;
    std::size_t shared_bytes = 0;  // per block, opted in
    std::size_t l2_bytes = 0;
    std::size_t bus_bytes_per_s = 0;              // of device memory, by its clock and width; 0: not known
    bool integrated = false;                      // shares the host's memory
    bool pageable_access = false;                 // reads the host's pageable memory
    int driver_version = 0, runtime_version = 0;  // 13000: 13.0
};

// Made and destroyed through DeviceOps; each belongs to one device.
using DeviceStream = struct DeviceStreamState*;
using DeviceEvent = struct DeviceEventState*;
using DeviceGraph = struct DeviceGraphState*;

// Of weights, all rows adjacent; y[row] = (W x)[row] * row_scale[row] + bias[row].
struct DeviceMatrix {
    DType dtype = DType::f32;
    const void* data = nullptr;  // [rows][cols], blocks along cols
    std::size_t rows = 0, cols = 0;
    std::size_t row_bytes = 0;
    const float* row_scale = nullptr;  // [rows]; null: 1
    const float* bias = nullptr;       // [rows]; null: 0
};

// y[token] = W x[token].
struct DeviceProduct {
    static constexpr std::size_t most_together = 3;
    DeviceMatrix w;
    float* y = nullptr;
    std::size_t y_stride = 0;
};

// The matrices of a mixture's experts: `data` of expert e begins e * expert_bytes after that of expert 0. row_scale is
// [expert][rows]; there are no biases.
struct DeviceExperts {
    DeviceMatrix first;
    std::size_t n_experts = 0;
    std::size_t expert_bytes = 0;
};

// Types of a product's input. i8 and e4m3fn have a scale for each token, value = code * scale, and are multiplied with
// weights of the same type, whose row_scale is the rows' scale.
enum class DeviceInput : std::uint8_t { f32, f16, bf16, i8, e4m3fn };

// Activations as a product reads them.
struct DeviceRows {
    DeviceInput type = DeviceInput::f32;
    const void* data = nullptr;  // [token][cols]
    std::size_t stride = 0;
    const float* scale = nullptr;  // [token], of i8 and e4m3fn
};

// Where an op writes [token][column]: as f32, as bf16 or f16 for the next product, or both. Null: not.
struct DeviceOutput {
    float* f32 = nullptr;
    std::size_t f32_stride = 0;
    std::uint16_t* half = nullptr;
    std::size_t half_stride = 0;
    DType half_type = DType::bf16;  // or f16
};

struct DeviceNorm {
    enum class Kind : std::uint8_t { rms, layer };
    Kind kind = Kind::rms;
    const float* weight = nullptr;  // [n]
    const float* bias = nullptr;    // [n], of `layer`
    float eps = 0;
};

// Heads of tokens, [token][head][dim].
template <class T>
struct DeviceHeads {
    T* data = nullptr;
    std::size_t stride = 0;       // from one token to the next
    std::size_t head_stride = 0;  // from one head to the next
};

// How a router chooses experts for a token: model/program.h, RoutingRule, whose meaning this has to the letter.
struct DeviceRouting {
    bool sigmoid = false;                    // else softmax
    bool group_by_two = false;               // a group's score is the sum of its two highest, else the highest
    std::uint32_t n_experts = 0, top_k = 0;  // top_k <= 64
    std::uint32_t n_groups = 1, top_groups = 1;
    bool normalize = false;
    float scale = 1;
    const float* bias = nullptr;  // [expert], of the selection; null: 0
};

// Which token goes to which expert. A slot is one token at one of its experts; the slots of an expert are adjacent, in
// the order of the tokens. All are written by route() and read by the ops that follow.
struct DeviceSlots {
    std::int32_t* expert = nullptr;  // [token][top_k], ascending; -1: see route()
    float* weight = nullptr;         // [token][top_k]
    std::int32_t* slot = nullptr;    // [token][top_k]
    std::int32_t* first = nullptr;   // [expert + 1]: the first slot of each expert
    std::int32_t* token = nullptr;   // [slot]
};

// The pages that hold K and V on a device, as engine/kv_pool.h lays them out, byte for byte: page i of the device
// begins at memory + i * page_bytes. One part (K or V) of one layer:
struct DeviceKv {
    std::byte* memory = nullptr;
    std::size_t page_bytes = 0;
    std::size_t n_heads = 0;  // KV heads in the pages
    std::size_t head_dim = 0;
    std::size_t offset = 0;      // of head 0's tile in a page, bytes
    std::size_t head_bytes = 0;  // from one head's tile to the next, bytes
    // As in KvView; scale_offset and zero_offset count from a head's tile.
    DType dtype = DType::f16;
    KvCodes codes = KvCodes::floats;
    std::size_t token_stride = 0;
    std::size_t scale_offset = 0, zero_offset = 0;
    std::size_t group = 0, group_tokens = 0;
    bool rotated = false;  // codes are of Hadamard-rotated values
    // Where tokens of a group that is not full are kept, f16 [head][group_tokens][head_dim] from this offset (elements)
    // of a sequence's tail. Only with group_tokens.
    std::size_t tail_offset = 0;
};

// Sequences in flight: where each has its pages, and which token belongs to which.
struct DeviceSequences {
    const std::uint32_t* pages = nullptr;  // [sequence][max_pages]: page of tokens [64 i, 64 i + 64)
    std::size_t max_pages = 0;
    std::uint16_t* const* tails = nullptr;   // [sequence]; null where no part has group_tokens
    const std::int32_t* sequence = nullptr;  // [token]
    const std::int32_t* position = nullptr;  // [token]
    std::size_t n_tokens = 0;
};

// The smallest place where kv_store met a value that is not finite or does not fit: position * n_heads * head_dim +
// head * head_dim + dim of the part, and ~0 where there was none. Set to ~0 (fill with 0xFF) before a pass.
struct DeviceKvError {
    unsigned long long k = ~0ULL, v = ~0ULL;
};

// Q, K and V of tokens as products leave them; heads of q and k have k.head_dim, those of v v.head_dim.
struct DeviceQkv {
    DeviceHeads<float> q, k;
    DeviceHeads<const float> v;
    std::size_t n_heads = 0;                     // of q; k and v have those of the pages
    DeviceNorm q_norm, k_norm;                   // over each head; without a weight: none
    const float *cos = nullptr, *sin = nullptr;  // [token][n_pairs]
    std::size_t n_pairs = 0;
    RopePairing pairing = RopePairing::half_split;
};

// How K or V of a state are coded (hetero-quant(7)), with f16 scales: by token, over runs of `group` dims that divide a
// head, or by channel, over `group_tokens` tokens; the other is 0. Codes of u8 and u4 have zeros.
struct DeviceCodec {
    KvCodes codes = KvCodes::i8;
    std::size_t group = 0, group_tokens = 0;
    bool rotated = false;  // heads are Hadamard-rotated before; by token alone
    // Not 0: the channels of a head have so many bits on average (the wf codecs), by channel with a zero, `codes` is u8.
    // Rows are of whole words of 32 bits, at multiples of 4 bytes; in place of scales are ranges.
    int mean_width = 0;
};
// The arrays of such a part, as the state has them: codes [token][head][bytes of a row], scales and zeros
// [token][head][head_dim / group] or [tokens / group_tokens, rounded up][head][head_dim].
template <class Byte, class Half>
struct DeviceArrays {
    Byte* codes = nullptr;
    Half* scale = nullptr;
    Half* zero = nullptr;  // null where there are none
};
using DeviceCodes = DeviceArrays<std::uint8_t, std::uint16_t>;
using ConstDeviceCodes = DeviceArrays<const std::uint8_t, const std::uint16_t>;

struct DeviceAttention {
    DeviceHeads<const float> q;  // [token][n_heads][k.head_dim, latent: k.head_dim + v.head_dim]
    DeviceKv k, v;               // latent: both within one row, see engine/kv_pool.h; v is then k's first dims
    DeviceHeads<float> out;      // [token][n_heads][output dim]
    std::size_t n_heads = 0;     // query heads, a multiple of k.n_heads
    std::size_t query_dim = 0, output_dim = 0;
    float scale = 1;
    std::size_t window = 0;  // 0: none
    float softcap = 0;       // 0: none
};

// The likeliest tokens of rows of logits. Where NaN are among the logits, they count as the smallest.
struct DeviceTop {
    std::int32_t* index = nullptr;  // [token][k], by falling logits, of equals the first
    float* value = nullptr;         // [token][k]
    // [token]: sum over the row of exp((logit - largest) * factor), relative error <= (n + 8) 2^-52; 0 without a factor
    double* total = nullptr;
    std::uint32_t* odd = nullptr;  // [token]: how many are NaN or +infinity; the total means nothing then
};

// What an event is for: order alone costs less.
enum class DeviceEventUse : std::uint8_t { order, time };

struct DeviceOps {
    const char* name;  // "cuda", "emulated"

    // Devices.
    int (*device_count)();  // 0 where there is no driver, too
    DeviceFault (*device_info)(int device, DeviceInfo& info);

    // Memory. Device memory is aligned to 256 bytes, its content unspecified. Host memory that is allocated or
    // registered here is page-locked, for all devices: copies from and to it run beside the host and other streams, and
    // kernels read it in place. `device`: the one by which it is done, and given back.
    DeviceFault (*allocate)(int device, std::size_t bytes, void** memory);
    DeviceFault (*free)(int device, void* memory);  // waits for the device; null: nothing
    DeviceFault (*allocate_host)(int device, std::size_t bytes, void** memory);
    DeviceFault (*free_host)(int device, void* memory);
    DeviceFault (*register_host)(int device, void* memory, std::size_t bytes);
    DeviceFault (*unregister_host)(int device, void* memory);
    // Between any two of device, page-locked and pageable memory; pageable memory must not change, or be read, until
    // the stream has passed. copy_2d: `rows` rows of `width` bytes, strides in bytes.
    DeviceFault (*copy)(DeviceStream stream, void* to, const void* from, std::size_t bytes);
    DeviceFault (*copy_2d)(DeviceStream stream, void* to, std::size_t to_stride, const void* from,
                           std::size_t from_stride, std::size_t width, std::size_t rows);
    DeviceFault (*fill)(DeviceStream stream, void* memory, std::uint8_t byte, std::size_t bytes);

    // Streams run what they were given in order; two streams run beside each other.
    // A stream that multiplies with gemm() has a workspace of up to 32 MiB on the device from the first product on.
    DeviceFault (*create_stream)(int device, DeviceStream* stream);
    DeviceFault (*destroy_stream)(DeviceStream stream);  // null: nothing
    DeviceFault (*synchronize)(DeviceStream stream);     // waits; reports what went wrong in the stream
    DeviceFault (*create_event)(int device, DeviceEventUse use, DeviceEvent* event);
    DeviceFault (*destroy_event)(DeviceEvent event);
    DeviceFault (*record)(DeviceEvent event, DeviceStream stream);
    DeviceFault (*wait)(DeviceStream stream, DeviceEvent event);  // of another stream, or device
    DeviceFault (*synchronize_event)(DeviceEvent event);
    // Of two events that are for time, recorded and passed.
    DeviceFault (*elapsed_ms)(DeviceEvent begin, DeviceEvent end, float* ms);

    // Between the two, ops given to the stream (and to streams that wait for its events and are waited for) are
    // recorded, not run. Launching the graph runs them in the order of their dependences. Ops ran once outside of a
    // capture before, with the same shapes: kernels are loaded and chosen then. A graph must not be launched once its
    // stream is destroyed, whose workspace it may use, nor beside another one of that stream.
    DeviceFault (*begin_capture)(DeviceStream stream);
    DeviceFault (*end_capture)(DeviceStream stream, DeviceGraph* graph);  // also after a fault: ends the capture
    DeviceFault (*launch_graph)(DeviceGraph graph, DeviceStream stream);
    DeviceFault (*destroy_graph)(DeviceGraph graph);

    // Conversions among f32, f16, bf16, and from any weight type (whole blocks) to these: nearest even. Exact. Rows
    // begin `stride` bytes apart.
    DeviceFault (*convert)(DeviceStream stream, DType from, const void* x, std::size_t x_stride_bytes, DType to,
                           void* y, std::size_t y_stride_bytes, std::size_t rows, std::size_t cols);

    // out[token] = scale * table[ids[token]], after row_scale; an id outside the table gives zeros. Exact.
    DeviceFault (*embed)(DeviceStream stream, const DeviceMatrix& table, const std::int32_t* ids, std::size_t n_tokens,
                         float scale, float* out, std::size_t stride);

    // norm over each row of n values; rows are [token][head], in `out` x.head_stride apart, too. `add`: out += norm(x),
    // f32 alone. out may be x. Bounds: Ops::rms_norm, Ops::layer_norm; of 16-bit outputs those of the f32 value,
    // rounded.
    DeviceFault (*norm)(DeviceStream stream, const DeviceNorm& norm, DeviceHeads<const float> x, std::size_t n_tokens,
                        std::size_t n_heads, std::size_t n, bool add, const DeviceOutput& out);

    // cos, sin [token][pair] of position * frequency (f64), times factor. Within 1 ulp of f32.
    DeviceFault (*rope_angles)(DeviceStream stream, const double* frequencies, std::size_t n_pairs, double factor,
                               const std::int32_t* positions, std::size_t n_tokens, float* cos, float* sin);
    // Ops::rope for [token][head][head_dim], by tables [token][n_pairs]. src and dst may be equal. Exact.
    DeviceFault (*rope)(DeviceStream stream, DeviceHeads<const float> src, DeviceHeads<float> dst, std::size_t n_tokens,
                        std::size_t n_heads, std::size_t head_dim, const float* cos, const float* sin,
                        std::size_t n_pairs, RopePairing pairing);

    // out = activation(gate) * up, or without up (null) activation(gate); `stride` of both. Bounds: Ops::silu_mul,
    // gelu_tanh, gelu_erf, and one more rounding. out.f32 may be gate or up.
    DeviceFault (*activate)(DeviceStream stream, Activation activation, const float* gate, const float* up,
                            std::size_t stride, std::size_t n_tokens, std::size_t n, const DeviceOutput& out);
    // y += x; y *= factor; y = cap * tanh(y / cap) (bound: Ops::softcap). The first two exact.
    DeviceFault (*add)(DeviceStream stream, const float* x, std::size_t x_stride, float* y, std::size_t y_stride,
                       std::size_t n_tokens, std::size_t n);
    DeviceFault (*scale)(DeviceStream stream, float* y, std::size_t stride, std::size_t n_tokens, std::size_t n,
                         float factor);
    DeviceFault (*softcap)(DeviceStream stream, float* y, std::size_t stride, std::size_t n_tokens, std::size_t n,
                           float cap);
    // Lowers *place to the smallest token * n + column whose value is not finite. Set it to ~0 before.
    DeviceFault (*find_not_finite)(DeviceStream stream, const float* x, std::size_t stride, std::size_t n_tokens,
                                   std::size_t n, unsigned long long* place);

    // The k <= 256 likeliest of each row of logits [token][n], k <= n, n_tokens <= 65535. factor: 1 / temperature; 0:
    // nobody asks for the total.
    std::size_t (*top_k_scratch_bytes)(std::size_t n_tokens, std::size_t n, std::size_t k);
    DeviceFault (*top_k)(DeviceStream stream, const float* logits, std::size_t stride, std::size_t n_tokens,
                         std::size_t n, std::size_t k, double factor, const DeviceTop& to, void* scratch);

    // y = W x (+ y with `add`), weights of any type read as they are, sums in f32: for few tokens, and where f32 inputs
    // matter (routers). x f32. |error| <= c * |w row|_2 * |x|_2 * 2^-24, c = 2 sqrt(cols) + 8 (+ the roundings of
    // row_scale, bias, add). A token has the same bits in any batch.
    DeviceFault (*gemv)(DeviceStream stream, const DeviceMatrix& w, const float* x, std::size_t x_stride,
                        std::size_t n_tokens, float* y, std::size_t y_stride, bool add);
    // The same of up to most_together matrices with one x, at once: they are of one type, and of as many columns.
    DeviceFault (*gemv_together)(DeviceStream stream, const DeviceProduct* products, std::size_t n_products,
                                 const float* x, std::size_t x_stride, std::size_t n_tokens);
    // The same of each head at once, y[token][head] = W[head] x[token][head]: w.rows are those of one head, whose rows
    // follow those of the head before; x_head, y_head: from one head to the next.
    DeviceFault (*gemv_heads)(DeviceStream stream, const DeviceMatrix& w, std::size_t n_heads, const float* x,
                              std::size_t x_stride, std::size_t x_head, std::size_t n_tokens, float* y,
                              std::size_t y_stride, std::size_t y_head);
    // The same on matrix units, for many tokens. x f16 or bf16: weights are those of this type, or of another rounded
    // to it, as they are read (up to 64 tokens) or into `scratch` just before; the bound above, of the rounded
    // operands. x i8: w i8, exact integer sums (cols <= 2^17), y = sum * x.scale * row_scale. x e4m3fn: likewise with w
    // of DType::u8 that holds e4m3fn, under the bound above. gemm_scratch_bytes: what `scratch` needs at least, at
    // multiples of 256; with more, weights are expanded in fewer pieces, and products of few tokens are divided among
    // more blocks.
    std::size_t (*gemm_scratch_bytes)(const DeviceMatrix& w, DeviceInput x, std::size_t n_tokens);
    DeviceFault (*gemm)(DeviceStream stream, const DeviceMatrix& w, const DeviceRows& x, std::size_t n_tokens, float* y,
                        std::size_t y_stride, bool add, void* scratch, std::size_t scratch_bytes);
    // Rows to 8 bits for gemm, activations or weights: scale = |x|max / 127 or / 448, q = x / scale rounded
    // (Ops::quantize_i8, Ops::quantize_fp8). Exact. A row with a value that is not finite gets a scale of NaN.
    DeviceFault (*quantize_rows)(DeviceStream stream, const float* x, std::size_t x_stride, std::size_t rows,
                                 std::size_t cols, DeviceInput type, void* q, std::size_t q_stride, float* scale);

    // Mixtures of experts. route(): from the router's product, scores [token][n_experts] (overwritten), to slots. A
    // token with a score that is not finite lowers *bad to token * n_experts + expert (set to ~0 before) and gets
    // expert -1 and weight 0; it has no slots, and `first[n_experts]` counts those there are.
    DeviceFault (*route)(DeviceStream stream, const DeviceRouting& routing, float* scores, std::size_t n_tokens,
                         const DeviceSlots& slots, unsigned long long* bad);
    // y[slot] = W[expert of slot] x[slots.token[slot]], or x[slot] where x_by_slot; n_slots is the most there can be,
    // tokens * top_k. x f32: sums in f32 over weights as they are, as gemv; f16 or bf16: as gemm, weights expanded to
    // it in registers.
    DeviceFault (*experts_gemm)(DeviceStream stream, const DeviceExperts& experts, const DeviceSlots& slots,
                                std::size_t n_slots, const DeviceRows& x, bool x_by_slot, float* y,
                                std::size_t y_stride);
    // out[token] += sum over k of weight[token][k] * y[slot[token][k]], in the order of k: products rounded, then sums.
    DeviceFault (*combine)(DeviceStream stream, const DeviceSlots& slots, std::size_t top_k, const float* y,
                           std::size_t y_stride, std::size_t n_tokens, std::size_t n, float* out,
                           std::size_t out_stride);

    // K or V of the tokens, x [token][kv head][head_dim] after RoPE, into the pages: floats rounded to nearest even, or
    // codes as engine/kv_cache_codes.cpp makes them, of values rounded to f16. Exact. See DeviceKvError; `error` points
    // to its k or v. With group_tokens, all tokens of a sequence in one call are of one group, in order; they stay in
    // its tail, and its last token makes codes of all. Attention sees the group of a query in the tail, those before as
    // codes, so it comes before the tokens of the next group are stored. Tokens at negative positions are left out.
    DeviceFault (*kv_store)(DeviceStream stream, const DeviceKv& to, const DeviceSequences& sequences,
                            DeviceHeads<const float> x, unsigned long long* error);
    // What comes between the products that make Q, K and V and attention: norm, rope and kv_store at once, under their
    // bounds, and exact without norms. Q is left in its place; so is K where it has group_tokens, and is not stored.
    DeviceFault (*finish_qkv)(DeviceStream stream, const DeviceQkv& qkv, const DeviceKv& k, const DeviceKv& v,
                              const DeviceSequences& sequences, DeviceKvError* error);
    // Attention of the tokens over what their sequences keep, themselves included; Ops::attention. Prefill: the tokens
    // of a sequence are adjacent and their positions rise by one. max_tokens: no position is beyond it. Bounds:
    // TileOps::attention and Ops::attention.
    std::size_t (*attention_scratch_bytes)(const DeviceAttention& attention, std::size_t n_tokens,
                                           std::size_t max_tokens, bool decode);
    DeviceFault (*attention_prefill)(DeviceStream stream, const DeviceAttention& attention,
                                     const DeviceSequences& sequences, std::size_t max_tokens, void* scratch);
    DeviceFault (*attention_decode)(DeviceStream stream, const DeviceAttention& attention,
                                    const DeviceSequences& sequences, std::size_t max_tokens, void* scratch);

    // K or V of a state, [token][head][head_dim] of f32, f16 or bf16, to codes and back: the bits of the codecs of
    // lib/quant. *place (set to ~0 before) is lowered to the index of a value that is not finite, or is the largest of
    // a group that has no finite f16 scale; of kv_dequantize: that is not finite in `type`.
    DeviceFault (*kv_quantize)(DeviceStream stream, const DeviceCodec& codec, DType type, const void* x,
                               std::size_t n_tokens, std::size_t n_heads, std::size_t head_dim, const DeviceCodes& to,
                               unsigned long long* place);
    DeviceFault (*kv_dequantize)(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from,
                                 std::size_t n_tokens, std::size_t n_heads, std::size_t head_dim, DType type, void* x,
                                 unsigned long long* place);
    // Raises *error (set to 0 before) to the largest |decoded - x|, in f32; without those that are not finite.
    DeviceFault (*kv_error)(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from,
                            std::size_t n_tokens, std::size_t n_heads, std::size_t head_dim, DType type, const void* x,
                            float* error);
    // y[column][row] = x[row][column], items of some bytes: [token][head] rows of head_dim values to [head][token], or
    // back.
    DeviceFault (*kv_transpose)(DeviceStream stream, const void* x, std::size_t rows, std::size_t columns,
                                std::size_t item_bytes, void* y);
    // y[token][i] = x[token][heads[i]], for another division of the heads among ranks.
    DeviceFault (*kv_gather_heads)(DeviceStream stream, const void* x, std::size_t n_tokens, std::size_t n_heads,
                                   const std::int32_t* heads, std::size_t n_gathered, std::size_t item_bytes, void* y);
    // *crc = CRC-32C of the bytes (base/hash.h).
    DeviceFault (*crc32c)(DeviceStream stream, const void* data, std::size_t bytes, std::uint32_t* crc);
    // x[token][head][head_dim] = what a sequence has in the pages of tokens [first, first + n_tokens), which are
    // floats.
    DeviceFault (*kv_collect)(DeviceStream stream, const DeviceKv& from, const DeviceSequences& sequences,
                              std::size_t sequence, std::size_t first, std::size_t n_tokens, void* x);
    // The first 2 * n_pairs values of each row of head_dim, of 2 or 4 bytes, from the other order of pairs to `to`.
    DeviceFault (*kv_pairing)(DeviceStream stream, const void* x, std::size_t rows, std::size_t head_dim,
                              std::size_t item_bytes, std::size_t n_pairs, RopePairing to, void* y);
};

// The CUDA backend; null, and *why_not (a static text; why_not may be null) where this build has none, or there is no
// driver or GPU.
[[nodiscard]] const DeviceOps* cuda_ops(const char** why_not = nullptr) noexcept;

}  // namespace hetero::kernels
