// What kernels/cuda uses of CUDA's runtime and of the language, for the host's compiler. Names and numbers are CUDA's
// (https://docs.nvidia.com/cuda/cuda-runtime-api); what they do here: tests/emulation.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "../grid.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time
#define __align__(n) __attribute__((aligned(n)))

using dim3 = hetero::emulation::Dim3;

#define threadIdx (::hetero::emulation::place.thread)
#define blockIdx (::hetero::emulation::place.block)
#define blockDim (::hetero::emulation::place.block_dim)
#define gridDim (::hetero::emulation::place.grid_dim)

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Barriers and warp operations.
inline void __syncthreads() { hetero::emulation::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) { hetero::emulation::warp_operation(mask, nullptr, nullptr); }

namespace hetero::emulation {

template <class T>
struct Exchange {
    T value;
    unsigned from;
    T received;
};
template <class T>
T exchange(unsigned mask, T value, unsigned from) {
    Exchange<T> item{value, from, value};
    warp_operation(mask, &item, [](void* const* items, unsigned lanes) {
        for (unsigned lane = 0; lane < 32; ++lane) {
            if ((lanes >> lane & 1U) == 0) continue;
            auto& own = *static_cast<Exchange<T>*>(items[lane]);
            if (own.from < 32 && (lanes >> own.from & 1U) != 0)
                own.received = static_cast<const Exchange<T>*>(items[own.from])->value;
        }
    });
    return item.received;
}
struct Vote {
    bool value;
    unsigned votes;
};
inline unsigned vote(unsigned mask, bool value) {
    Vote item{value, 0};
    warp_operation(mask, &item, [](void* const* items, unsigned lanes) {
        unsigned votes = 0;
        for (unsigned lane = 0; lane < 32; ++lane)
            if ((lanes >> lane & 1U) != 0 && static_cast<const Vote*>(items[lane])->value) votes |= 1U << lane;
        for (unsigned lane = 0; lane < 32; ++lane)
            if ((lanes >> lane & 1U) != 0) static_cast<Vote*>(items[lane])->votes = votes;
    });
    return item.votes;
}

}  // namespace hetero::emulation

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const unsigned lane = hetero::emulation::lane_number(), size = static_cast<unsigned>(width);
    return hetero::emulation::exchange(mask, value, lane / size * size + static_cast<unsigned>(from) % size);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    const unsigned lane = hetero::emulation::lane_number(), size = static_cast<unsigned>(width);
    const unsigned from = lane ^ static_cast<unsigned>(with);
    return hetero::emulation::exchange(mask, value, from < lane / size * size + size ? from : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = hetero::emulation::lane_number(), size = static_cast<unsigned>(width);
    return hetero::emulation::exchange(mask, value, lane % size >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int value) { return hetero::emulation::vote(mask, value != 0); }
inline int __any_sync(unsigned mask, int value) { return hetero::emulation::vote(mask, value != 0) != 0; }
inline int __all_sync(unsigned mask, int value) { return hetero::emulation::vote(mask, value == 0) == 0; }

// Arithmetic.
inline float __fmul_rn(float a, float b) { return a * b; }  // compiled with -ffp-contract=off
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }

// Threads of a grid run one at a time.
template <class T, class V>
T atomicAdd(T* to, V value) {
    const T before = *to;
    *to = before + static_cast<T>(value);
    return before;
}
template <class T, class V>
T atomicMin(T* to, V value) {
    const T before = *to;
    if (static_cast<T>(value) < before) *to = static_cast<T>(value);
    return before;
}
template <class T, class V>
T atomicMax(T* to, V value) {
    const T before = *to;
    if (before < static_cast<T>(value)) *to = static_cast<T>(value);
    return before;
}
template <class T, class V>
T atomicOr(T* to, V value) {
    const T before = *to;
    *to = before | static_cast<T>(value);
    return before;
}
template <class T, class V>
T atomicXor(T* to, V value) {
    const T before = *to;
    *to = before ^ static_cast<T>(value);
    return before;
}

// The runtime.
enum cudaError_t : int {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined = 904
};

namespace hetero::emulation {

struct Stream;
struct Event;
struct Graph;
cudaError_t launch(dim3 grid, dim3 block, std::size_t shared_bytes, Stream* stream, const char* name, const void* entry,
                   std::function<void()> kernel);

}  // namespace hetero::emulation

using cudaStream_t = hetero::emulation::Stream*;
using cudaEvent_t = hetero::emulation::Event*;
using cudaGraph_t = hetero::emulation::Graph*;
using cudaGraphExec_t = hetero::emulation::Graph*;

struct cudaDeviceProp {
    char name[256];
    std::size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize, memoryBusWidth, integrated, pageableMemoryAccess;
};

enum cudaMemcpyKind : int { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureMode : int { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaDeviceAttr : int { cudaDevAttrMemoryClockRate = 36 };
enum cudaFuncAttribute : int { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2,
                   cudaHostAllocPortable = 1, cudaHostRegisterPortable = 1;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
