// Rotary embedding of one pair (https://arxiv.org/abs/2104.09864).
#pragma once
#include "kernels/common/device_code.h"

namespace hetero::kernels {

HETERO_HD inline void rotate_pair(float a, float b, float cos, float sin, float& first, float& second) {
    first = rounded_sum(rounded_product(a, cos), -rounded_product(b, sin));
    second = rounded_sum(rounded_product(b, cos), rounded_product(a, sin));
}

}  // namespace hetero::kernels
