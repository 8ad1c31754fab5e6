// Which form of a state to send: as it is, or smaller for the work of quantizing it here and decoding it there. The
// stages (quantize, send, decode) work on one layer each, at the same time; a layer passes through all three.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace hetero::transport {

// A whole state in one form.
struct WireForm {
    std::uint64_t bytes = 0;
    double encode_s = 0, decode_s = 0;  // of all layers; 0: it is sent as it is
};

// From the first layer that is quantized to the last that is decoded, over a link of `bytes_per_s` and with layers
// alike: each stage once, and the slowest one for every layer but one. One layer: the sum of the stages; many: the
// slowest. Infinite where the link carries nothing.
[[nodiscard]] double wire_seconds(const WireForm& form, std::uint64_t layers, double bytes_per_s) noexcept;

// The link at which `form` takes as long as `plain`, which needs no work; below, it is the faster one. 0: it never is;
// infinite: always.
[[nodiscard]] double break_even_bytes_per_s(const WireForm& plain, const WireForm& form, std::uint64_t layers) noexcept;

// The fastest; the first of equals. `forms` is not empty.
[[nodiscard]] std::size_t fastest_form(std::span<const WireForm> forms, std::uint64_t layers,
                                       double bytes_per_s) noexcept;

}  // namespace hetero::transport
