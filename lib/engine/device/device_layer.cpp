#include "engine/device/device_layer.h"

#include <algorithm>

namespace hetero::engine {

using kv::PartId;

Result<std::shared_ptr<DeviceLayerBuffer>> DeviceLayerBuffer::create(const Device& device, std::size_t layer_bytes) {
    const kernels::DeviceOps& ops = *device.ops;
    std::shared_ptr<DeviceLayerBuffer> made(new DeviceLayerBuffer(ops));
    HETERO_TRY(made->memory_, take_device(ops, device.index, std::max<std::size_t>(layer_bytes, 1)));
    HETERO_TRY(made->crcs_, take_device(ops, device.index, crcs_at_once * sizeof(std::uint32_t)));
    HETERO_TRY(made->stream_, make_stream(ops, device.index));
    return made;
}

std::span<const std::byte> DeviceLayer::bytes(PartId part, std::size_t array) const {
    const Place& place = parts_[static_cast<std::size_t>(part)].places[array];
    return {buffer_->memory() + place.begin, place.bytes};
}

Status DeviceLayer::checksums(std::span<const std::span<const std::byte>> pieces, std::span<std::uint32_t> crcs) const {
    const kernels::DeviceOps& ops = buffer_->ops_;
    kernels::DeviceStream stream = buffer_->stream_.get();
    auto* there = reinterpret_cast<std::uint32_t*>(buffer_->crcs_.get());
    for (std::size_t begin = 0; begin < pieces.size(); begin += DeviceLayerBuffer::crcs_at_once) {
        const std::size_t n = std::min(DeviceLayerBuffer::crcs_at_once, pieces.size() - begin);
        for (std::size_t i = 0; i < n; ++i) {
            const std::span<const std::byte> piece = pieces[begin + i];
            HETERO_CHECK(check(ops.crc32c(stream, piece.data(), piece.size(), there + i)));
        }
        HETERO_CHECK(check(ops.copy(stream, crcs.data() + begin, there, n * sizeof(std::uint32_t))));
        HETERO_CHECK(check(ops.synchronize(stream)));
    }
    return {};
}

Status DeviceLayer::read(std::span<const std::byte> there, std::span<std::byte> here) const {
    const kernels::DeviceOps& ops = buffer_->ops_;
    HETERO_CHECK(check(ops.copy(buffer_->stream_.get(), here.data(), there.data(), here.size())));
    return check(ops.synchronize(buffer_->stream_.get()));
}

Result<kv::Layer> DeviceLayer::fetch() const {
    kv::Layer layer;
    for (const PartId id : {PartId::k, PartId::v}) {
        kv::Part& part = layer.part(id);
        HETERO_TRY(part, kv::allocate_part(shape_, parts_[static_cast<std::size_t>(id)].scheme, n_tokens_, id));
        for (std::size_t i = 0; i < std::size(kv::part_arrays); ++i)
            HETERO_CHECK(read(bytes(id, i), (part.*kv::part_arrays[i]).bytes));
    }
    return layer;
}

}  // namespace hetero::engine
