// What going to other schemes and back takes on this machine, measured on one layer.
#pragma once
#include "base/result.h"
#include "kv/state.h"

namespace hetero::kv {

struct CodecCost {
    std::uint64_t bytes_in = 0, bytes_out = 0;  // of the layer, before and after
    double encode_s = 0, decode_s = 0;          // without reading and writing; the better of two runs
};

// `layer` is the first of the first sequence of a state of this header; it is converted to `k` and `v`, and from there
// back. Errors are those of convert_state().
Result<CodecCost> measure_codec_cost(const Header& header, const Layer& layer, const Scheme& k, const Scheme& v,
                                     int threads);

}  // namespace hetero::kv
