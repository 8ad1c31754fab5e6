// States of the tiny models, and other forms of them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/layers.h"
#include "kv/convert.h"
#include "quant/spec.h"
#include "unit/engine/support.h"
#include "verify/measure.h"

namespace hetero::test {

using ModelPtr = std::shared_ptr<const model::Model>;

inline std::vector<TokenId> some_tokens(std::size_t n, int seed = 13) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < n; ++i)
        tokens.push_back(static_cast<TokenId>((i * 97 + static_cast<std::size_t>(seed)) % 500));
    return tokens;
}

// What the model makes of these sequences.
inline kv::State state_of(const ModelPtr& model, const std::vector<std::vector<TokenId>>& sequences,
                          DType dtype = DType::f16) {
    kv::State state;
    state.header.identity = engine::identity_of(*model, {});
    state.header.layer_shapes = engine::layer_shapes(*model);
    state.header.k_schemes.assign(model->config.n_layers, engine::scheme_of(dtype, kv::PartId::k));
    state.header.v_schemes = state.header.k_schemes;
    for (const auto& tokens : sequences) {
        const auto session = make_session(model, tokens.size(), dtype);
        kv::Sequence sequence;
        sequence.id = std::to_string(state.header.sequences.size());
        sequence.tokens = tokens;
        sequence.logits = prefill(*session, tokens);
        state.header.sequences.push_back(sequence);
        state.layers.push_back(must(engine::export_layers(*session)));
    }
    return state;
}

inline kv::Scheme spec_scheme(const std::string& text, DType source) {
    const quant::Spec spec = must(quant::parse_spec(text));
    kv::Scheme scheme;
    scheme.codec = spec.codec;
    scheme.params = spec.params;
    const quant::Codec& codec = *quant::find_codec(spec.codec);
    scheme.source_dtype = codec.quantized() ? source : codec.value_dtype(spec.params);
    return scheme;
}

// The state with K and V in these codecs.
inline kv::State encoded(const kv::State& state, const std::string& k, const std::string& v) {
    kv::State out = state;
    const DType source = kv::source_dtype(state.header);
    out.header.k_schemes.assign(state.header.k_schemes.size(), spec_scheme(k, source));
    out.header.v_schemes.assign(state.header.v_schemes.size(), spec_scheme(v, source));
    for (std::size_t s = 0; s < out.layers.size(); ++s) {
        for (std::size_t l = 0; l < out.layers[s].size(); ++l) {
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                const std::uint64_t n = state.header.stored_tokens(s, l);
                const auto values = must(kv::decode_part(state.header, state.layers[s][l].part(id), n, id));
                out.layers[s][l].part(id) = must(kv::encode_part(out.header, out.header.scheme(l, id), n, id, values));
            }
        }
    }
    return out;
}

inline verify::Report measured(const ModelPtr& model, const kv::State& a, const kv::State& b,
                               const verify::Options& options) {
    const kv::State* candidate = &b;
    auto reports = must(verify::measure(model, a, {&candidate, 1}, options));
    REQUIRE(reports.size() == 1);
    return std::move(reports.front());
}

}  // namespace hetero::test
