// Sessions on the emulated device.
#pragma once
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "emulation/emulation.h"
#include "unit/engine/support.h"

namespace hetero::test {

struct Wanted {
    bool on_device = true;
    engine::Precision precision = engine::Precision::precise;
    engine::Exec exec = engine::Exec::graph;
    DType kv_dtype = DType::f32;
    std::optional<engine::KvCodecs> codecs = {};
    std::string tiers = "device";
    std::uint64_t capacity = 160;
    std::uint32_t chunk_tokens = 64, sequences = 1;
    std::uint64_t block_tokens = 0, device_memory = 0;
    const kernels::DeviceOps* ops = &kernels::emulated_ops();
    engine::LayerSchemes hand_out = {};
    bool layers_stay = false;
};

inline Result<std::unique_ptr<Session>> try_session(const std::shared_ptr<const model::Model>& model,
                                                    const Wanted& wanted) {
    engine::Options options;
    options.threads = 1;
    options.kv_dtype = wanted.kv_dtype;
    options.kv_codecs = wanted.codecs;
    options.precision = wanted.precision;
    options.exec = wanted.exec;
    options.chunk_tokens = wanted.chunk_tokens;
    options.block_tokens = wanted.block_tokens;
    options.sequences = wanted.sequences;
    options.hand_out = wanted.hand_out;
    options.layers_stay = wanted.layers_stay;
    if (wanted.on_device) {
        options.device = {wanted.ops, 1, wanted.device_memory};
        options.kv_tiers = must(engine::KvTiers::parse(wanted.tiers));
    }
    return Session::create(model, options, wanted.capacity);
}

inline std::unique_ptr<Session> session_of(const std::shared_ptr<const model::Model>& model,
                                           const Wanted& wanted = {}) {
    return must(try_session(model, wanted));
}

inline std::vector<TokenId> some_tokens(std::size_t count, TokenId seed = 11) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>((i * 37 + seed) % 200));
    return tokens;
}

inline std::vector<float> step(Session& session, TokenId token) {
    const std::span<const float> logits = must(session.decode(token));
    return {logits.begin(), logits.end()};
}

inline kv::Header header_of(const Session& session) {
    kv::Header header;
    header.identity = engine::identity_of(session.model(), Digest{});
    header.layer_shapes = engine::layer_shapes(session.model());
    return header;
}

inline std::vector<kv::Layer> state_of(const Session& session) {
    std::vector<kv::Layer> layers;
    for (std::uint32_t layer = 0; layer < session.model().config.n_layers; ++layer)
        layers.push_back(must(session.export_layer(layer)));
    return layers;
}

inline void copy_state(const Session& source, Session& target) {
    const kv::Header header = header_of(source);
    for (std::uint32_t layer = header.identity.n_layers; layer-- > 0;)
        must(target.import_layer(header, layer, must(source.export_layer(layer)), source.position()));
}

inline bool same_bytes(const kv::Layer& a, const kv::Layer& b) {
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v})
        for (const auto array : {&kv::Part::values, &kv::Part::scale, &kv::Part::zero}) {
            const kv::Tensor &one = a.part(id).*array, &other = b.part(id).*array;
            if (one.shape != other.shape || one.bytes != other.bytes) return false;
        }
    return true;
}
inline bool same_bytes(const std::vector<kv::Layer>& a, const std::vector<kv::Layer>& b) {
    bool same = a.size() == b.size();
    for (std::size_t i = 0; same && i < a.size(); ++i) same = same_bytes(a[i], b[i]);
    return same;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
        if (!(difference <= largest)) largest = difference;  // NaN stays
        if (std::isnan(difference)) break;
    }
    return largest;
}

// The prompt's last logits, then those of steps of the likeliest token.
struct Continued {
    std::vector<std::vector<float>> logits;
    std::vector<TokenId> tokens;
    friend bool operator==(const Continued&, const Continued&) = default;
};
inline Continued continue_from(Session& session, std::vector<float> last, int steps) {
    Continued out;
    for (int i = 0; i < steps; ++i) {
        out.tokens.push_back(engine::argmax(last));
        out.logits.push_back(std::move(last));
        last = step(session, out.tokens.back());
    }
    out.logits.push_back(std::move(last));
    return out;
}
inline Continued run(Session& session, const std::vector<TokenId>& prompt, int steps) {
    return continue_from(session, prefill(session, prompt), steps);
}

}  // namespace hetero::test
