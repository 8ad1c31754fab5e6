#include <cmath>

#include "kernels/common/codes.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {

void quantize_i8(const float* x, float scale, std::int8_t* q, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) q[i] = i8_code(x[i], scale);
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
