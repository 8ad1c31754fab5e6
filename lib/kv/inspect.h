// What the numbers of a KV state are like: how large, how spread over channels, and what codecs would make of them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/compare.h"
#include "kv/stream.h"
#include "quant/spec.h"

namespace hetero::kv {

// A channel is one dimension of one head, over the stored tokens.
struct OutlierChannel {
    std::uint32_t head = 0, dim = 0;  // head: of the whole state, whatever shard is read
    float max_abs = 0;
    double ratio = 0;  // to the median of the channels' largest magnitudes
};

struct CodecError {
    std::string spec;
    double relative_rms = 0;  // |x - decoded|_2 / |x|_2; 0 where all is zero
    double max_abs = 0;
    double bits_per_value = 0;
    std::string refused;  // why the codec does not take these values; the figures are 0 then
};

struct PartInspection {
    std::string sequence;
    std::uint32_t layer = 0;
    LayerKind kind = LayerKind::gqa;
    PartId part = PartId::k;
    std::string scheme;
    std::uint64_t values = 0;
    // Of the finite values.
    float min = 0, max = 0, max_abs = 0;
    double rms = 0;
    std::uint64_t zeros = 0;
    // histogram[i]: values with 2^(lowest_exponent + i) <= |x| < twice that; the ends take what lies beyond them.
    std::vector<std::uint64_t> histogram;
    double median_channel = 0;             // of the channels' largest magnitudes
    std::uint64_t outlier_channels = 0;    // ratio of outlier_ratio and more
    std::vector<OutlierChannel> outliers;  // the largest of them, largest first; at most max_outliers
    std::uint64_t nan = 0, infinite = 0;
    std::optional<Location> first_nonfinite;
    std::vector<CodecError> codecs;  // in the order asked for; empty where values are not finite, or there are none
};
inline constexpr int lowest_exponent = -24, highest_exponent = 15;  // of an f16
inline constexpr double outlier_ratio = 4;
inline constexpr std::size_t max_outliers = 8;

// Reads the state to its end, one layer in memory. The figures do not depend on `threads`.
Result<std::vector<PartInspection>> inspect_state(Source& source, const std::vector<quant::Spec>& codecs, int threads);

}  // namespace hetero::kv
