#include "engine/layers.h"

namespace hetero::engine {

Result<std::vector<kv::Layer>> export_layers(const Session& session) {
    std::vector<kv::Layer> layers;
    for (std::uint32_t layer = 0; layer < session.model().config.n_layers; ++layer) {
        HETERO_TRY(layers.emplace_back(), session.export_layer(layer));
    }
    return layers;
}

Status import_layers(Session& session, const kv::Header& header, std::span<const kv::Layer> layers,
                     std::uint64_t n_tokens) {
    for (std::uint32_t layer = 0; layer < layers.size(); ++layer) {
        HETERO_CHECK(session.import_layer(header, layer, layers[layer], n_tokens));
    }
    return {};
}

}  // namespace hetero::engine
