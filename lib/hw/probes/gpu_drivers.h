// The two libraries of the NVIDIA driver, as the section of GPUs asks them. All of it is to be called in a child
// process.
#pragma once
#include <string>

#include "hw/isolated.h"
#include "hw/section.h"

namespace hetero::hw {

[[nodiscard]] Json nvml_devices();  // all GPUs of the machine
[[nodiscard]] Json cuda_devices();  // those that CUDA lets this process use

// What the device of that index reaches: copies, products, attention (cuda_devices.cpp). Where nothing is measured, or
// it fails, `why_not` says why.
[[nodiscard]] Json cuda_rates(const Context& context, int index);
[[nodiscard]] Json no_cuda_rates(const std::string& why_not);

[[nodiscard]] inline Json unknown_devices(const std::string& reason) {
    Json side;
    put_unknown(side, "devices", reason);
    return side;
}
// What a library said, in words, of the call that failed.
[[nodiscard]] inline std::string failed_call(const char* call, const char* text, int code) {
    return text != nullptr ? fmt::format("{}: {} ({})", call, text, code) : fmt::format("{}: error {}", call, code);
}
[[nodiscard]] inline std::string cuda_version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
// As the kernel writes it: "0000:3b:00.0". One library has small letters where the other has capitals.
[[nodiscard]] std::string pci_bus_id(std::string text);

}  // namespace hetero::hw
