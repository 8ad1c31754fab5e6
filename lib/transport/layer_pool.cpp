#include "transport/layer_pool.h"

#include <algorithm>
#include <new>

#include "transport/chunk_plan.h"

namespace hetero::transport {

void LayerPool::give(kv::Layer layer) noexcept {
    if (layer.k.values.empty()) return;
    layer.verified.reset();
    const std::lock_guard lock(mutex_);
    if (layers_.size() >= most_) return;
    try {
        layers_.push_back(std::make_shared<kv::Layer>(std::move(layer)));
    } catch (const std::bad_alloc&) {
        // Then the memory is made anew.
    }
}

Result<std::shared_ptr<kv::Layer>> LayerPool::take(const kv::Header& header, std::uint64_t layer_index) {
    const std::uint32_t n_layers = header.identity.n_layers;
    {
        const std::lock_guard lock(mutex_);
        const auto found = std::find_if(layers_.begin(), layers_.end(), [&](const auto& spare) {
            return kv::check_layer(header, layer_index / n_layers, layer_index % n_layers, *spare).has_value();
        });
        if (found != layers_.end()) {
            auto out = std::move(*found);
            layers_.erase(found);
            return out;
        }
    }
    return allocate_layer(header, layer_index);
}

}  // namespace hetero::transport
