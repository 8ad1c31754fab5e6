#include "verify/diagnose.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kv/convert.h"
#include "verify/faults.h"

namespace hetero::verify {
namespace {

// What is looked at, and what is encoded to see whether it should be: bounds the time that large states take.
constexpr std::size_t most_parts = 24;
constexpr std::uint64_t most_looked_values = 1U << 25, most_encoded_values = 1U << 28;
constexpr double path_noise = 1e-3;  // relative error that needs no explanation
constexpr double explained = 0.1;    // relative error that may be left where a fault is undone

struct Errors {
    double before = 0, after = 0;  // relative L2 over the values that the repair knows
    bool enough = false;           // at least half of them
};

Errors compare(std::span<const float> a, std::span<const float> b, std::span<const float> repaired) {
    double squares = 0, before = 0, after = 0;
    std::size_t known = 0;
    for (std::size_t i = 0; i < repaired.size(); ++i) {
        if (!std::isfinite(repaired[i])) continue;
        const double x = a[i], old_error = b[i] - x, new_error = repaired[i] - x;
        squares += x * x;
        before += old_error * old_error;
        after += new_error * new_error;
        ++known;
    }
    if (squares == 0 || 2 * known < a.size()) return {};
    return {std::sqrt(before / squares), std::sqrt(after / squares), true};
}

// What the candidate's codec makes of the reference itself; 0 where it cannot.
double codec_error(const Case& part) {
    const std::vector<float> values(part.a.begin(), part.a.end());
    const auto encoded =
        kv::encode_part(part.candidate, part.part().scheme, part.n_tokens, part.id, values, part.first_token);
    if (!encoded) return 0;
    const std::vector<float> decoded = part.decode(*encoded);
    return decoded.empty() ? 0 : compare(part.a, part.a, decoded).after;
}

struct Best {
    std::string_view name;
    std::string detail;
    Errors errors;
};

std::optional<Best> find_fault(const Case& part, double codec) {
    std::optional<Best> best;
    for (const KnownFault& fault : known_faults()) {
        fault.undo(part, [&](const std::vector<float>& values, std::string detail) {
            if (values.size() != part.a.size()) return;
            const Errors errors = compare(part.a, part.b, values);
            const bool collapsed = errors.after <= 1.5 * codec + path_noise ||
                                   (errors.after <= errors.before / 4 && errors.after <= explained);
            if (!errors.enough || !collapsed || errors.before <= 3 * codec + path_noise) return;
            if (best && errors.after > best->errors.after / 1.5) return;  // an earlier one does as well
            best = Best{fault.name, std::move(detail), errors};
        });
    }
    return best;
}

}  // namespace

LayerRope rope_of(const model::RopeConfig& config) {
    return {model::inverse_frequencies(config), config.attention_factor, config.theta};
}

std::vector<LayerRope> ropes_of(const model::Model& model) {
    std::vector<LayerRope> ropes(model.program.kv.size());
    for (const model::Op& any : model.program.ops) {
        const auto of = [&](std::uint32_t index) { return rope_of(model.program.ropes[index]); };
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) ropes[qkv->layer] = of(qkv->rope);
        if (const auto* latent = std::get_if<model::LatentKv>(&any)) ropes[latent->layer] = of(latent->rope);
    }
    return ropes;
}

std::vector<LayerRope> ropes_of(const kv::Identity& identity) {
    LayerRope rope;
    if (identity.rope_applied && identity.rope_scaling == "none" && identity.rope_theta > 1 &&
        identity.head_dim_k % 2 == 0) {
        model::RopeConfig plain;
        plain.theta = identity.rope_theta;
        plain.rotary_dim = identity.head_dim_k;
        rope = rope_of(plain);
    }
    return std::vector<LayerRope>(identity.n_layers, rope);
}

Diagnoser::Diagnoser(const kv::Header& reference, const kv::Header& candidate, std::vector<LayerRope> ropes)
    : reference_(reference), candidate_(candidate), ropes_(std::move(ropes)) {}

Status Diagnoser::look(const kv::ComparedLayer& layer) {
    const kv::LayerKind kind = reference_.layer_shape(layer.layer).kind;
    for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
        const kv::PartDifference& difference = layer.parts[id == kv::PartId::k ? 0 : 1];
        if (!(difference.relative_l2 > path_noise) || !std::isfinite(difference.max_abs)) continue;
        if (looked_ >= most_parts || looked_values_ >= most_looked_values || encoded_values_ >= most_encoded_values) {
            return {};
        }
        const std::uint64_t n_tokens = reference_.stored_tokens(layer.sequence, layer.layer);
        const std::uint64_t first = reference_.first_token(layer.sequence, layer.layer);
        HETERO_TRY(const auto a, kv::decode_part(reference_, layer.a.part(id), n_tokens, id, first));
        HETERO_TRY(const auto b, kv::decode_part(candidate_, layer.b.part(id), n_tokens, id, first));
        const bool rotated = id == (kind == kv::LayerKind::mla ? kv::PartId::v : kv::PartId::k);
        const std::uint32_t dim = reference_.identity.head_dim(id);
        const LayerRope* rope = rotated && layer.layer < ropes_.size() ? &ropes_[layer.layer] : nullptr;
        if (rope != nullptr && (rope->frequencies.empty() || 2 * rope->frequencies.size() > dim)) rope = nullptr;
        const Case part{reference_, candidate_, layer, id, n_tokens, first, reference_.stored_heads(), dim, a, b, rope};
        const double codec = codec_error(part);
        encoded_values_ += a.size();
        if (difference.relative_l2 <= 3 * codec + path_noise) continue;
        ++looked_;
        looked_values_ += a.size();
        FaultPlace place{reference_.sequences[layer.sequence].id,
                         layer.layer,
                         kind,
                         id,
                         difference.relative_l2,
                         difference.relative_l2};
        auto found = find_fault(part, codec);
        if (!found) {
            diagnosis_.unexplained.push_back(place);
            continue;
        }
        place.before = found->errors.before;
        place.after = found->errors.after;
        const auto known = std::find_if(diagnosis_.faults.begin(), diagnosis_.faults.end(),
                                        [&](const Fault& fault) { return fault.name == found->name; });
        if (known != diagnosis_.faults.end()) {
            known->places.push_back(place);
        } else {
            diagnosis_.faults.push_back({std::string(found->name), std::move(found->detail), {place}});
        }
    }
    return {};
}

}  // namespace hetero::verify
