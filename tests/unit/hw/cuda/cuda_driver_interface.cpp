// What hw-probe declares of the CUDA driver interface, held against the toolkit's own header.
#include <cuda.h>
#include <doctest/doctest.h>

#include "hw/probes/cuda_driver.h"
#include "unit/hw/cuda/interface.h"

namespace {

template <class Header, class Ours>
constexpr bool same_interface = std::is_same_v<typename hetero::test::PassedFunction<Header>::type, Ours>;

}  // namespace

namespace cuda = hetero::hw::cuda;

static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUdevice_attribute) == sizeof(int));
static_assert(std::is_same_v<CUdevice, int>);
static_assert(same_interface<decltype(cuInit), cuda::Init>);
static_assert(same_interface<decltype(cuGetErrorString), cuda::GetErrorString>);
static_assert(same_interface<decltype(cuDriverGetVersion), cuda::DriverGetVersion>);
static_assert(same_interface<decltype(cuDeviceGetCount), cuda::DeviceGetCount>);
static_assert(same_interface<decltype(cuDeviceGet), cuda::DeviceGet>);
static_assert(same_interface<decltype(cuDeviceGetName), cuda::DeviceGetName>);
static_assert(same_interface<decltype(cuDeviceTotalMem), cuda::DeviceTotalMem>);
static_assert(same_interface<decltype(cuDeviceGetAttribute), cuda::DeviceGetAttribute>);
static_assert(same_interface<decltype(cuDeviceGetPCIBusId), cuda::DeviceGetPciBusId>);
static_assert(std::is_same_v<CUdeviceptr, cuda::Pointer> && sizeof(CUcontext) == sizeof(cuda::DeviceContext));
static_assert(same_interface<decltype(cuCtxSynchronize), cuda::CtxSynchronize>);
static_assert(same_interface<decltype(cuMemAlloc), cuda::MemAlloc>);
static_assert(same_interface<decltype(cuMemHostAlloc), cuda::MemHostAlloc>);
static_assert(same_interface<decltype(cuMemcpyHtoD), cuda::MemcpyHtoD>);
static_assert(same_interface<decltype(cuMemcpyDtoH), cuda::MemcpyDtoH>);
static_assert(same_interface<decltype(cuMemcpyDtoD), cuda::MemcpyDtoD>);

TEST_CASE("constants of the CUDA driver interface are those of cuda.h") {
    CHECK(cuda::multiprocessor_count == static_cast<int>(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    CHECK(cuda::l2_cache_bytes == static_cast<int>(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
    CHECK(cuda::capability_major == static_cast<int>(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    CHECK(cuda::capability_minor == static_cast<int>(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    CHECK(cuda::stub_library == static_cast<int>(CUDA_ERROR_STUB_LIBRARY));
}
