// What hw-probe declares of NVML, held against its own header.
#include <doctest/doctest.h>
#include <nvml.h>

#include <cstddef>
#include <iterator>
#include <utility>

#include "hw/probes/nvml.h"
#include "unit/hw/cuda/interface.h"

namespace nvml = hetero::hw::nvml;

namespace {

// Handles and structures are ours.
template <class T>
struct Ours {
    using type = T;
};
template <>
struct Ours<nvmlDevice_t> {
    using type = nvml::Device;
};
template <>
struct Ours<nvmlDevice_t*> {
    using type = nvml::Device*;
};
template <>
struct Ours<nvmlMemory_t*> {
    using type = nvml::Memory*;
};
template <>
struct Ours<nvmlPciInfo_t*> {
    using type = nvml::PciInfo*;
};
template <class>
struct OurFunction;
template <class R, class... Args>
struct OurFunction<R(Args...)> {
    using type = typename hetero::test::PassedFunction<R(typename Ours<Args>::type...)>::type;
};
template <class Header, class Declared>
constexpr bool same_interface = std::is_same_v<typename OurFunction<Header>::type, Declared>;

static_assert(sizeof(nvmlReturn_t) == sizeof(int) && sizeof(nvmlEnableState_t) == sizeof(unsigned));
static_assert(same_interface<decltype(nvmlInit_v2), nvml::Init>);
static_assert(same_interface<decltype(nvmlErrorString), nvml::ErrorString>);
static_assert(same_interface<decltype(nvmlSystemGetDriverVersion), nvml::SystemText>);
static_assert(same_interface<decltype(nvmlSystemGetCudaDriverVersion_v2), nvml::SystemInteger>);
static_assert(same_interface<decltype(nvmlDeviceGetCount_v2), nvml::DeviceCount>);
static_assert(same_interface<decltype(nvmlDeviceGetHandleByIndex_v2), nvml::DeviceByIndex>);
static_assert(same_interface<decltype(nvmlDeviceGetName), nvml::DeviceText>);
static_assert(same_interface<decltype(nvmlDeviceGetMemoryInfo), nvml::DeviceMemory>);
static_assert(same_interface<decltype(nvmlDeviceGetCudaComputeCapability), nvml::DeviceCapability>);
static_assert(same_interface<decltype(nvmlDeviceGetPciInfo_v3), nvml::DevicePci>);
static_assert(same_interface<decltype(nvmlDeviceGetEccMode), nvml::DeviceMode>);
static_assert(same_interface<decltype(nvmlDeviceGetMigMode), nvml::DeviceMode>);
static_assert(same_interface<decltype(nvmlDeviceGetMaxPcieLinkGeneration), nvml::DeviceUnsigned>);
static_assert(same_interface<decltype(nvmlDeviceGetMaxPcieLinkWidth), nvml::DeviceUnsigned>);
static_assert(same_interface<decltype(nvmlDeviceGetCurrPcieLinkGeneration), nvml::DeviceUnsigned>);
static_assert(same_interface<decltype(nvmlDeviceGetCurrPcieLinkWidth), nvml::DeviceUnsigned>);
static_assert(same_interface<decltype(nvmlDeviceGetEnforcedPowerLimit), nvml::DeviceUnsigned>);
static_assert(same_interface<decltype(nvmlDeviceGetPowerUsage), nvml::DeviceUnsigned>);
static_assert(same_interface<decltype(nvmlDeviceGetTotalEnergyConsumption), nvml::DeviceCounter>);
static_assert(same_interface<decltype(nvmlDeviceGetNvLinkState), nvml::LinkUnsigned>);
static_assert(same_interface<decltype(nvmlDeviceGetNvLinkVersion), nvml::LinkUnsigned>);

static_assert(sizeof(nvmlMemory_t) == sizeof(nvml::Memory) && offsetof(nvmlMemory_t, free) == 8);
static_assert(sizeof(nvmlPciInfo_t) == sizeof(nvml::PciInfo));
static_assert(offsetof(nvmlPciInfo_t, busId) == offsetof(nvml::PciInfo, bus_id));

}  // namespace

TEST_CASE("constants of NVML are those of nvml.h") {
    CHECK(nvml::name_bytes == NVML_DEVICE_NAME_V2_BUFFER_SIZE);
    CHECK(nvml::version_bytes == NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE);
    CHECK(nvml::max_nvlinks >= NVML_NVLINK_MAX_LINKS);
    for (const auto& [version, generation] : {std::pair{NVML_NVLINK_VERSION_1_0, 1U},
                                              {NVML_NVLINK_VERSION_2_0, 2U},
                                              {NVML_NVLINK_VERSION_2_2, 2U},
                                              {NVML_NVLINK_VERSION_3_0, 3U},
                                              {NVML_NVLINK_VERSION_3_1, 3U},
                                              {NVML_NVLINK_VERSION_4_0, 4U},
                                              {NVML_NVLINK_VERSION_5_0, 5U}}) {
        REQUIRE(static_cast<std::size_t>(version) < std::size(nvml::nvlink_generations));
        CHECK(nvml::nvlink_generations[version] == generation);
    }
}
