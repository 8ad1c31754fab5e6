// The pages of a KvPool on a device: page i there holds what page i of the pool's own memory holds, of the parts whose
// tier is the device. The other parts stay in the pool's memory, and are brought, all pages of a layer at once, to one
// of two slots on the device before the layer needs them; what a step stores in a slot is copied back.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/device/device.h"
#include "engine/device/handles.h"
#include "engine/device/tiers.h"
#include "engine/kv_pool.h"

namespace hetero::engine {

class DevicePages {
public:
    struct Bytes {
        std::uint64_t pages = 0, slots = 0;
    };
    [[nodiscard]] static Bytes bytes_needed(const KvPool& pool, const KvTiers& tiers);

    // Takes the memory. `pool` must outlive the pages.
    static Result<std::unique_ptr<DevicePages>> create(const Device& device, KvPool& pool, const KvTiers& tiers);
    ~DevicePages();
    DevicePages(const DevicePages&) = delete;
    DevicePages& operator=(const DevicePages&) = delete;

    [[nodiscard]] bool all_on_device() const noexcept { return slot_bytes_ == 0; }
    [[nodiscard]] bool on_device(std::size_t layer) const noexcept {  // both parts
        return !places_[2 * layer].in_slot && !places_[2 * layer + 1].in_slot;
    }
    // What an op needs to know of a part: its form alone, and where it is, too; the memory of a slot is that of the
    // layer only after bring().
    [[nodiscard]] static kernels::DeviceKv shape_of(const KvPool& pool, std::size_t layer, kv::PartId part);
    [[nodiscard]] kernels::DeviceKv part(std::size_t layer, kv::PartId part) const;

    using PageList = std::span<const KvPool::Page>;
    // Page-locks the memory that the pool has for these pages, and for those around them, where the system allows it.
    // Copies of pageable memory are as right, but the driver stages them while the caller waits.
    void lock(PageList pages);
    // Of the parts whose tier is the device, between there and the pool's memory.
    Status to_host(kernels::DeviceStream stream, std::size_t layer, PageList pages) const;
    Status to_device(kernels::DeviceStream stream, std::size_t layer, PageList pages) const;
    // Of the other parts: to the layer's slot, and back from it.
    Status bring(kernels::DeviceStream stream, std::size_t layer, PageList pages) const;
    Status take_back(kernels::DeviceStream stream, std::size_t layer, PageList pages) const;
    // All parts of a page to another.
    Status copy(kernels::DeviceStream stream, KvPool::Page from, KvPool::Page to) const;

private:
    struct Place {
        std::size_t host_offset = 0, bytes = 0;  // of the part's tiles in a page of the pool
        bool in_slot = false;                    // else in the device's pages
        std::size_t offset = 0;                  // in a page there
    };
    DevicePages(const Device& device, KvPool& pool) : device_(device), pool_(pool) {}
    static std::vector<Place> places_of(const KvPool& pool, const KvTiers& tiers, std::size_t& page_bytes,
                                        std::size_t& slot_bytes);
    [[nodiscard]] std::byte* memory_of(std::size_t layer, const Place& place) const noexcept {
        return place.in_slot ? slots_[layer % 2].get() : memory_.get();
    }
    [[nodiscard]] std::size_t stride_of(const Place& place) const noexcept {
        return place.in_slot ? slot_bytes_ : page_bytes_;
    }
    enum class Way { to_host, to_device };
    Status move(kernels::DeviceStream stream, std::size_t layer, PageList pages, bool in_slot, Way way) const;

    Device device_;
    KvPool& pool_;
    std::size_t lock_pages_ = 0;                   // that are locked together; 0: none are
    std::vector<bool> tried_;                      // [page / lock_pages_]
    std::vector<std::byte*> locked_;               // where what is locked begins
    std::size_t page_bytes_ = 0, slot_bytes_ = 0;  // of a page on the device, and in a slot
    DeviceBytes memory_;
    std::array<DeviceBytes, 2> slots_;  // layer % 2
    std::vector<Place> places_;         // [layer][K, V]
};

}  // namespace hetero::engine
