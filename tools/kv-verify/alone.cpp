#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/api/ops.h"
#include "kv/convert.h"
#include "quant/spec.h"
#include "verify.h"

namespace hetero::tool {
namespace {

// Layers of each kind.
std::map<std::string, std::uint32_t> count_kinds(const kv::Header& header) {
    std::map<std::string, std::uint32_t> counts;
    for (std::uint32_t i = 0; i < header.identity.n_layers; ++i) ++counts[kv::kind_name(header.layer_shape(i).kind)];
    return counts;
}

// " (4 gqa, 22 swa)"; nothing where all are gqa.
std::string kinds_text(const kv::Header& header) {
    if (header.all_gqa()) return "";
    std::string text;
    for (const auto& [kind, count] : count_kinds(header))
        text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", count, kind);
    return text + ")";
}

std::string shard_text(const kv::Header& header) {
    const kv::Shard& shard = header.shard;
    if (!header.is_shard()) return "";
    return fmt::format("; shard {} of {}: {} KV heads from head {} on, of {}", shard.tp_rank, shard.tp_size,
                       shard.head_count, shard.head_first, header.identity.n_kv_heads);
}

Status check_finite(const kv::Source& source, std::size_t s, std::uint32_t layer, kv::PartId id,
                    const std::vector<float>& values) {
    for (std::size_t at = 0; at < values.size(); ++at) {
        if (std::isfinite(values[at])) continue;
        return fail(Errc::bad_input, "{}: {} at {}", source.name(), values[at],
                    verify::place_of(kv::locate(source.header(), s, layer, id, at)));
    }
    return {};
}

// Scales that were left at 1 when the codes were written. Formats of others may have it so by definition.
Status check_scales(const kv::Source& source, std::size_t s, std::uint32_t layer, kv::PartId id, const kv::Part& part) {
    const std::uint64_t n = part.scale.elements();
    if (part.scale.empty() || n < 2 || part.scheme.codec.starts_with("compat:")) return {};
    std::vector<float> scales(n);
    kernels::ops().dequantize(part.scale.dtype, part.scale.bytes.data(), scales.data(), n);
    if (std::any_of(scales.begin(), scales.end(), [](float scale) { return scale != 1; })) return {};
    return fail(Errc::check_failed,
                "{}: sequence {}, layer {}, {}: all {} scales are 1, as if they had never been set; take them from the "
                "quantizer",
                source.name(), source.header().sequences[s].id, layer, source.header().part_name(layer, id), n);
}

}  // namespace

std::string schemes_text(const std::vector<kv::Scheme>& schemes) {
    std::vector<std::pair<std::string, std::size_t>> counts;
    for (const kv::Scheme& scheme : schemes) {
        std::string text = quant::to_text({scheme.codec, scheme.params});
        if (scheme.sinks != 0) text += fmt::format(", {} sinks", scheme.sinks);
        if (scheme.window != 0) text += fmt::format(", window {}", scheme.window);
        const auto known =
            std::find_if(counts.begin(), counts.end(), [&](const auto& one) { return one.first == text; });
        if (known != counts.end()) {
            ++known->second;
        } else {
            counts.emplace_back(std::move(text), 1);
        }
    }
    if (counts.size() == 1) return counts.front().first;
    std::string all;
    for (const auto& [text, count] : counts)
        all += fmt::format("{}{} ({} {})", all.empty() ? "" : ", ", text, count, count == 1 ? "layer" : "layers");
    return all;
}

Status verify_alone(Tool& tool, kv::Source& source) {
    const kv::Header& header = source.header();
    std::uint64_t n_tokens = 0;
    Status sane;
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        n_tokens += header.sequences[s].tokens.size();
        for (std::uint32_t i = 0; i < header.identity.n_layers; ++i) {
            HETERO_TRY(const kv::Layer layer, source.read_layer());
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                const auto values =
                    kv::decode_part(header, layer.part(id), header.stored_tokens(s, i), id, header.first_token(s, i));
                if (!values) {
                    return fail_with(values.error(), fmt::format("{}: sequence {}, layer {}, {}", source.name(),
                                                                 header.sequences[s].id, i, header.part_name(i, id)));
                }
                HETERO_CHECK(check_finite(source, s, i, id, *values));
                if (sane) sane = check_scales(source, s, i, id, layer.part(id));
            }
        }
    }
    HETERO_CHECK(source.finish());
    Json& report = tool.report();
    report["pass"] = sane.has_value();
    report["sequences"] = header.sequences.size();
    report["n_tokens"] = n_tokens;
    report["kv_bytes"] = header.payload_bytes();
    report["layer_kinds"] = Json::object();
    for (const auto& [kind, count] : count_kinds(header)) report["layer_kinds"][kind] = count;
    report["shard"] = nullptr;
    if (header.is_shard())
        report["shard"] = {{"tp_size", header.shard.tp_size},
                           {"tp_rank", header.shard.tp_rank},
                           {"head_first", header.shard.head_first},
                           {"head_count", header.shard.head_count}};
    report["codec_k"] = schemes_text(header.k_schemes);
    report["codec_v"] = schemes_text(header.v_schemes);
    if (!sane || tool.json()) return sane;
    return tool.print(fmt::format(
        "{}: complete and undamaged; {} sequences, {} tokens, {} layers{}, K {}, V {}, {} "
        "bytes{}\n",
        source.name(), header.sequences.size(), n_tokens, header.identity.n_layers, kinds_text(header),
        schemes_text(header.k_schemes), schemes_text(header.v_schemes), header.payload_bytes(), shard_text(header)));
}

}  // namespace hetero::tool
