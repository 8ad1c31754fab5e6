// How the host code of this backend talks to the runtime: every launch and every call is checked, and what went wrong
// names the kernel or call, the device and the shapes.
//
// The same sources are compiled twice: by nvcc, and by the host's compiler with HETERO_EMULATED and the headers of
// tests/emulation/include, which run a grid on the CPU. So kernels are launched by launch(), never by <<<>>>, dynamic
// shared memory is HETERO_DYNAMIC_SHARED, and everything lies in the namespace HETERO_DEVICE_BACKEND, of which a test
// program can hold both.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/api/device.h"

#ifdef HETERO_EMULATED
#define HETERO_DEVICE_BACKEND emulated
// type* name, aligned to 128 bytes: the bytes that the launch asked for.
#define HETERO_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(::hetero::emulation::dynamic_shared())
#else
#define HETERO_DEVICE_BACKEND cuda
#define HETERO_DYNAMIC_SHARED(type, name)                           \
    extern __shared__ __align__(128) unsigned char hetero_shared[]; \
    type* name = reinterpret_cast<type*>(hetero_shared)
#endif

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

struct MatrixLibrary;  // gemm_library.h

// What a DeviceStream and a DeviceEvent point to.
struct Stream {
    int device = 0;
    cudaStream_t stream = nullptr;
    int multiprocessors = 1;
    int capability = 0;                // major * 10 + minor
    std::size_t shared_bytes = 0;      // the most that a block may have
    MatrixLibrary* library = nullptr;  // null: there is none, the kernels of gemm.cu are used
};
struct Event {
    int device = 0;
    cudaEvent_t event = nullptr;
};
[[nodiscard]] inline Stream& of(DeviceStream stream) { return *reinterpret_cast<Stream*>(stream); }
[[nodiscard]] inline Event& of(DeviceEvent event) { return *reinterpret_cast<Event*>(event); }

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xFFFFFFFFU;

struct Shape {
    const char* name;
    std::size_t value;
};
using Shapes = std::initializer_list<Shape>;

struct Grid {
    dim3 blocks, threads;
    std::size_t shared_bytes = 0;  // dynamic
};

[[nodiscard]] inline unsigned blocks_for(std::size_t n, std::size_t per_block) {
    return static_cast<unsigned>((n + per_block - 1) / per_block);
}

// runtime.cu
[[nodiscard]] DeviceFault fault_of(cudaError_t error, int device, const char* where, Shapes shapes = {},
                                   const Grid* grid = nullptr);
[[nodiscard]] DeviceFault unsupported(DeviceStream stream, const char* where, const char* reason, Shapes shapes = {});
// The thread's device from here on.
[[nodiscard]] DeviceFault use_device(int device);
// Before a launch with that much dynamic shared memory; asks the runtime only where a kernel has not had as much.
[[nodiscard]] cudaError_t permit_shared(int device, const void* kernel, std::size_t bytes);

// Starts kernel(args...) in the stream. A grid without blocks is nothing to do.
template <class... Params, class... Args>
DeviceFault launch(DeviceStream stream, const char* name, const Grid& grid, Shapes shapes, void (*kernel)(Params...),
                   Args&&... args) {
    static_assert(sizeof...(Params) == sizeof...(Args));
    if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return {};
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    std::tuple<Params...> values(static_cast<Params>(args)...);
    const void* entry = reinterpret_cast<const void*>(kernel);
    cudaError_t error = permit_shared(of(stream).device, entry, grid.shared_bytes);
    if (error == cudaSuccess) {
#ifdef HETERO_EMULATED
        error = ::hetero::emulation::launch(grid.blocks, grid.threads, grid.shared_bytes, of(stream).stream, name,
                                            entry, [kernel, values] { std::apply(kernel, values); });
#else
        error = std::apply(
            [&](auto&... value) {
                void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&value))..., nullptr};
                return cudaLaunchKernel(entry, grid.blocks, grid.threads, pointers, grid.shared_bytes,
                                        of(stream).stream);
            },
            values);
#endif
    }
    if (error != cudaSuccess) return fault_of(error, of(stream).device, name, shapes, &grid);
    return {};
}

// Each source fills in its ops.
void fill_runtime(DeviceOps& ops);
void fill_elementwise(DeviceOps& ops);
void fill_rope(DeviceOps& ops);
void fill_sampling(DeviceOps& ops);
void fill_products(DeviceOps& ops);
void fill_gemm(DeviceOps& ops);
void fill_experts(DeviceOps& ops);
void fill_qkv(DeviceOps& ops);
void fill_kv(DeviceOps& ops);
void fill_kv_states(DeviceOps& ops);
void fill_kv_orders(DeviceOps& ops);
void fill_checksum(DeviceOps& ops);
void fill_attention(DeviceOps& ops);

// All of them.
[[nodiscard]] const DeviceOps& table();

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
