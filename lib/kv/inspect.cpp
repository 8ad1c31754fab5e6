#include "kv/inspect.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "base/threads.h"
#include "kv/canonical.h"
#include "kv/convert.h"

namespace hetero::kv {
namespace {

std::size_t bucket_of(float magnitude) {
    const int exponent = std::clamp(std::ilogb(magnitude), lowest_exponent, highest_exponent);
    return static_cast<std::size_t>(exponent - lowest_exponent);
}

// `channels`: [head][dim], the largest magnitude of each.
void find_outliers(const std::vector<float>& channels, std::uint32_t head_dim, std::uint32_t first_head,
                   PartInspection& out) {
    if (channels.empty()) return;
    std::vector<float> sorted = channels;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    out.median_channel = *middle;
    for (std::size_t c = 0; c < channels.size(); ++c) {
        const double ratio = *middle > 0 ? channels[c] / out.median_channel : channels[c] > 0 ? HUGE_VAL : 0;
        if (!(ratio >= outlier_ratio)) continue;
        out.outliers.push_back({first_head + static_cast<std::uint32_t>(c / head_dim),
                                static_cast<std::uint32_t>(c % head_dim), channels[c], ratio});
    }
    out.outlier_channels = out.outliers.size();
    std::stable_sort(out.outliers.begin(), out.outliers.end(),
                     [](const OutlierChannel& a, const OutlierChannel& b) { return a.max_abs > b.max_abs; });
    if (out.outliers.size() > max_outliers) out.outliers.resize(max_outliers);
}

struct Squares {
    double sum = 0, error = 0;
};

CodecError try_codec(const quant::Spec& spec, const quant::Shape& shape, std::span<const float> values) {
    CodecError result{quant::to_text(spec), 0, 0, 0, {}};
    const quant::Codec& codec = *quant::find_codec(spec.codec);
    const auto encoded = codec.encode(spec.params, shape, values);
    if (!encoded) {
        result.refused = encoded.error().message;
        return result;
    }
    std::vector<float> back(values.size());
    if (const Status status = codec.decode(spec.params, shape, encoded->values, encoded->scale, encoded->zero, back);
        !status) {
        result.refused = status.error().message;
        return result;
    }
    Squares squares;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double x = values[i], error = back[i] - x;
        squares.sum += x * x;
        squares.error += error * error;
        result.max_abs = std::max(result.max_abs, std::fabs(error));
    }
    if (squares.sum > 0) result.relative_rms = std::sqrt(squares.error / squares.sum);
    result.bits_per_value =
        8.0 * static_cast<double>(codec.bytes(spec.params, shape).total()) / static_cast<double>(values.size());
    return result;
}

class Inspector {
public:
    Inspector(const Header& header, const std::vector<quant::Spec>& codecs, int threads)
        : header_(header), codecs_(codecs), pool_(threads) {}

    Result<PartInspection> inspect(std::size_t sequence, std::uint32_t layer, PartId id, const Part& part) {
        const std::uint64_t tokens = header_.stored_tokens(sequence, layer);
        HETERO_TRY(const std::vector<float> values,
                   decode_part(header_, part, tokens, id, header_.first_token(sequence, layer)));
        PartInspection out;
        out.sequence = header_.sequences[sequence].id;
        out.layer = layer;
        out.kind = header_.layer_shape(layer).kind;
        out.part = id;
        out.scheme = describe(part.scheme);
        measure(sequence, layer, id, values, out);
        if (values.empty() || out.nan + out.infinite != 0) return out;
        const quant::Shape shape{tokens, header_.stored_heads(), header_.identity.head_dim(id),
                                 header_.first_token(sequence, layer)};
        out.codecs.resize(codecs_.size());
        pool_.parallel_for(codecs_.size(), [&](std::size_t i, int) {
            try {
                out.codecs[i] = try_codec(codecs_[i], shape, values);
            } catch (const std::bad_alloc&) {
                out.codecs[i] = {quant::to_text(codecs_[i]), 0, 0, 0, "out of memory"};
            }
        });
        return out;
    }

private:
    void measure(std::size_t sequence, std::uint32_t layer, PartId id, const std::vector<float>& values,
                 PartInspection& out) const {
        const std::uint32_t head_dim = header_.identity.head_dim(id);
        const std::size_t width = std::size_t{header_.stored_heads()} * head_dim;
        std::vector<float> channels(values.empty() ? 0 : width);
        out.values = values.size();
        out.histogram.assign(highest_exponent - lowest_exponent + 1, 0);
        double squares = 0;
        bool any = false;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const float x = values[i];
            if (!std::isfinite(x)) {
                ++(std::isnan(x) ? out.nan : out.infinite);
                if (!out.first_nonfinite) out.first_nonfinite = locate(header_, sequence, layer, id, i);
                continue;
            }
            out.min = any ? std::min(out.min, x) : x;
            out.max = any ? std::max(out.max, x) : x;
            any = true;
            squares += static_cast<double>(x) * x;
            const float magnitude = std::fabs(x);
            if (magnitude == 0) {
                ++out.zeros;
            } else {
                ++out.histogram[bucket_of(magnitude)];
            }
            float& channel = channels[i % width];
            channel = std::max(channel, magnitude);
        }
        out.max_abs = std::max(std::fabs(out.min), std::fabs(out.max));
        const std::uint64_t finite = out.values - out.nan - out.infinite;
        if (finite > 0) out.rms = std::sqrt(squares / static_cast<double>(finite));
        find_outliers(channels, head_dim, header_.shard.head_first, out);
    }

    const Header& header_;
    const std::vector<quant::Spec>& codecs_;
    ThreadPool pool_;
};

}  // namespace

Result<std::vector<PartInspection>> inspect_state(Source& source, const std::vector<quant::Spec>& codecs,
                                                  int threads) try {
    const Header& header = source.header();
    for (const quant::Spec& spec : codecs) {
        if (quant::find_codec(spec.codec) == nullptr)
            return fail(Errc::usage, "unknown codec '{}': known are {}", spec.codec, quant::codec_names());
    }
    Inspector inspector(header, codecs, threads);
    std::vector<PartInspection> parts;
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        for (std::uint32_t layer = 0; layer < header.identity.n_layers; ++layer) {
            HETERO_TRY(const Layer data, source.read_layer());
            for (const PartId id : {PartId::k, PartId::v}) {
                auto part = inspector.inspect(s, layer, id, data.part(id));
                if (!part) {
                    return fail_with(part.error(),
                                     fmt::format("{}: sequence {}, layer {}, {}", source.name(), header.sequences[s].id,
                                                 layer, header.part_name(layer, id)));
                }
                parts.push_back(std::move(*part));
            }
        }
    }
    HETERO_CHECK(source.finish());
    return parts;
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "{}: not enough memory to inspect a layer", source.name());
}

}  // namespace hetero::kv
