// The cache of a session as all layers of one sequence of a KV state.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/session.h"
#include "kv/state.h"

namespace hetero::engine {

// As Session::export_layer() and import_layer() have it, for each layer in order.
[[nodiscard]] Result<std::vector<kv::Layer>> export_layers(const Session& session);
Status import_layers(Session& session, const kv::Header& header, std::span<const kv::Layer> layers,
                     std::uint64_t n_tokens);

}  // namespace hetero::engine
