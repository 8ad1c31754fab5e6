// States for the tests of this folder, filled with numbers that depend on their place alone.
#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "kv/convert.h"
#include "kv/file.h"
#include "kv/integrity.h"
#include "kv/state.h"
#include "kv/stream.h"
#include "quant/spec.h"
#include "support/temp_dir.h"

namespace hetero::test {

inline std::vector<std::byte> read_bytes(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    REQUIRE_MESSAGE(in.good(), "cannot open ", path);
    std::vector<std::byte> bytes(std::filesystem::file_size(path));
    in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return bytes;
}

inline void write_bytes(const std::string& path, std::span<const std::byte> bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(out.good());
}

inline kv::Scheme plain_scheme(const std::string& codec) {
    kv::Scheme scheme;
    scheme.codec = codec;
    scheme.source_dtype = quant::find_codec(codec)->value_dtype({});
    return scheme;
}

inline kv::Scheme int8_scheme(quant::Axis axis, std::uint32_t group, bool symmetric,
                              kv::DType scale_dtype = kv::DType::f16) {
    kv::Scheme scheme;
    scheme.codec = "int8";
    scheme.params = {axis, group, symmetric, scale_dtype};
    scheme.source_dtype = kv::DType::f16;
    return scheme;
}

// A codec by its spec, of f16.
inline kv::Scheme spec_scheme(const std::string& text, std::uint32_t sinks = 0, std::uint32_t window = 0) {
    const auto spec = quant::parse_spec(text);
    REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
    kv::Scheme scheme;
    scheme.codec = spec->codec;
    scheme.params = spec->params;
    const quant::Codec& codec = *quant::find_codec(spec->codec);
    scheme.source_dtype = codec.quantized() ? kv::DType::f16 : codec.value_dtype(spec->params);
    scheme.sinks = sinks;
    scheme.window = window;
    return scheme;
}

struct Plan {
    std::uint32_t n_layers = 2, n_heads = 4, n_kv_heads = 2, head_dim_k = 8, head_dim_v = 8, vocab_size = 50;
    std::vector<std::uint64_t> lengths = {5};  // tokens of each sequence
    kv::Scheme k = plain_scheme("f16"), v = plain_scheme("f16");
    std::vector<kv::Scheme> k_of_layer, v_of_layer;  // where layers differ
    std::vector<kv::LayerShape> shapes;
    kv::Shard shard;
    bool logits = true;
    std::uint32_t tokens_per_chunk = 0;
};

inline kv::Header make_header(const Plan& plan) {
    kv::Header header;
    kv::Identity& id = header.identity;
    id.model_id = "a test";
    id.arch = "llama";
    id.n_layers = plan.n_layers;
    id.n_heads = plan.n_heads;
    id.n_kv_heads = plan.n_kv_heads;
    id.head_dim_k = plan.head_dim_k;
    id.head_dim_v = plan.head_dim_v;
    id.vocab_size = plan.vocab_size;
    id.context_length = 1U << 20;
    id.rope_theta = 10000;
    id.arch_digest = sha256("arch");
    id.tokenizer_digest = sha256("tokenizer");
    id.lineage = sha256("lineage");
    id.weights_digest = sha256("weights");
    for (std::size_t s = 0; s < plan.lengths.size(); ++s) {
        kv::Sequence sequence;
        sequence.id = "prompt " + std::to_string(s);
        for (std::uint64_t i = 0; i < plan.lengths[s]; ++i)
            sequence.tokens.push_back(static_cast<std::int32_t>((7 * i + s) % plan.vocab_size));
        sequence.pending_token = static_cast<std::int32_t>(s) - 1;
        sequence.special_parsed = s % 2 == 1;
        if (plan.logits)
            for (std::uint32_t i = 0; i < plan.vocab_size; ++i)
                sequence.logits.push_back(static_cast<float>(i) / 8 - static_cast<float>(s));
        header.sequences.push_back(std::move(sequence));
    }
    header.k_schemes.assign(plan.n_layers, plan.k);
    header.v_schemes.assign(plan.n_layers, plan.v);
    if (!plan.k_of_layer.empty()) header.k_schemes = plan.k_of_layer;
    if (!plan.v_of_layer.empty()) header.v_schemes = plan.v_of_layer;
    header.layer_shapes = plan.shapes;
    header.shard = plan.shard;
    header.provenance = {{"hetero-prefill", "0.1.0", "prefill kv_dtype=f16"}, {"test", "1", "tab\tand \"quotes\""}};
    header.tokens_per_chunk = plan.tokens_per_chunk;
    return header;
}

// In [-4, 4], different at neighbouring places.
inline float value_at(std::uint64_t seed) {
    std::uint64_t x = seed * 0x9E3779B97F4A7C15ULL + 0x1234567;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ULL;
    x ^= x >> 29;
    return static_cast<float>(x >> 40) / static_cast<float>(1 << 21) - 4.0F;
}

inline kv::Part make_part(const kv::Header& header, const kv::Scheme& scheme, std::uint64_t n_tokens, kv::PartId id,
                          const std::vector<float>& values) {
    if (scheme.sinks != 0 || scheme.window != 0) {
        auto part = kv::encode_part(header, scheme, n_tokens, id, values);
        REQUIRE_MESSAGE(part.has_value(), part.error().message);
        return std::move(*part);
    }
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    REQUIRE(codec != nullptr);
    const auto shape = kv::values_shape(header, scheme, n_tokens, id);
    auto encoded = codec->encode(
        scheme.params, {n_tokens, static_cast<std::uint32_t>(shape[1]), header.identity.head_dim(id)}, values);
    REQUIRE_MESSAGE(encoded.has_value(), encoded.error().message);
    kv::Part part;
    part.scheme = scheme;
    part.values = {codec->value_dtype(scheme.params), shape, std::move(encoded->values)};
    if (codec->has_scale()) {
        part.scale = {scheme.params.scale_dtype, kv::scale_shape(header, scheme, n_tokens, id),
                      std::move(encoded->scale)};
        if (!scheme.params.symmetric)
            part.zero = {scheme.params.scale_dtype, part.scale.shape, std::move(encoded->zero)};
    }
    return part;
}

inline kv::State make_state(const Plan& plan) {
    kv::State state;
    state.header = make_header(plan);
    for (std::size_t s = 0; s < plan.lengths.size(); ++s) {
        auto& layers = state.layers.emplace_back();
        for (std::uint32_t l = 0; l < plan.n_layers; ++l) {
            kv::Layer layer;
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                const std::uint32_t dim = id == kv::PartId::k ? plan.head_dim_k : plan.head_dim_v;
                const std::uint64_t n_tokens = state.header.stored_tokens(s, l);
                std::vector<float> values(n_tokens * state.header.stored_heads() * dim);
                for (std::size_t i = 0; i < values.size(); ++i)
                    values[i] = value_at(((s * 100 + l) * 2 + static_cast<std::uint64_t>(id)) * 1000003 + i);
                layer.part(id) = make_part(state.header, state.header.scheme(l, id), n_tokens, id, values);
            }
            layers.push_back(std::move(layer));
        }
    }
    return state;
}

