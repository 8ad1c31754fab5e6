// What is used of the CUDA driver interface, which is loaded at run time: no header or library of CUDA is needed to
// build. https://docs.nvidia.com/cuda/cuda-driver-api; where the CUDA Toolkit is there, a test holds this against its
// cuda.h.
#pragma once
#include <cstddef>

namespace hetero::hw::cuda {

// CUdevice_attribute
enum Attribute : int { multiprocessor_count = 16, l2_cache_bytes = 38, capability_major = 75, capability_minor = 76 };

inline constexpr int stub_library = 34;  // CUresult CUDA_ERROR_STUB_LIBRARY

// Result and device are ints in the driver's interface.
using Init = int(unsigned flags);
using GetErrorString = int(int result, const char** text);
using DriverGetVersion = int(int* version);
using DeviceGetCount = int(int* count);
using DeviceGet = int(int* device, int ordinal);
using DeviceGetName = int(char* name, int size, int device);
using DeviceTotalMem = int(std::size_t* bytes, int device);
using DeviceGetAttribute = int(int* value, int attribute, int device);
using DeviceGetPciBusId = int(char* id, int size, int device);

using Pointer = unsigned long long;  // CUdeviceptr
using DeviceContext = void*;         // CUcontext
using DevicePrimaryCtxRetain = int(DeviceContext* context, int device);
using CtxSetCurrent = int(DeviceContext context);
using CtxSynchronize = int();
using MemAlloc = int(Pointer* memory, std::size_t bytes);
using MemHostAlloc = int(void** memory, std::size_t bytes, unsigned flags);
using MemcpyHtoD = int(Pointer to, const void* from, std::size_t bytes);
using MemcpyDtoH = int(void* to, Pointer from, std::size_t bytes);
using MemcpyDtoD = int(Pointer to, Pointer from, std::size_t bytes);

}  // namespace hetero::hw::cuda
