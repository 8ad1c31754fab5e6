// Where K stays in groups of tokens: the tokens of a sequence's open group, which are f16 and not yet in a page, on the
// device. The host's cache has them, too; which of the two is newer is known here.
#pragma once
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "engine/device/device.h"
#include "engine/device/handles.h"
#include "engine/kv_cache.h"

namespace hetero::engine {

class DeviceTails {
public:
    // For as many caches as `sequences`; none where no layer has groups. Errors: resource.
    static Result<std::unique_ptr<DeviceTails>> create(const Device& device, const KvPool& pool,
                                                       std::uint32_t sequences);
    [[nodiscard]] bool none() const noexcept { return tail_bytes_ == 0; }

    // Before a step that stores tokens up to `end`: the cache's tail, as the device has it. Errors: resource, where
    // more caches than `sequences` have one.
    Result<std::uint16_t*> bring(kernels::DeviceStream stream, KvCache& cache, std::uint64_t end);
    // Afterwards: a layer's to the cache. The stream has yet to do its part of it; when it has, fetched() does the
    // rest.
    Status fetch(kernels::DeviceStream stream, KvCache& cache, std::size_t layer) const;
    void fetched(KvCache& cache, std::size_t layer) const;
    // The device's is not needed any more, or the cache has changed: the cache's is brought again before it is used.
    static void forget(KvCache& cache) { cache.on_device().reset(); }

private:
    DeviceTails(const Device& device, const KvPool& pool) : device_(device), pool_(pool) {}

    struct Tail {               // what KvCache::on_device() points to
        std::size_t index = 0;  // of its memory
        std::uint64_t end = 0;  // tokens that are stored
    };
    [[nodiscard]] std::uint16_t* of(const auto& memory, const Tail& tail, std::size_t layer = 0) const {
        return reinterpret_cast<std::uint16_t*>(memory.get() + tail.index * tail_bytes_) + pool_.tail_offset(layer);
    }
    [[nodiscard]] std::size_t layer_bytes(std::size_t layer) const;
    Device device_;
    const KvPool& pool_;
    std::size_t tail_bytes_ = 0;
    std::shared_ptr<std::vector<std::size_t>> free_;  // outlived by what caches hold
    DeviceBytes memory_;                              // [index][tail]
    PinnedBytes staged_;                              // likewise: caches' own are pageable
};

}  // namespace hetero::engine
