// Layers whose memory is used again: new memory costs more than what is done with it.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "kv/state.h"

namespace hetero::kv {

class RecycledLayers {
public:
    // A layer with whatever it held before. It comes back when its last holder, in whatever thread, lets it go; also
    // after this has ended.
    std::shared_ptr<Layer> take();

private:
    struct Idle {
        std::mutex mutex;
        std::vector<std::unique_ptr<Layer>> layers;
    };
    std::shared_ptr<Idle> idle_ = std::make_shared<Idle>();
};

}  // namespace hetero::kv
