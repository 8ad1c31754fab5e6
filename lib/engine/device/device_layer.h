// A layer of a state in the memory of a device, for a transport that sends from there.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/device/device.h"
#include "engine/device/handles.h"
#include "kv/stream.h"

namespace hetero::engine {

// Where its arrays are, used again when nobody holds the layer any more.
class DeviceLayerBuffer {
public:
    static constexpr std::size_t crcs_at_once = 4096;
    [[nodiscard]] static std::size_t bytes_needed(std::size_t layer_bytes) noexcept {
        return layer_bytes + crcs_at_once * sizeof(std::uint32_t);
    }
    // Errors: resource.
    static Result<std::shared_ptr<DeviceLayerBuffer>> create(const Device& device, std::size_t layer_bytes);

    [[nodiscard]] std::byte* memory() const noexcept { return memory_.get(); }

private:
    friend class DeviceLayer;
    explicit DeviceLayerBuffer(const kernels::DeviceOps& ops) : ops_(ops) {}
    const kernels::DeviceOps& ops_;
    DeviceBytes memory_, crcs_;
    Stream stream_;  // of whoever holds the layer
};

class DeviceLayer final : public kv::RemoteLayer {
public:
    // `shape`: heads and head dims (KvPool::header_of); its parts are still to be said.
    DeviceLayer(std::shared_ptr<DeviceLayerBuffer> buffer, kv::Header shape, std::uint64_t n_tokens)
        : buffer_(std::move(buffer)), shape_(std::move(shape)), n_tokens_(n_tokens) {}
    struct Place {
        std::size_t begin = 0, bytes = 0;  // in the buffer
    };
    struct Part {
        kv::Scheme scheme;
        std::array<Place, std::size(kv::part_arrays)> places;
    };
    [[nodiscard]] Part& part(kv::PartId id) noexcept { return parts_[static_cast<std::size_t>(id)]; }

    [[nodiscard]] std::span<const std::byte> bytes(kv::PartId part, std::size_t array) const override;
    Status checksums(std::span<const std::span<const std::byte>> pieces, std::span<std::uint32_t> crcs) const override;
    Status read(std::span<const std::byte> there, std::span<std::byte> here) const override;
    Result<kv::Layer> fetch() const override;

private:
    std::shared_ptr<DeviceLayerBuffer> buffer_;
    kv::Header shape_;
    std::uint64_t n_tokens_;
    std::array<Part, 2> parts_;  // K, V
};

}  // namespace hetero::engine
