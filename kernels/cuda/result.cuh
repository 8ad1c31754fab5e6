// Where products write y [token][row].
#pragma once
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// y = sum * token_scale * row_scale + bias (+ y with `add`); null: 1, or 0.
struct Result {
    float* y = nullptr;
    std::size_t stride = 0;
    const float* row_scale = nullptr;
    const float* bias = nullptr;
    const float* token_scale = nullptr;
    bool add = false;
};
__device__ inline void put_sum(const Result& out, std::size_t token, std::size_t row, float sum) {
    if (out.token_scale != nullptr) sum *= out.token_scale[token];
    if (out.row_scale != nullptr) sum *= out.row_scale[row];
    if (out.bias != nullptr) sum += out.bias[row];
    float* y = out.y + token * out.stride + row;
    *y = out.add ? *y + sum : sum;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
