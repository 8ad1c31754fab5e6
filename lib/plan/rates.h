// From what a profile says of a device to the rates of the cost model, for one type of weights and one of KV. What was
// measured is taken as it is; of a specification, a usual fraction.
#pragma once
#include <string>
#include <vector>

#include "hw/profile.h"
#include "plan/cost.h"

namespace hetero::plan {

// Fractions of specified rates that kernels reach, and times that no data sheet has. From fits of published
// measurements: OPT on A100 in DistServe's profiler data (products 0.5 to 0.8, weights 0.35 to 0.67, KV 0.61 to 0.64,
// attention of prompts 0.2), and AIConfigurator's 0.8 of memory bandwidth.
struct UsualFractions {
    double products = 0.6, attention = 0.2, weights = 0.65, kv = 0.62, exchange = 0.7, link = 0.7;
    double prefill_overhead_s = 15e-3, step_overhead_s = 3e-3, exchange_latency_s = 10e-6;
};

struct DeviceRates {
    StageRates rates;
    bool verified = true;              // all that matters was measured
    std::vector<std::string> assumed;  // what was not, one line each
};

// `dtype`: of the weights: "int4". `kv_dtype` of the resident KV: "f16", "int8". bad_input: no executable path for the
// weights, with the reason that the profile gives; or neither a rate of products nor one of memory.
Result<DeviceRates> rates_of(const hw::Device& device, const ModelShape& shape, const std::string& dtype,
                             const std::string& kv_dtype, const UsualFractions& usual = {});

// Bytes of one weight of the type in memory where a profile does not say it.
[[nodiscard]] double usual_bytes_per_weight(const std::string& dtype) noexcept;
// Types that a device has an executable path for, in the profile's order, each once.
[[nodiscard]] std::vector<std::string> executable_dtypes(const hw::Device& device);

// Converting between 16-bit KV and a codec (a spec of hetero-quant(7)), bytes of 16-bit values a second: of that spec,
// else of the codec with other options; 0 where the profile has no such rate.
struct CodecRates {
    double encode_bytes_per_s = 0, decode_bytes_per_s = 0;
    bool verified = false;
};
[[nodiscard]] CodecRates codec_rates(const hw::Device& device, const std::string& codec);

}  // namespace hetero::plan
