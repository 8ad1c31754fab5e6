#include "engine/device/device.h"

#include <charconv>

#include "kernels/api/device.h"

namespace hetero::engine {

Result<Device> find_device(std::string_view name) {
    Device device;
    if (name == "cpu") return device;
    const std::string_view backend = name.substr(0, name.find(':'));
    const bool numbered = backend.size() != name.size();
    if (numbered) {
        const std::string_view text = name.substr(backend.size() + 1);
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), device.index);
        if (error != std::errc() || end != text.data() + text.size() || device.index < 0)
            return fail(Errc::usage, "'{}' is no device: cpu, cuda or cuda:NUMBER", name);
    }
    if (backend != "cuda") return fail(Errc::usage, "'{}' is no device: cpu, cuda or cuda:NUMBER", name);
    const char* why_not = nullptr;
    device.ops = kernels::cuda_ops(&why_not);
    if (device.ops == nullptr) return fail(Errc::resource, "{}: {}", name, why_not);
    const int count = device.ops->device_count();
    if (device.index >= count)
        return fail(Errc::resource, "{}: there {}", name,
                    count == 0   ? "is no CUDA device"
                    : count == 1 ? "is cuda:0 only"
                                 : fmt::format("are cuda:0 to cuda:{}", count - 1));
    return device;
}

AutoDevice best_device() {
    auto cuda = find_device("cuda");
    if (cuda) return {*cuda, ""};
    return {Device{}, cuda.error().message};
}

std::string device_name(const Device& device) {
    return device.ops == nullptr ? "cpu" : fmt::format("{}:{}", device.ops->name, device.index);
}

}  // namespace hetero::engine
