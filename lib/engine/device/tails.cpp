#include "engine/device/tails.h"

#include <cstring>

namespace hetero::engine {

Result<std::unique_ptr<DeviceTails>> DeviceTails::create(const Device& device, const KvPool& pool,
                                                         std::uint32_t sequences) {
    std::unique_ptr<DeviceTails> made(new DeviceTails(device, pool));
    made->tail_bytes_ = pool.tail_size() * sizeof(std::uint16_t);
    made->free_ = std::make_shared<std::vector<std::size_t>>();
    if (made->none()) return made;
    HETERO_TRY(made->memory_, take_device(*device.ops, device.index, sequences * made->tail_bytes_));
    HETERO_TRY(made->staged_, take_pinned(*device.ops, device.index, sequences * made->tail_bytes_));
    for (std::size_t i = sequences; i-- > 0;) made->free_->push_back(i);
    return made;
}

Result<std::uint16_t*> DeviceTails::bring(kernels::DeviceStream stream, KvCache& cache, std::uint64_t end) {
    std::shared_ptr<void>& held = cache.on_device();
    if (held == nullptr) {
        if (free_->empty())
            return fail(Errc::resource, "{}: more sequences than the session was made for have K by channel",
                        device_name(device_));
        held = std::shared_ptr<Tail>(new Tail{free_->back(), 0}, [free = free_](Tail* tail) {
            free->push_back(tail->index);
            delete tail;
        });
        free_->pop_back();
        const Tail& tail = *static_cast<Tail*>(held.get());
        std::memcpy(of(staged_, tail), cache.tail(), tail_bytes_);
        HETERO_CHECK(check(device_.ops->copy(stream, of(memory_, tail), of(staged_, tail), tail_bytes_)));
    }
    auto& tail = *static_cast<Tail*>(held.get());
    tail.end = end;
    return of(memory_, tail);
}

std::size_t DeviceTails::layer_bytes(std::size_t layer) const {
    const PartFormat* format = pool_.format(layer, kv::PartId::k);
    return pool_.heads(layer) * format->group_tokens * format->head_dim * sizeof(std::uint16_t);
}

Status DeviceTails::fetch(kernels::DeviceStream stream, KvCache& cache, std::size_t layer) const {
    if (cache.on_device() == nullptr) return {};
    const auto& tail = *static_cast<const Tail*>(cache.on_device().get());
    return check(device_.ops->copy(stream, of(staged_, tail, layer), of(memory_, tail, layer), layer_bytes(layer)));
}

void DeviceTails::fetched(KvCache& cache, std::size_t layer) const {
    if (cache.on_device() == nullptr) return;
    const auto& tail = *static_cast<const Tail*>(cache.on_device().get());
    std::memcpy(cache.tail() + pool_.tail_offset(layer), of(staged_, tail, layer), layer_bytes(layer));
    cache.stored_elsewhere(layer, tail.end);
}

}  // namespace hetero::engine
