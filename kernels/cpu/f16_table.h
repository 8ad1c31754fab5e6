// Every binary16 number as f32. A scale read from here costs two loads and none of the shuffles that bound the
// decoders; the scales of a tensor lie in a few binades, so what is touched of the 256 KiB stays in the cache.
#pragma once
namespace hetero::kernels {

extern const float* const kF16Table;  // [65536]

}  // namespace hetero::kernels
