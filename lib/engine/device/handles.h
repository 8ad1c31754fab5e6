// What a device lends, given back with its holder; and its faults as errors.
#pragma once
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "engine/aligned.h"
#include "kernels/api/device.h"

namespace hetero::engine {

// Arrays that share an allocation begin at multiples of it.
inline constexpr std::size_t device_alignment = 256;
[[nodiscard]] constexpr std::size_t device_aligned(std::size_t bytes) noexcept {
    return round_up(bytes, device_alignment);
}

// resource: the device lacks memory, has no kernel for it, or failed.
inline Status check(const kernels::DeviceFault& fault) {
    if (!fault) return {};
    return fail(Errc::resource, "{}", fault.message());
}

struct FreeDevice {
    const kernels::DeviceOps* ops = nullptr;
    int device = 0;
    void operator()(std::byte* memory) const noexcept { (void)ops->free(device, memory); }
};
using DeviceBytes = std::unique_ptr<std::byte, FreeDevice>;

struct FreePinned {
    const kernels::DeviceOps* ops = nullptr;
    int device = 0;
    void operator()(std::byte* memory) const noexcept { (void)ops->free_host(device, memory); }
};
using PinnedBytes = std::unique_ptr<std::byte, FreePinned>;

inline Result<DeviceBytes> take_device(const kernels::DeviceOps& ops, int device, std::size_t bytes) {
    void* memory = nullptr;
    HETERO_CHECK(check(ops.allocate(device, bytes, &memory)));
    return DeviceBytes(static_cast<std::byte*>(memory), FreeDevice{&ops, device});
}

inline Result<PinnedBytes> take_pinned(const kernels::DeviceOps& ops, int device, std::size_t bytes) {
    void* memory = nullptr;
    HETERO_CHECK(check(ops.allocate_host(device, bytes, &memory)));
    return PinnedBytes(static_cast<std::byte*>(memory), FreePinned{&ops, device});
}

// A stream, event or graph: a pointer that one function of the table destroys.
template <auto Destroy>
struct DestroyHandle {
    const kernels::DeviceOps* ops = nullptr;
    template <class State>
    void operator()(State* handle) const noexcept {
        (void)(ops->*Destroy)(handle);
    }
};
template <class Handle, auto Destroy>
using DeviceHandle = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyHandle<Destroy>>;
using Stream = DeviceHandle<kernels::DeviceStream, &kernels::DeviceOps::destroy_stream>;
using Event = DeviceHandle<kernels::DeviceEvent, &kernels::DeviceOps::destroy_event>;
using Graph = DeviceHandle<kernels::DeviceGraph, &kernels::DeviceOps::destroy_graph>;

inline Result<Stream> make_stream(const kernels::DeviceOps& ops, int device) {
    kernels::DeviceStream stream = nullptr;
    HETERO_CHECK(check(ops.create_stream(device, &stream)));
    return Stream(stream, {&ops});
}

// For order alone.
inline Result<Event> make_event(const kernels::DeviceOps& ops, int device) {
    kernels::DeviceEvent event = nullptr;
    HETERO_CHECK(check(ops.create_event(device, kernels::DeviceEventUse::order, &event)));
    return Event(event, {&ops});
}

}  // namespace hetero::engine
