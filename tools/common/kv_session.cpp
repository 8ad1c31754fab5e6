#include "common/kv_session.h"

#include <algorithm>

#include "base/redact.h"

namespace hetero::tool {

std::size_t common_prefix(std::span<const engine::TokenId> a, std::span<const engine::TokenId> b) {
    const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::size_t>(ends.first - a.begin());
}

Status check_belongs(std::span<const engine::TokenId> held, std::span<const engine::TokenId> wanted) {
    const std::size_t same = common_prefix(held, wanted);
    if (same < std::min(held.size(), wanted.size())) {
        return fail(Errc::bad_input,
                    "the state holds another prompt: at position {} it has token {}, the prompt has {}", same,
                    private_token(held[same]), private_token(wanted[same]));
    }
    if (wanted.empty()) return fail(Errc::bad_input, "prompt is empty");
    return {};
}

Status check_resumable(const kv::Header& header, std::size_t sequence, std::size_t n_wanted) {
    const kv::Sequence& held = header.sequences[sequence];
    if (n_wanted >= held.tokens.size()) return {};
    for (std::uint32_t layer = 0; layer < header.identity.n_layers; ++layer) {
        // The last token of those wanted is computed again.
        if (header.layer_shape(layer).can_go_back(header.first_token(sequence, layer), n_wanted - 1)) continue;
        return fail(Errc::bad_input,
                    "sequence {}: it cannot be cut to {} of its {} tokens: layer {}, {}, stores no token before {}; "
                    "prefill the shorter prompt",
                    held.id, n_wanted, held.tokens.size(), layer, kv::to_text(header.layer_shape(layer)),
                    header.first_token(sequence, layer));
    }
    return {};
}

Result<std::vector<float>> extend_to(engine::Session& session, std::span<const engine::TokenId> held,
                                     const std::vector<float>& held_logits, std::span<const engine::TokenId> wanted,
                                     const std::function<void(std::uint64_t done)>& on_progress) {
    HETERO_CHECK(check_belongs(held, wanted));
    if (held.size() == wanted.size() && !held_logits.empty()) return held_logits;
    // Logits belong to one position: where those of the last one are not known, its token is computed again.
    const std::size_t keep = std::min(held.size(), wanted.size() - 1);
    HETERO_CHECK(session.truncate(keep));
    std::vector<float> logits;
    const auto take = [&](std::uint64_t, std::span<const float> values) -> Status {
        logits.assign(values.begin(), values.end());
        return {};
    };
    HETERO_CHECK(session.prefill(wanted.subspan(keep), engine::Logits::last, take, on_progress));
    return logits;
}

kv::Header make_header(const LoadedModel& model, const engine::KvStorage& storage) {
    kv::Header header;
    header.identity = model.identity;
    header.layer_shapes = model.layer_shapes;
    for (const kv::PartId part : {kv::PartId::k, kv::PartId::v}) {
        header.schemes(part).assign(model.identity.n_layers, engine::scheme_of(storage, part));
    }
    return header;
}

}  // namespace hetero::tool
