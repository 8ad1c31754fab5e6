// KV codecs: how a part of a KV state is stored. One file per codec in quant/codecs, one line each in the registry.
// The formulas, roundings and bounds are those of hetero-quant(7).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/api/dtype.h"

namespace hetero::quant {

using kernels::DType;

// What shares a scale (and zero).
enum class Axis : std::uint8_t {
    token,    // `group` elements along head_dim of one token and head
    channel,  // one element of head_dim of one head, over `group` tokens
    head,     // all of one head, over `group` tokens
    tensor    // all heads, over `group` tokens
};

// What a codec needs to know: x = q * scale + zero.
struct Params {
    Axis axis = Axis::token;
    std::uint32_t group = 0;         // 0: the whole head on the token axis, all tokens on the head and tensor axes
    bool symmetric = true;           // no zero
    DType scale_dtype = DType::f16;  // of scale and zero: f16 (directed rounding) or f32 (nearest)
    bool hadamard = false;           // what is stored is the head rotated by a Hadamard matrix (rotation.h)
    friend bool operator==(const Params&, const Params&) = default;
};

// One part, K or V, of one layer and sequence, decoded: f32 [token][kv_head][head_dim].
struct Shape {
    std::uint64_t tokens = 0;
    std::uint32_t heads = 0, head_dim = 0;
    std::uint64_t first_token = 0;  // number of the first token, for messages: a caller may pass a range of a part
    [[nodiscard]] std::uint64_t elements() const noexcept { return tokens * heads * head_dim; }
};

// Little-endian. values: [token][kv_head][row_elements()]; scale and zero: of the shape scale_shape(); zero only where
// asymmetric. The encodings of token ranges, cut at multiples of token_step(), are the encoding of the whole when put
// one after the other.
struct Encoded {
    std::vector<std::byte> values, scale, zero;
};
struct EncodedSpans {
    std::span<std::byte> values, scale, zero;
    bool streaming = false;  // values will not be read soon: they may be stored past the caches (streams_codes)
};
struct FloatsOut {
    DType type = DType::f32;  // f32, f16 or bf16, at any address
    std::span<std::byte> bytes;
    bool streaming = false;  // as above (streams_values)
};
struct EncodedBytes {
    std::size_t values = 0, scale = 0, zero = 0;
    [[nodiscard]] std::size_t total() const noexcept { return values + scale + zero; }
};

// Stateless: one object may be used by many threads at once.
class Codec {
public:
    virtual ~Codec() = default;
    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    [[nodiscard]] virtual DType value_dtype(const Params& params) const noexcept = 0;
    // Elements of value_dtype that hold a head of one token; less than head_dim where codes are packed.
    [[nodiscard]] virtual std::uint64_t row_elements(const Params&, std::uint32_t head_dim) const noexcept {
        return head_dim;
    }
    [[nodiscard]] virtual bool has_scale() const noexcept = 0;  // as an array of its own
    // False for those that store the values themselves, as floats.
    [[nodiscard]] virtual bool quantized() const noexcept { return has_scale(); }
    // What is meant where nothing is said.
    [[nodiscard]] virtual Params default_params() const noexcept { return {}; }
    // False where the parameters must be the default ones.
    [[nodiscard]] virtual bool has_options() const noexcept { return has_scale(); }
    // How values come from what is stored, for a reader of the file.
    [[nodiscard]] virtual std::string formula(const Params& params) const;
    // usage: says which groups, axes and scale types there are.
    [[nodiscard]] virtual Status check(const Params& params, std::uint32_t head_dim) const = 0;
    // Groups of a head (token axis) or of the token range (other axes); the last one may be short, none crosses a
    // head but on the tensor axis. 0 where has_scale() is false.
    [[nodiscard]] virtual std::uint64_t groups(const Params& params, const Shape& shape) const noexcept = 0;
    // token axis [token][kv_head][group], channel [group][kv_head][head_dim], head [group][kv_head][1], tensor
    // [group][1][1]. Zeros where has_scale() is false.
    [[nodiscard]] virtual std::array<std::uint64_t, 3> scale_shape(const Params&, const Shape&) const noexcept {
        return {};
    }
    // Ranges of tokens may be encoded apart where they start at multiples of this; 0: only all tokens at once.
    [[nodiscard]] virtual std::uint64_t token_step(const Params&) const noexcept { return 1; }
    // True: encode_from() follows EncodedSpans::streaming, decode_to() follows FloatsOut::streaming.
    [[nodiscard]] virtual bool streams_codes(const Params&) const noexcept { return false; }
    [[nodiscard]] virtual bool streams_values(const Params&) const noexcept { return false; }
    // What encode() yields. shape.elements() * 4 must fit 64 bits.
    [[nodiscard]] virtual EncodedBytes bytes(const Params& params, const Shape& shape) const noexcept = 0;
    // NaN, infinity, and values or scales beyond the type are bad_input, naming "token T, head H, dim D" and the value;
    // what `out` then holds is unspecified. Spans must have the sizes that bytes() gives (checked: bad_input).
    virtual Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                               const EncodedSpans& out) const = 0;
    // Sizes are checked, and every scale must be finite and >= 0, every zero finite: else bad_input. NaN and infinity
    // in values of the float codecs pass through.
    virtual Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                          std::span<const std::byte> scale, std::span<const std::byte> zero,
                          std::span<float> out) const = 0;
    // The same from and to floats as they lie in memory: f32, f16 or bf16, at any address. `error`: null, or raised to
    // the largest |stored - value| of what was encoded, decoded again; of what was decoded, rounded to its type. A
    // decoded value that would be infinite there, or is no number, is bad_input.
    virtual Status encode_from(const Params& params, const Shape& shape, DType type, std::span<const std::byte> values,
                               const EncodedSpans& out, float* error) const;
    virtual Status decode_to(const Params& params, const Shape& shape, std::span<const std::byte> values,
                             std::span<const std::byte> scale, std::span<const std::byte> zero, const FloatsOut& out,
                             float* error) const;
    // Largest possible |x - decode(encode(x))| of a group with extremes [min, max], for tests and reports; of a rotated
    // head, of what is stored (rotation.h).
    [[nodiscard]] virtual double error_bound(const Params& params, double min, double max) const noexcept = 0;

    // encode_into new buffers.
    [[nodiscard]] Result<Encoded> encode(const Params& params, const Shape& shape, std::span<const float> values) const;
};

// Where the encoding of the tokens [first, first + n) of `shape` lies in that of all of them. `first` is a multiple of
// token_step(), or that is 0 and the scales are those of all.
struct EncodedRange {
    EncodedBytes begin, size;
    template <class Span>
    [[nodiscard]] Span values(Span all) const {
        return all.subspan(begin.values, size.values);
    }
    template <class Span>
    [[nodiscard]] Span scale(Span all) const {
        return all.subspan(begin.scale, size.scale);
    }
    template <class Span>
    [[nodiscard]] Span zero(Span all) const {
        return all.subspan(begin.zero, size.zero);
    }
};
[[nodiscard]] EncodedRange encoded_range(const Codec& codec, const Params& params, Shape shape, std::uint64_t first,
                                         std::uint64_t n);

[[nodiscard]] const Codec& float_codec(DType type);  // of f32, f16 and bf16
[[nodiscard]] const std::vector<const Codec*>& codecs();
[[nodiscard]] const Codec* find_codec(std::string_view name);  // nullptr where unknown
[[nodiscard]] int water_filled_bits(std::string_view name);    // of wf2 to wf9, on average; 0: another codec
[[nodiscard]] std::string codec_names();                       // "f32, f16, bf16, int8, ...", for messages

}  // namespace hetero::quant
