// NVIDIA GPUs, as NVML sees them (all of the machine) and as CUDA does (those this process may use). Both libraries
// come with the driver and are looked for at run time.
#include "hw/isolated.h"
#include "hw/probes/gpu_drivers.h"
#include "hw/probes/probes.h"

namespace hetero::hw {
namespace {

constexpr double driver_timeout_s = 20, rates_timeout_s = 60;  // of one library; of what one device reaches

// What a child process found; where it has died or hangs, what `otherwise` makes of the reason.
template <class Work, class Otherwise>
Json isolated(double timeout_s, Work work, Otherwise otherwise) {
    const auto text =
        run_isolated([&] { return work().dump(-1, ' ', false, Json::error_handler_t::replace); }, timeout_s);
    if (!text) return otherwise("the driver's library " + text.error().message);
    const Json found = Json::parse(*text, nullptr, false);
    return found.is_object() ? found : otherwise("the driver's library gave no answer");
}

void put_rates(const Context& context, int index, Json& device) {
    const bool measures = context.options.measure && !context.options.quick;
    const Json rates = measures ? isolated(
                                      rates_timeout_s, [&] { return cuda_rates(context, index); }, no_cuda_rates)
                                : no_cuda_rates(context.options.quick ? "not measured: quick" : not_measured);
    for (const auto& [name, content] : rates.items()) device[name] = content;
    put_unknown(device["kv_codecs"], "rates", "KV is converted on the CPU");
    put_unknown(device, "stages", "not measured: hw-probe runs models on the CPU");
}

}  // namespace

Json probe_gpus(const Context& context) {
    Json section;
    if (context.recorded()) {
        section["nvml"] = section["cuda"] = unknown_devices(not_recorded);
        return section;
    }
    section["nvml"] = isolated(driver_timeout_s, nvml_devices, unknown_devices);
    section["cuda"] = isolated(driver_timeout_s, cuda_devices, unknown_devices);
    Json& devices = section["cuda"]["devices"];
    for (std::size_t i = 0; devices.is_array() && i < devices.size(); ++i)
        put_rates(context, static_cast<int>(i), devices[i]);
    return section;
}

}  // namespace hetero::hw
