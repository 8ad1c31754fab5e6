#include "kv/recycled_layers.h"

#include <new>
#include <utility>

namespace hetero::kv {

std::shared_ptr<Layer> RecycledLayers::take() {
    std::unique_ptr<Layer> layer;
    {
        const std::lock_guard lock(idle_->mutex);
        if (!idle_->layers.empty()) {
            layer = std::move(idle_->layers.back());
            idle_->layers.pop_back();
        }
    }
    if (!layer) layer = std::make_unique<Layer>();
    layer->verified.reset();
    return {layer.release(), [idle = idle_](Layer* used) {
                std::unique_ptr<Layer> back(used);
                const std::lock_guard lock(idle->mutex);
                try {
                    idle->layers.push_back(std::move(back));
                } catch (const std::bad_alloc&) {  // then it is freed
                }
            }};
}

}  // namespace hetero::kv
