#include "engine/device/tails.h"

#include <algorithm>

namespace hetero::engine {

Result<std::unique_ptr<DeviceTails>> DeviceTails::create(const Device& device, const KvPool& pool,
                                                         std::uint32_t sequences) {
    std::unique_ptr<DeviceTails> made(new DeviceTails(device, pool));
    made->tail_bytes_ = pool.tail_size() * sizeof(std::uint16_t);
    made->free_ = std::make_shared<std::vector<std::uint16_t*>>();
    if (made->none()) return made;
    HETERO_TRY(made->memory_, take_device(*device.ops, device.index, sequences * made->tail_bytes_));
    for (std::uint32_t i = sequences; i-- > 0;)
        made->free_->push_back(reinterpret_cast<std::uint16_t*>(made->memory_.get() + i * made->tail_bytes_));
    return made;
}

Result<std::uint16_t*> DeviceTails::bring(kernels::DeviceStream stream, KvCache& cache, std::uint64_t end) {
    std::shared_ptr<void>& held = cache.on_device();
    if (held == nullptr) {
        if (free_->empty())
            return fail(Errc::resource, "{}: more sequences than the session was made for have K by channel",
                        device_name(device_));
        held = std::shared_ptr<Tail>(new Tail{free_->back(), 0}, [free = free_](Tail* tail) {
            free->push_back(tail->memory);
            delete tail;
        });
        free_->pop_back();
        HETERO_CHECK(
            check(device_.ops->copy(stream, static_cast<Tail*>(held.get())->memory, cache.tail(), tail_bytes_)));
    }
    auto& tail = *static_cast<Tail*>(held.get());
    tail.end = end;
    return tail.memory;
}

Status DeviceTails::fetch(kernels::DeviceStream stream, KvCache& cache, std::size_t layer) const {
    if (cache.on_device() == nullptr) return {};
    const auto& tail = *static_cast<const Tail*>(cache.on_device().get());
    const PartFormat* format = pool_.format(layer, kv::PartId::k);
    const std::size_t size = pool_.heads(layer) * format->group_tokens * format->head_dim;
    const std::size_t offset = pool_.tail_offset(layer);
    cache.stored_elsewhere(layer, tail.end);
    return check(device_.ops->copy(stream, cache.tail() + offset, tail.memory + offset, size * sizeof(std::uint16_t)));
}

}  // namespace hetero::engine
