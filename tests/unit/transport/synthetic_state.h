// KV states with arbitrary numbers, for tests of how states travel.
#pragma once
#include <doctest/doctest.h>

#include <random>

#include "kv/integrity.h"
#include "kv/stream.h"
#include "transport/chunk_plan.h"

namespace hetero::test {

struct StateShape {
    std::uint32_t sinks = 0, window = 0;  // of K, which must be quantized then
    std::uint32_t layers = 3, kv_heads = 2, head_dim = 8;
    std::vector<std::uint64_t> tokens = {13};  // of each sequence
    std::string k_codec = "f16", v_codec = "f16";
    quant::Params k_params, v_params;
    std::uint32_t tokens_per_chunk = 4;
    bool logits = true;
    std::vector<kv::LayerShape> shapes;
    kv::Shard shard;
};

// Layers of every kind in a shard; the first sequence is longer than the window.
inline StateShape mixed_shape() {
    StateShape shape;
    shape.layers = 4;
    shape.kv_heads = 1;
    shape.tokens = {13, 3};
    shape.v_codec = "f32";
    shape.shapes = {{kv::LayerKind::swa, 6}, {}, {kv::LayerKind::mla, 0}, {kv::LayerKind::swa, 1}};
    shape.shard = {2, 1, 0, 1};
    return shape;
}

inline kv::Scheme scheme(const std::string& codec, const quant::Params& params) {
    kv::Scheme out;
    out.codec = codec;
    const quant::Codec* found = quant::find_codec(codec);
    if (found != nullptr && found->has_scale()) {
        out.params = params;
    } else if (found != nullptr) {
        out.source_dtype = found->value_dtype(out.params);
    }
    return out;
}

inline kv::Header synthetic_header(const StateShape& shape, std::uint32_t seed) {
    std::mt19937 random(seed);
    kv::Header header;
    kv::Identity& id = header.identity;
    id.model_id = "synthetic";
    id.arch = "llama";
    id.n_layers = shape.layers;
    id.n_heads = shape.kv_heads * 2;
    id.n_kv_heads = shape.kv_heads;
    id.head_dim_k = id.head_dim_v = shape.head_dim;
    id.vocab_size = 50;
    id.context_length = 1U << 20;
    id.rope_theta = 10000;
    for (Digest* digest : {&id.arch_digest, &id.tokenizer_digest, &id.lineage, &id.weights_digest})
        for (std::uint8_t& byte : *digest) byte = static_cast<std::uint8_t>(random());
    for (std::size_t i = 0; i < shape.tokens.size(); ++i) {
        kv::Sequence& sequence = header.sequences.emplace_back();
        sequence.id = fmt::format("seq-{}", i);
        sequence.pending_token = static_cast<std::int32_t>(i) - 1;
        sequence.special_parsed = i % 2 == 1;
        for (std::uint64_t t = 0; t < shape.tokens[i]; ++t)
            sequence.tokens.push_back(static_cast<std::int32_t>(random() % id.vocab_size));
        if (shape.logits)
            for (std::uint32_t v = 0; v < id.vocab_size; ++v)
                sequence.logits.push_back(static_cast<float>(random() % 1000) / 7);
    }
    kv::Scheme k = scheme(shape.k_codec, shape.k_params);
    k.sinks = shape.sinks;
    k.window = shape.window;
    header.k_schemes.assign(shape.layers, k);
    header.v_schemes.assign(shape.layers, scheme(shape.v_codec, shape.v_params));
    header.provenance.push_back({"hetero-prefill", "0.1.0", "prefill kv_dtype=f16"});
    header.tokens_per_chunk = shape.tokens_per_chunk;
    header.layer_shapes = shape.shapes;
    header.shard = shape.shard;
    return header;
}

// Byte patterns, not numbers: nothing here decodes them.
inline void fill(kv::Layer& layer, std::uint32_t seed) {
    std::mt19937_64 random(seed);
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v})
        for (const auto array : {transport::Array::values, transport::Array::scale, transport::Array::zero,
                                 transport::Array::sink, transport::Array::tail}) {
            auto& bytes = transport::array_of(layer.part(id), array).bytes;
            for (std::size_t i = 0; i < bytes.size(); i += 8) {
                const std::uint64_t word = random();
                std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i));
            }
        }
}

inline Result<kv::State> synthetic_state(const StateShape& shape, std::uint32_t seed) {
    kv::State state;
    state.header = synthetic_header(shape, seed);
    HETERO_CHECK(kv::check_header(state.header));
    for (std::size_t s = 0; s < shape.tokens.size(); ++s) {
        auto& layers = state.layers.emplace_back();
        for (std::uint32_t l = 0; l < shape.layers; ++l) {
            HETERO_TRY(auto layer, transport::allocate_layer(state.header, s * shape.layers + l));
            fill(*layer, seed * 1000 + static_cast<std::uint32_t>(s) * 100 + l);
            layers.push_back(std::move(*layer));
        }
    }
    return state;
}

inline bool same_bytes(const kv::Layer& a, const kv::Layer& b) {
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v})
        for (const auto array : {transport::Array::values, transport::Array::scale, transport::Array::zero,
                                 transport::Array::sink, transport::Array::tail}) {
            const auto& x = transport::array_of(a.part(id), array);
            const auto& y = transport::array_of(b.part(id), array);
            if (x.bytes != y.bytes || x.shape != y.shape || (!x.shape.empty() && x.dtype != y.dtype)) return false;
        }
    return a.k.scheme == b.k.scheme && a.v.scheme == b.v.scheme;
}

}  // namespace hetero::test