// "" where both hold the same, else what differs. tokens_per_chunk counts only where `a` sets it.
inline std::string difference(const kv::State& a, const kv::State& b) {
    const kv::Header &x = a.header, &y = b.header;
    if (!kv::compare(x.identity, y.identity).empty()) return "identity";
    if (x.identity.model_id != y.identity.model_id) return "model_id";
    if (x.identity.weights_digest != y.identity.weights_digest) return "weights_digest";
    if (x.sequences.size() != y.sequences.size()) return "number of sequences";
    for (std::size_t i = 0; i < x.sequences.size(); ++i) {
        const kv::Sequence &s = x.sequences[i], &t = y.sequences[i];
        if (s.id != t.id) return "id";
        if (s.tokens != t.tokens) return "tokens";
        if (s.pending_token != t.pending_token) return "pending_token";
        if (s.special_parsed != t.special_parsed) return "special_parsed";
        if (s.logits.size() != t.logits.size()) return "logits";
        if (!s.logits.empty() && std::memcmp(s.logits.data(), t.logits.data(), 4 * s.logits.size()) != 0)
            return "logits";
    }
    if (x.k_schemes != y.k_schemes || x.v_schemes != y.v_schemes) return "schemes";
    if (!kv::compare(x.layer_shapes, y.layer_shapes).empty()) return "layer shapes";
    if (x.shard != y.shard) return "shard";
    if (x.tokens_per_chunk != 0 && x.tokens_per_chunk != y.tokens_per_chunk) return "tokens_per_chunk";
    if (x.provenance.size() != y.provenance.size()) return "provenance";
    for (std::size_t i = 0; i < x.provenance.size(); ++i) {
        const auto &p = x.provenance[i], &q = y.provenance[i];
        if (p.tool != q.tool || p.version != q.version || p.what != q.what) return "provenance";
    }
    if (a.layers.size() != b.layers.size()) return "layers";
    for (std::size_t s = 0; s < a.layers.size(); ++s) {
        if (a.layers[s].size() != b.layers[s].size()) return "layers";
        for (std::size_t l = 0; l < a.layers[s].size(); ++l) {
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                const kv::Part &p = a.layers[s][l].part(id), &q = b.layers[s][l].part(id);
                if (p.scheme != q.scheme) return "scheme of a layer";
                for (const auto& [t, u] : {std::pair{&p.values, &q.values},
                                           {&p.scale, &q.scale},
                                           {&p.zero, &q.zero},
                                           {&p.sink, &q.sink},
                                           {&p.tail, &q.tail}}) {
                    if (t->shape != u->shape || t->bytes != u->bytes || (!t->empty() && t->dtype != u->dtype))
                        return fmt::format("sequence {} layer {} {}", s, l, kv::part_name(id));
                }
            }
        }
    }
    return "";
}

inline void save(const kv::State& state, const std::string& path, io::Overwrite overwrite = io::Overwrite::refuse) {
    auto sink = kv::create_file(path, overwrite);
    REQUIRE_MESSAGE(sink.has_value(), sink.error().message);
    const auto status = kv::write_all(state, **sink);
    REQUIRE_MESSAGE(status.has_value(), status.error().message);
}

inline Result<kv::State> load(const std::string& path, kv::Verify verify = kv::Verify::checksums) {
    HETERO_TRY(auto source, kv::open_file(path, verify));
    return kv::read_all(*source);
}

inline std::vector<std::byte> image_of(const kv::State& state) {
    std::vector<std::byte> image;
    auto sink = kv::create_image(
        [&image](std::span<const std::byte> bytes) -> Status {
            image.assign(bytes.begin(), bytes.end());
            return {};
        },
        "image");
    const auto status = kv::write_all(state, *sink);
    REQUIRE_MESSAGE(status.has_value(), status.error().message);
    return image;
}

inline Result<kv::State> load_image(std::vector<std::byte> image) {
    HETERO_TRY(auto source, kv::open_image(std::move(image), "image"));
    return kv::read_all(*source);
}

}  // namespace hetero::test
