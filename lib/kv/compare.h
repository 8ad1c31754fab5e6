// Element-wise comparison of two KV states. NaN never passes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/stream.h"

namespace hetero::kv {

struct Location {
    std::string sequence;
    std::uint32_t layer = 0;
    PartId part = PartId::k;
    std::uint64_t token = 0;
    std::uint32_t head = 0, dim = 0;
};

struct PartDifference {
    std::string sequence;
    std::uint32_t layer = 0;
    PartId part = PartId::k;
    std::uint64_t elements = 0;
    double max_abs = 0, mean_abs = 0;
    double relative_l2 = 0;  // |a - b|_2 / |a|_2; 0 where both are zero
    double cosine = 1;       // 1 where both are zero
    bool bit_equal = true;
    std::vector<std::uint64_t> histogram;  // of |a - b|, for quantiles; edges are powers of 2^(1/4)
};

struct Comparison {
    std::vector<Mismatch> mismatches;   // hard differences of the identities, tokens included ("tokens[4]")
    std::vector<PartDifference> parts;  // in order of sequence, layer, part
    double max_abs = 0;
    double p99_abs = 0;  // nearest rank, rounded up to the histogram's edge
    Location worst;
    std::optional<Location>
        first_difference;  // in order of sequence, layer, part (V before K never: K, then V), token, head, dim
    std::optional<Location> first_nonfinite;  // NaN on any side, infinity on one side (on both: equal, unless NaN)
    std::string nonfinite_what;               // "NaN in b", "NaN in both", "infinity in a"
};

// Reads both to the end, layer by layer. States whose shapes differ are not comparable (bad_input); differing
// identities are listed and equal shapes compared all the same. Sequences are paired by id.
// NaN and infinities that do not pass count as an infinite difference in max_abs, p99_abs and the histograms; mean_abs,
// relative_l2 and cosine leave them out.
Result<Comparison> compare_states(Source& a, Source& b, bool allow_equal_nan);

// The smallest edge that at least `q` (0..1) of the values do not exceed: nearest rank. 0 of an empty histogram.
[[nodiscard]] double histogram_quantile(const std::vector<std::uint64_t>& histogram, double q);

}  // namespace hetero::kv
