#include <cmath>

#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {

void quantize_i8(const float* x, float scale, std::int8_t* q, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        float value = scale == 0 ? 0 : x[i] / scale;
        if (!(value > -127)) value = -127;  // NaN, too
        if (value > 127) value = 127;
        q[i] = static_cast<std::int8_t>(std::nearbyint(value));
    }
}

bool min_max(const float* x, std::size_t n, float* min, float* max) {
    float low = x[0], high = x[0];
    for (std::size_t i = 0; i < n; ++i) {
        if (!std::isfinite(x[i])) return false;
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    *min = low;
    *max = high;
    return true;
}

}  // namespace hetero::kernels::ref
