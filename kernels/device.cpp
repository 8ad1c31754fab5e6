#include "kernels/api/device.h"

namespace hetero::kernels {

std::string DeviceFault::message() const {
    std::string text;
    if (device >= 0) text += "cuda:" + std::to_string(device) + ": ";
    text += where + ": " + reason;
    if (code != 0) text += " (" + std::to_string(code) + ')';
    if (!shapes.empty()) text += " [" + shapes + ']';
    return text;
}

}  // namespace hetero::kernels
