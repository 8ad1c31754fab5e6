// KV codecs: how a part of a KV state is stored. One file per codec in quant/codecs, one line each in the registry.
#pragma once
#include <cstdint>
#include <functional>
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
    bool symmetric = true;
    DType scale_dtype = DType::f16;  // f16 or f32
    friend bool operator==(const Params&, const Params&) = default;
};

// One part, K or V, of one layer and sequence, decoded: f32 [token][kv_head][head_dim].
struct Shape {
    std::uint64_t tokens = 0;
    std::uint32_t heads = 0, head_dim = 0;
    [[nodiscard]] std::uint64_t elements() const noexcept { return tokens * heads * head_dim; }
};

struct Encoded {
    std::vector<std::byte> values, scale, zero;
};

// Where a value cannot be stored; the caller adds sequence, layer and part.
struct Place {
    std::uint64_t token = 0;
    std::uint32_t head = 0, dim = 0;
};

class Codec {
public:
    virtual ~Codec() = default;
    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    [[nodiscard]] virtual DType value_dtype(const Params& params) const noexcept = 0;
    [[nodiscard]] virtual bool has_scale() const noexcept = 0;
    // usage: says which groups, axes and scale types there are.
    [[nodiscard]] virtual Status check(const Params& params, std::uint32_t head_dim) const = 0;
    // Groups of a head (token axis) or of the token range (channel axis); the last one may be short, none crosses a head.
    [[nodiscard]] virtual std::uint64_t groups(const Params& params, const Shape& shape) const noexcept = 0;
    // NaN, infinity, and values or scales beyond the type are bad_input, naming "token T, head H, dim D" and the value.
    virtual Result<Encoded> encode(const Params& params, const Shape& shape, std::span<const float> values) const = 0;
    // Spans must have the sizes that params and shape ask for (checked: bad_input).
    virtual Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                          std::span<const std::byte> scale, std::span<const std::byte> zero, std::span<float> out) const = 0;
    // Largest possible |x - decode(encode(x))| of a group with extremes [min, max], for tests and reports.
    [[nodiscard]] virtual double error_bound(const Params& params, double min, double max) const noexcept = 0;
};

[[nodiscard]] const std::vector<const Codec*>& codecs();
[[nodiscard]] const Codec* find_codec(std::string_view name);  // nullptr where unknown
[[nodiscard]] std::string codec_names();                      // "f32, f16, bf16, int8", for messages

}  // namespace hetero::quant
