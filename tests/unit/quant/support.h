// Calling codecs in tests, and reading what they stored.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "quant/codec.h"
#include "kernels/api/rounding.h"

namespace hetero::test {

inline const quant::Codec& codec(std::string_view name) {
    const quant::Codec* found = quant::find_codec(name);
    REQUIRE(found != nullptr);
    return *found;
}

inline quant::Encoded encode(std::string_view name, const quant::Params& params, const quant::Shape& shape,
                             const std::vector<float>& x) {
    auto encoded = codec(name).encode(params, shape, x);
    REQUIRE_MESSAGE(encoded.has_value(), encoded.error().message);
    return std::move(*encoded);
}

inline std::vector<float> decode(std::string_view name, const quant::Params& params, const quant::Shape& shape,
                                 const quant::Encoded& encoded) {
    std::vector<float> out(shape.elements(), std::numeric_limits<float>::quiet_NaN());
    const Status status = codec(name).decode(params, shape, encoded.values, encoded.scale, encoded.zero, out);
    REQUIRE_MESSAGE(status.has_value(), status.error().message);
    return out;
}

template <class T>
std::vector<T> as(const std::vector<std::byte>& bytes) {
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
}

// Codes as integers, whatever their type.
inline std::vector<int> codes(const quant::Params& params, const quant::Encoded& encoded) {
    std::vector<int> out;
    for (std::byte byte : encoded.values) {
        const auto code = static_cast<std::uint8_t>(byte);
        out.push_back(params.symmetric ? static_cast<std::int8_t>(code) : code);
    }
    return out;
}

// Scales or zeros as f32.
inline std::vector<float> scales(const quant::Params& params, const std::vector<std::byte>& bytes) {
    if (params.scale_dtype == quant::DType::f32) return as<float>(bytes);
    std::vector<float> out;
    for (std::uint16_t bits : as<std::uint16_t>(bytes)) out.push_back(kernels::f16_value(bits));
    return out;
}

inline float ulp(float x) {
    x = std::fabs(x);
    return std::nextafter(x, std::numeric_limits<float>::infinity()) - x;
}

// Error message of an encode that must be refused as bad input.
inline std::string refusal(std::string_view name, const quant::Params& params, const quant::Shape& shape,
                           const std::vector<float>& x) {
    auto encoded = codec(name).encode(params, shape, x);
    REQUIRE_FALSE(encoded.has_value());
    CHECK(encoded.error().code == Errc::bad_input);
    return encoded.error().message;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace hetero::test
