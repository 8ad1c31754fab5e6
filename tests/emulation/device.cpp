// The runtime's calls: devices, memory, launches.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "memory.h"
#include "stream.h"

namespace hetero::emulation {

std::recursive_mutex mutex;
thread_local int device_in_use = 0;
cudaError_t broken = cudaSuccess;

namespace {

Settings current;
std::size_t peak = 0, launches = 0, pageable_copies = 0, unchosen_calls = 0, attribute_calls = 0;
thread_local bool has_chosen = false;
std::map<const void*, std::size_t> permitted;  // dynamic shared memory of a kernel
int failing = -1;
std::map<std::uintptr_t, std::size_t> locked;  // of the host's memory: address, bytes

bool page_lock(void* memory, std::size_t bytes) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    const auto next = locked.lower_bound(at);
    if (next != locked.end() && next->first - at < bytes) return false;
    if (next != locked.begin() && at - std::prev(next)->first < std::prev(next)->second) return false;
    locked[at] = bytes;
    return true;
}
bool page_unlock(void* memory) { return locked.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1; }

// Whether a copy may be from or to there: within an allocation, and what is page-locked in part is refused.
bool can_copy(const void* memory, std::size_t bytes) {
    if (const Where at = where(memory, bytes); at != Where::host) return at == Where::device;
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    const auto next = locked.upper_bound(at);
    if (next != locked.begin()) {
        const auto& [begin, size] = *std::prev(next);
        if (at - begin < size) return bytes <= size - (at - begin);
    }
    ++pageable_copies;
    return next == locked.end() || next->first - at >= bytes;
}

}  // namespace

Call::Call() : lock_(mutex) { unchosen_calls += !has_chosen; }

void configure(const Settings& wanted) {
    const std::lock_guard lock(mutex);
    current = wanted;
    apply_strict_host();
}
const Settings& settings() { return current; }

Usage usage() {
    const std::lock_guard lock(mutex);
    Usage all;
    for (int device = 0; device < current.devices; ++device) all.bytes += used_bytes(device);
    all.peak_bytes = peak;
    all.launches = launches;
    all.graph_launches = graph_launches;
    for (const auto& [at, bytes] : locked) all.locked_bytes += bytes;
    all.pageable_copies = pageable_copies;
    all.unchosen_calls = unchosen_calls;
    all.attribute_calls = attribute_calls;
    all.allocations = device_allocations();
    return all;
}

void fail_allocation(int after) { failing = after; }

cudaError_t launch(dim3 grid, dim3 block, std::size_t shared_bytes, Stream* stream, const char* name, const void* entry,
                   std::function<void()> kernel) {
    const Call call;
    if (broken != cudaSuccess) return broken;
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64 || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7FFFFFFF ||
        grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaErrorInvalidConfiguration;
    if (const auto found = permitted.find(entry);
        shared_bytes > std::max(std::size_t{48} << 10, found == permitted.end() ? 0 : found->second))
        return cudaErrorInvalidValue;
    if (current.fail_kernel == name && current.fail_after-- == 0) {
        current.fail_kernel.clear();
        return broken = cudaErrorLaunchFailure;
    }
    return give(*stream, {[=, kernel = std::move(kernel)] {
                              ++launches;
                              const bool done =
                                  run_grid(grid, block, shared_bytes, current.order, current.seed + launches, kernel);
                              if (!done) std::fprintf(stderr, "emulation: in kernel %s\n", name);
                              return done ? cudaSuccess : cudaErrorLaunchFailure;
                          },
                          nullptr, 0});
}

}  // namespace hetero::emulation

using namespace hetero::emulation;

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidConfiguration:
            return "invalid configuration argument";
        case cudaErrorNoDevice:
            return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorInvalidResourceHandle:
            return "invalid resource handle";
        case cudaErrorNotReady:
            return "device not ready";
        case cudaErrorHostMemoryAlreadyRegistered:
            return "part or all of the requested memory range is already mapped";
        case cudaErrorLaunchFailure:
            return "unspecified launch failure";
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureUnjoined:
            return "capturing stream has unjoined work";
    }
    return "unrecognized error code";
}
cudaError_t cudaGetLastError() { return broken; }

cudaError_t cudaGetDeviceCount(int* count) {
    *count = current.devices;
    return current.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= current.devices) return cudaErrorInvalidDevice;
    device_in_use = device;
    has_chosen = true;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device < 0 || device >= current.devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "emulated on the CPU");
    properties->totalGlobalMem = current.total_bytes;
    properties->sharedMemPerBlockOptin = std::size_t{99} << 10;
    properties->major = current.capability / 10;
    properties->minor = current.capability % 10;
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = 4 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    *value = 0;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    const Call call;
    *total = current.total_bytes;
    *free = current.total_bytes - used_bytes(device_in_use);
    return broken;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
    const Call call;
    ++attribute_calls;
    if (value > 99 << 10) return cudaErrorInvalidValue;  // the least of compute capability 8 and 9
    permitted[kernel] = static_cast<std::size_t>(value);
    return broken;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    const Call call;
    if (broken != cudaSuccess) return broken;
    if (capturing_anywhere) return cudaErrorStreamCaptureUnsupported;
    if (failing >= 0 && failing-- == 0) return cudaErrorMemoryAllocation;
    if (!allocate_device(device_in_use, bytes, memory)) return cudaErrorMemoryAllocation;
    std::size_t used = 0;
    for (int device = 0; device < current.devices; ++device) used += used_bytes(device);
    peak = std::max(peak, used);
    return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
    const Call call;
    if (memory == nullptr) return cudaSuccess;
    if (capturing_anywhere) return cudaErrorStreamCaptureUnsupported;
    (void)drain_all();
    if (!canaries_whole()) {
        std::fprintf(stderr, "emulation: device memory was written beyond an allocation\n");
        std::abort();
    }
    return free_device(memory) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
    const Call call;
    if (failing >= 0 && failing-- == 0) return cudaErrorMemoryAllocation;
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    return page_lock(*memory, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaFreeHost(void* memory) {
    const Call call;
    if (memory == nullptr) return cudaSuccess;
    (void)drain_all();
    if (!page_unlock(memory)) return cudaErrorInvalidValue;
    std::free(memory);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
    const Call call;
    if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
    return page_lock(memory, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaHostUnregister(void* memory) {
    const Call call;
    (void)drain_all();
    return page_unlock(memory) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    const Call call;
    if (bytes == 0) return broken;
    if (!can_copy(to, bytes) || !can_copy(from, bytes)) return cudaErrorInvalidValue;
    return give(*stream, {[=] {
                              std::memmove(to, from, bytes);
                              return cudaSuccess;
                          },
                          nullptr, 0});
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind, cudaStream_t stream) {
    const Call call;
    if (width == 0 || rows == 0) return broken;
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
    if (!can_copy(to, (rows - 1) * to_pitch + width) || !can_copy(from, (rows - 1) * from_pitch + width))
        return cudaErrorInvalidValue;
    return give(*stream, {[=] {
                              for (std::size_t row = 0; row < rows; ++row)
                                  std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                                               static_cast<const std::byte*>(from) + row * from_pitch, width);
                              return cudaSuccess;
                          },
                          nullptr, 0});
}
cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t bytes, cudaStream_t stream) {
    const Call call;
    if (bytes == 0) return broken;
    if (where(memory, bytes) == Where::partly) return cudaErrorInvalidValue;
    return give(*stream, {[=] {
                              std::memset(memory, byte, bytes);
                              return cudaSuccess;
                          },
                          nullptr, 0});
}
