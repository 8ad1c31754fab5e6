// How fast a device's kernels are: products with weights of each type, and attention over K and V of each type.
#pragma once
#include <cstddef>

#include "hw/section.h"
#include "kernels/api/device.h"

namespace hetero::hw {

struct GpuSizes {
    std::size_t rows = 8192, cols = 8192, gemm_tokens = 2048;  // of products
    std::size_t kv_heads = 8, query_heads = 32, head_dim = 128;
    std::size_t prefill_tokens = 4096, decode_tokens = 32768;
};

// Adds `compute` and `attention`. A type counts as executable only where its results are right.
void put_gpu_rates(const kernels::DeviceOps& ops, int device, double budget_s, const GpuSizes& sizes, Json& out);

}  // namespace hetero::hw
