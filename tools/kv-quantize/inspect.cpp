#include "inspect.h"

#include <algorithm>

#include "base/printable.h"

namespace hetero::tool {
namespace {

constexpr const char* default_codecs =
    "int8:token,int8:channel:g32:asym,had:int8:token,fp8_e4m3fn:token,int4:token:asym,int4:channel:g32:asym,"
    "had:int4:token:g32:asym,compat:q8_0";

std::string place_text(const kv::PartInspection& part, std::uint32_t head, std::uint32_t dim) {
    return part.kind == kv::LayerKind::mla ? fmt::format("dim {}", dim) : fmt::format("head {} dim {}", head, dim);
}

Json codec_json(const kv::CodecError& codec) {
    if (!codec.refused.empty()) return {{"spec", codec.spec}, {"refused", codec.refused}};
    return {{"spec", codec.spec},
            {"bits_per_value", number(codec.bits_per_value)},
            {"relative_rms", number(codec.relative_rms)},
            {"max_abs_error", number(codec.max_abs)}};
}

// Buckets as percents of all values, those at the ends that are empty left out: "2^-7 0.4 2^-6 1.9 ...".
std::string histogram_text(const kv::PartInspection& part) {
    const auto filled = [](std::uint64_t n) { return n != 0; };
    const auto first = std::find_if(part.histogram.begin(), part.histogram.end(), filled);
    const auto last = std::find_if(part.histogram.rbegin(), part.histogram.rend(), filled).base();
    std::string text;
    for (auto it = first; it < last; ++it) {
        text += fmt::format(" 2^{} {:.3g}", kv::lowest_exponent + (it - part.histogram.begin()),
                            100.0 * static_cast<double>(*it) / static_cast<double>(part.values));
    }
    if (part.zeros != 0)
        text += fmt::format(" 0 {:.3g}", 100.0 * static_cast<double>(part.zeros) / static_cast<double>(part.values));
    return text;
}

}  // namespace

Result<std::vector<quant::Spec>> inspected_codecs(const std::string& list) {
    return quant::parse_specs(list.empty() ? default_codecs : list);
}

Json to_json(const std::vector<kv::PartInspection>& parts) {
    Json document;
    document["histogram_lowest_exponent"] = kv::lowest_exponent;
    document["outlier_ratio"] = kv::outlier_ratio;
    std::uint64_t not_finite = 0;
    Json& list = document["parts"] = Json::array();
    for (const kv::PartInspection& part : parts) {
        not_finite += part.nan + part.infinite;
        Json entry = {{"sequence", part.sequence},
                      {"layer", part.layer},
                      {"kind", kv::kind_name(part.kind)},
                      {"part", kv::part_name(part.part, part.kind)},
                      {"scheme", part.scheme},
                      {"values", part.values},
                      {"min", number(part.min)},
                      {"max", number(part.max)},
                      {"max_abs", number(part.max_abs)},
                      {"rms", number(part.rms)},
                      {"zeros", part.zeros},
                      {"nan", part.nan},
                      {"infinite", part.infinite},
                      {"histogram", part.histogram},
                      {"median_channel_max_abs", number(part.median_channel)},
                      {"outlier_channels", part.outlier_channels}};
        Json& outliers = entry["outliers"] = Json::array();
        for (const kv::OutlierChannel& one : part.outliers) {
            outliers.push_back(
                {{"head", one.head}, {"dim", one.dim}, {"max_abs", number(one.max_abs)}, {"ratio", number(one.ratio)}});
        }
        if (part.first_nonfinite) {
            entry["first_nonfinite"] = {{"token", part.first_nonfinite->token},
                                        {"head", part.first_nonfinite->head},
                                        {"dim", part.first_nonfinite->dim}};
        }
        Json& codecs = entry["codecs"] = Json::array();
        for (const kv::CodecError& codec : part.codecs) codecs.push_back(codec_json(codec));
        list.push_back(std::move(entry));
    }
    document["not_finite"] = not_finite;
    return document;
}

std::string to_text(const std::vector<kv::PartInspection>& parts) {
    std::string text, sequence;
    for (const kv::PartInspection& part : parts) {
        if (text.empty() || part.sequence != sequence) {
            sequence = part.sequence;
            text += fmt::format("sequence {}\n{:>5} {:>4} {:>8} {:>11} {:>11} {:>11} {:>9} {:>8}  largest channel\n",
                                printable(sequence), "layer", "kind", "part", "min", "max", "rms", "outliers", "ratio");
        }
        text +=
            fmt::format("{:>5} {:>4} {:>8} {:>11.5g} {:>11.5g} {:>11.5g} {:>9}", part.layer, kv::kind_name(part.kind),
                        kv::part_name(part.part, part.kind), part.min, part.max, part.rms, part.outlier_channels);
        if (!part.outliers.empty()) {
            const kv::OutlierChannel& worst = part.outliers.front();
            text += fmt::format(" {:>8.4g}  {}", worst.ratio, place_text(part, worst.head, worst.dim));
        }
        text += '\n';
        if (part.first_nonfinite) {
            text += fmt::format("      {} NaN, {} infinite; the first at token {}, {}\n", part.nan, part.infinite,
                                part.first_nonfinite->token,
                                place_text(part, part.first_nonfinite->head, part.first_nonfinite->dim));
        }
        if (part.values != 0) text += fmt::format("      |x| %:{}\n", histogram_text(part));
        for (const kv::CodecError& codec : part.codecs) {
            text += codec.refused.empty()
                        ? fmt::format("      {:<26} {:>6.2f} bits  relative rms {:<11.4g} max |error| {:.4g}\n",
                                      codec.spec, codec.bits_per_value, codec.relative_rms, codec.max_abs)
                        : fmt::format("      {:<26} refused: {}\n", codec.spec, codec.refused);
        }
    }
    return text;
}

}  // namespace hetero::tool
