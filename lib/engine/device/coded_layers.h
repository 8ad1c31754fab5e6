// Layers that leave a device in the codes of other schemes than they stay in, or as they are: K and V of a layer's
// tokens are taken out of the pages and coded there, piece by piece, beside the compute. They go to one of two
// page-locked buffers, or where somebody sends from the device's memory, to one of some buffers there.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "engine/device/device.h"
#include "engine/device/handles.h"
#include "engine/device/pages.h"
#include "kernels/api/device.h"
#include "kv/state.h"
#include "kv/stream.h"

namespace hetero::engine {

class DeviceLayerBuffer;  // device_layer.h

// How layers leave: of K and V, [layer].
struct LayerSchemes {
    std::vector<kv::Scheme> k, v;
    [[nodiscard]] const kv::Scheme& of(std::size_t layer, kv::PartId part) const {
        return (part == kv::PartId::k ? k : v)[layer];
    }
    [[nodiscard]] bool empty() const noexcept { return k.empty(); }
    friend bool operator==(const LayerSchemes&, const LayerSchemes&) = default;
};

// A layer of a state, and what was done to its values.
struct CodedLayer {
    kv::Layer layer;
    std::shared_ptr<const kv::RemoteLayer> remote;  // instead of it, where it is still on the device
    float max_abs_error = 0;                        // the largest |decoded - value|
    std::uint32_t parts_on_device = 0;              // that a device has coded, of K and V
};

class CodedLayers {
public:
    struct Setup {
        Device device;
        std::shared_ptr<const KvPool> pool;
        LayerSchemes schemes;
        std::vector<kv::LayerShape> shapes;  // [layer]; empty: all gqa
        std::uint64_t capacity = 0;          // tokens
        bool stay = false;                   // layers stay on the device, as far as there are buffers for them
    };
    // What a device can make of `wanted`: that, but as they are kept where it has no kernel for it. Empty where the
    // pages are codes, and with `coded` where it would code nothing.
    [[nodiscard]] static LayerSchemes possible(const KvPool& pool, const LayerSchemes& wanted, bool coded);
    [[nodiscard]] static std::uint64_t bytes_needed(const Setup& setup);  // of the device's memory

    // setup.schemes are possible. Errors: resource.
    static Result<std::unique_ptr<CodedLayers>> create(const Setup& setup);

    // Puts the work of a layer of `end` tokens into the stream, whose pages are those of the first of the sequences.
    // Between two that have the same layer % 2, finish() has to be called.
    Status begin(kernels::DeviceStream stream, const DevicePages& pages, const kernels::DeviceSequences& sequences,
                 std::size_t layer, std::uint64_t end);
    // When the stream has passed that: the layer is there to be taken. One that stays on the device has a buffer there
    // until nobody holds it any more. False: a value has no code.
    Result<bool> finish(std::size_t layer);
    // By another thread, too; nothing: it was not coded, or has been taken.
    [[nodiscard]] std::optional<CodedLayer> take(std::size_t layer);
    void forget();  // what was not taken

private:
    struct Found;
    explicit CodedLayers(const Setup& setup);
    Status code_part(kernels::DeviceStream stream, const DevicePages& pages, const kernels::DeviceSequences& sequences,
                     std::size_t layer, kv::PartId part);
    [[nodiscard]] std::size_t layer_bytes() const;  // of the largest, for all tokens
    [[nodiscard]] std::shared_ptr<DeviceLayerBuffer> free_buffer() const;

    Setup setup_;
    std::size_t values_bytes_ = 0, codes_bytes_ = 0, scale_bytes_ = 0;  // of a piece, on the device
    DeviceBytes device_;                                                // found, values, codes, scales, zeros
    struct Slot {
        PinnedBytes host;  // found, then the arrays of K and V
        std::uint64_t first = 0, end = 0;
        std::shared_ptr<DeviceLayerBuffer> buffer;  // where the arrays are instead
    };
    std::array<Slot, 2> slots_;  // layer % 2
    std::vector<std::shared_ptr<DeviceLayerBuffer>> buffers_;
    std::vector<std::optional<CodedLayer>> coded_;  // [layer]
};

}  // namespace hetero::engine
