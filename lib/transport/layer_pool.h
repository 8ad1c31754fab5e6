// Layers whose memory can be used again: fresh pages take as long as a transfer.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "kv/state.h"

namespace hetero::transport {

// Thread-safe.
class LayerPool {
public:
    explicit LayerPool(std::size_t most = 4) : most_(most) {}
    // Keeps it, unless there are enough.
    void give(kv::Layer layer) noexcept;
    // One of the shape of that layer, counted over all sequences; what it holds is left as it is, or zero. Errors:
    // allocate_layer's.
    Result<std::shared_ptr<kv::Layer>> take(const kv::Header& header, std::uint64_t layer_index);

private:
    std::mutex mutex_;
    std::size_t most_;
    std::vector<std::shared_ptr<kv::Layer>> layers_;
};

}  // namespace hetero::transport
