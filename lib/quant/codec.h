// KV codecs: how a part of a KV state is stored. One file per codec in quant/codecs, one line each in the registry.
// The formulas, roundings and bounds are those of hetero-quant(7).
#pragma once
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

enum class Axis : std::uint8_t { token, channel };

// What a codec needs to know: x = q * scale + zero.
struct Params {
    Axis axis = Axis::token;         // groups along head_dim within a token, or along tokens within a channel
    std::uint32_t group = 0;         // elements in a group; 0: the whole head (token axis only)
    bool symmetric = true;           // no zero
    DType scale_dtype = DType::f16;  // of scale and zero: f16 (directed rounding) or f32 (nearest)
    friend bool operator==(const Params&, const Params&) = default;
};

// One part, K or V, of one layer and sequence, decoded: f32 [token][kv_head][head_dim].
struct Shape {
    std::uint64_t tokens = 0;
    std::uint32_t heads = 0, head_dim = 0;
    std::uint64_t first_token = 0;  // number of the first token, for messages: a caller may pass a range of a part
    [[nodiscard]] std::uint64_t elements() const noexcept { return tokens * heads * head_dim; }
};

// Little-endian. values: [token][kv_head][head_dim]; scale and zero: token axis [token][kv_head][groups], channel axis
// [token group][kv_head][head_dim]; zero only where asymmetric. So the encodings of token ranges, cut at multiples of
// the channel group, are the encoding of the whole when put one after the other.
struct Encoded {
    std::vector<std::byte> values, scale, zero;
};
struct EncodedSpans {
    std::span<std::byte> values, scale, zero;
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
    [[nodiscard]] virtual bool has_scale() const noexcept = 0;
    // usage: says which groups, axes and scale types there are.
    [[nodiscard]] virtual Status check(const Params& params, std::uint32_t head_dim) const = 0;
    // Groups of a head (token axis) or of the token range (channel axis); the last one may be short, none crosses a
    // head. 0 where has_scale() is false.
    [[nodiscard]] virtual std::uint64_t groups(const Params& params, const Shape& shape) const noexcept = 0;
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
    // Largest possible |x - decode(encode(x))| of a group with extremes [min, max], for tests and reports.
    [[nodiscard]] virtual double error_bound(const Params& params, double min, double max) const noexcept = 0;

    // encode_into new buffers.
    [[nodiscard]] Result<Encoded> encode(const Params& params, const Shape& shape, std::span<const float> values) const;
};

[[nodiscard]] const std::vector<const Codec*>& codecs();
[[nodiscard]] const Codec* find_codec(std::string_view name);  // nullptr where unknown
[[nodiscard]] std::string codec_names();                       // "f32, f16, bf16, int8", for messages

}  // namespace hetero::quant
