// Stands in for libcuda.so.1 where there is no driver: one device, whose memory is the host's.
#include <cstdlib>
#include <cstring>

#include "hw/probes/cuda_driver.h"

using namespace hetero::hw::cuda;

extern "C" {

Init cuInit;
int cuInit(unsigned) { return std::getenv("CUDA_SAYS") != nullptr ? std::atoi(std::getenv("CUDA_SAYS")) : 0; }
GetErrorString cuGetErrorString;
int cuGetErrorString(int, const char** text) { return *text = "no CUDA-capable device is detected", 0; }
DriverGetVersion cuDriverGetVersion;
int cuDriverGetVersion(int* version) { return *version = 13020, 0; }
DeviceGetCount cuDeviceGetCount;
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
DeviceGet cuDeviceGet;
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
DeviceGetName cuDeviceGetName;
int cuDeviceGetName(char* name, int size, int) {
    std::strncpy(name, "NVIDIA H100 80GB HBM3", static_cast<std::size_t>(size));
    return 0;
}
DeviceTotalMem cuDeviceTotalMem_v2;
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = 85520809984, 0; }
DeviceGetAttribute cuDeviceGetAttribute;
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == capability_major ? 9 : attribute == capability_minor ? 0 : 132;
    return attribute == l2_cache_bytes ? 1 : 0;
}
DeviceGetPciBusId cuDeviceGetPCIBusId;
int cuDeviceGetPCIBusId(char* id, int size, int) {
    std::strncpy(id, "0000:3b:00.0", static_cast<std::size_t>(size));
    return 0;
}
DevicePrimaryCtxRetain cuDevicePrimaryCtxRetain;
int cuDevicePrimaryCtxRetain(DeviceContext* context, int) { return *context = context, 0; }
CtxSetCurrent cuCtxSetCurrent;
int cuCtxSetCurrent(DeviceContext) { return 0; }
CtxSynchronize cuCtxSynchronize;
int cuCtxSynchronize() { return 0; }
MemAlloc cuMemAlloc_v2;
int cuMemAlloc_v2(Pointer* memory, std::size_t bytes) {
    *memory = reinterpret_cast<Pointer>(std::malloc(bytes));
    return 0;
}
MemHostAlloc cuMemHostAlloc;
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) { return *memory = std::malloc(bytes), 0; }
MemcpyHtoD cuMemcpyHtoD_v2;
int cuMemcpyHtoD_v2(Pointer to, const void* from, std::size_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return 0;
}
MemcpyDtoH cuMemcpyDtoH_v2;
int cuMemcpyDtoH_v2(void* to, Pointer from, std::size_t bytes) {
    if (std::getenv("CUDA_COPIES_BADLY") != nullptr) bytes /= 2;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return 0;
}
MemcpyDtoD cuMemcpyDtoD_v2;
int cuMemcpyDtoD_v2(Pointer to, Pointer from, std::size_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return 0;
}
}
