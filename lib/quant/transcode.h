// From one codec to another, in tiles that stay in a core's cache.
#pragma once
#include "quant/spec.h"

namespace hetero::quant {

struct EncodedView {
    std::span<const std::byte> values, scale, zero;
};

// Memory that calls may share, one after another.
struct Scratch {
    std::vector<float> values;
};

// `in` in the one encoding to `out` in the other, both of `shape`. The bytes are those of decoding all and encoding
// all. Errors: those of the codecs.
[[nodiscard]] Status transcode(const Spec& from, const EncodedView& in, const Spec& to, const EncodedSpans& out,
                               const Shape& shape, Scratch& scratch);

}  // namespace hetero::quant
