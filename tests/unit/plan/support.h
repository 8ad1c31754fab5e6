// Shapes of published models, and machines from data sheets.
#pragma once
#include "plan/search.h"
#include "support/results.h"

namespace hetero::test {

// A decoder with multi- or grouped-query attention; FFN of `ffn`, gated (three matrices) or not.
inline plan::ModelShape decoder(const char* name, std::uint32_t layers, std::uint32_t hidden, std::uint32_t heads,
                                std::uint32_t kv_heads, std::uint32_t head_dim, double ffn, double vocab,
                                bool gated = true) {
    plan::ModelShape shape;
    shape.name = name;
    shape.n_layers = layers;
    shape.hidden = hidden;
    shape.n_heads = heads;
    shape.n_kv_heads = kv_heads;
    shape.head_dim_k = shape.head_dim_v = head_dim;
    shape.prefill_pair_dims = shape.decode_pair_dims = 2 * head_dim;
    const double attention = double{1} * hidden * head_dim * (2.0 * heads + 2.0 * kv_heads);
    shape.dense_params = layers * (attention + (gated ? 3 : 2) * double{1} * hidden * ffn);
    shape.head_params = double{1} * hidden * vocab;
    shape.stored_params = shape.dense_params + 2 * shape.head_params;
    return shape;
}

// GPUs as a data sheet has them.
inline hw::Device gpu(const char* name, double tflop_per_s, double gb_per_s, double gigabytes, int count = 1,
                      const char* dtype = "bf16") {
    hw::Device device;
    device.name = name;
    device.gpu = true;
    device.count = count;
    device.memory_bytes = static_cast<std::uint64_t>(gigabytes * 1e9);
    hw::BandwidthRate bandwidth;
    bandwidth.origin = hw::Origin::specification;
    bandwidth.read_gb_per_s = gb_per_s;
    device.bandwidth.push_back(bandwidth);
    hw::ProductRate product;
    product.dtype = dtype;
    product.origin = hw::Origin::specification;
    product.gemm_gflop_per_s = tflop_per_s * 1e3;
    device.products.push_back(product);
    return device;
}

// The same figures as if they had been reached.
inline hw::Device measured(hw::Device device) {
    for (auto& one : device.bandwidth) one.origin = hw::Origin::measured;
    for (auto& one : device.products) one.origin = hw::Origin::measured;
    hw::AttentionRate attention;
    attention.kv_dtype = "f16";
    attention.head_dim = 128;
    attention.prefill_gflop_per_s = *device.products[0].gemm_gflop_per_s / 3;
    attention.decode_gb_per_s = *device.bandwidth[0].read_gb_per_s * 0.7;
    device.attention.push_back(attention);
    return device;
}

inline plan::Side side(const char* name, hw::Device device, std::uint32_t machines, const char* dtype = "bf16") {
    plan::Side out;
    out.name = name;
    out.device = std::move(device);
    out.machines = machines;
    out.dtypes = {dtype};
    out.exchange_bytes_per_s = 200e9;
    return out;
}

inline plan::Problem problem(plan::ModelShape shape, std::vector<plan::Side> sides, std::uint32_t prompt,
                             std::uint32_t output, double link_gb_per_s) {
    plan::Problem out;
    plan::KvFormat f16;
    f16.name = "f16";
    f16.certified = true;
    f16.bytes_per_token = must(plan::kv_bytes_per_token(shape, {}, {}));
    out.formats = {f16};
    out.shape = std::move(shape);
    out.sides = std::move(sides);
    out.workload.prompt_tokens = prompt;
    out.workload.output_tokens = output;
    const std::size_t n = out.sides.size();
    out.links.assign(
        n, std::vector<std::optional<plan::LinkRates>>(n, plan::LinkRates{link_gb_per_s * 1e9, 20e-6, true, "test"}));
    out.simulated_requests = 1000;
    return out;
}

// KV as int8 of `ratio` times the bytes, which the first side converts at a measured rate.
inline void add_int8(plan::Problem& problem, double ratio, double codec_gb_per_s) {
    plan::KvFormat int8 = problem.formats[0];
    int8.name = int8.codec = "int8";
    int8.quantized = true;
    int8.bytes_per_token *= ratio;
    problem.formats.push_back(int8);
    hw::CodecRate codec;
    codec.codec = "int8";
    codec.encode_gb_per_s = codec.decode_gb_per_s = codec_gb_per_s;
    problem.sides[0].device.codecs.push_back(codec);
}

}  // namespace hetero::test
