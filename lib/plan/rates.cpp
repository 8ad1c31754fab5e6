#include "plan/rates.h"

#include <algorithm>
#include <cmath>

#include "quant/spec.h"

namespace hetero::plan {
namespace {

constexpr double giga = 1e9;

// Of several entries the one with the most threads; the engine's default path before others.
const hw::ProductRate* product_of(const hw::Device& device, const std::string& dtype) {
    const hw::ProductRate* best = nullptr;
    const auto rank = [](const hw::ProductRate& rate) {
        const int known = rate.unsupported.empty() ? 1000 : 0;
        const int path = rate.path == "fast" ? 100 : rate.path == "precise" ? 0 : 50;
        return known + path;
    };
    for (const hw::ProductRate& rate : device.products) {
        if (rate.dtype != dtype) continue;
        if (best == nullptr || rank(rate) > rank(*best) || (rank(rate) == rank(*best) && rate.threads > best->threads))
            best = &rate;
    }
    return best;
}

const hw::AttentionRate* attention_of(const hw::Device& device, const std::string& kv_dtype, std::uint32_t head_dim) {
    const hw::AttentionRate* best = nullptr;
    const auto distance = [&](const hw::AttentionRate& rate) {
        return std::fabs(std::log(std::max(rate.head_dim, 1)) - std::log(std::max(head_dim, 1U)));
    };
    for (const hw::AttentionRate& rate : device.attention) {
        if (rate.kv_dtype != kv_dtype || !rate.unsupported.empty()) continue;
        if (best == nullptr || distance(rate) < distance(*best) ||
            (distance(rate) == distance(*best) && rate.threads > best->threads))
            best = &rate;
    }
    return best;
}

double memory_bytes_per_s(const hw::Device& device, bool* measured) {
    double best = 0;
    for (const hw::BandwidthRate& rate : device.bandwidth) {
        const double one = std::max(rate.read_gb_per_s.value_or(0), rate.triad_gb_per_s.value_or(0)) * giga;
        if (one <= best) continue;
        best = one;
        *measured = rate.origin == hw::Origin::measured;
    }
    return best;
}

}  // namespace

double usual_bytes_per_weight(const std::string& dtype) noexcept {
    if (dtype == "f32") return 4;
    if (dtype == "f16" || dtype == "bf16") return 2;
    if (dtype == "int8") return 1 + 2.0 / 32;  // a scale of 16 bits for 32 weights
    if (dtype == "int4" || dtype == "fp4_e2m1") return 0.5 + 2.0 / 32;
    return 1;  // fp8
}

std::vector<std::string> executable_dtypes(const hw::Device& device) {
    std::vector<std::string> out;
    for (const hw::ProductRate& rate : device.products) {
        if (!rate.unsupported.empty() || !rate.gemm_gflop_per_s) continue;
        if (std::find(out.begin(), out.end(), rate.dtype) == out.end()) out.push_back(rate.dtype);
    }
    return out;
}

Result<DeviceRates> rates_of(const hw::Device& device, const ModelShape& shape, const std::string& dtype,
                             const std::string& kv_dtype, const UsualFractions& usual) {
    const hw::ProductRate* product = product_of(device, dtype);
    if (product == nullptr)
        return fail(Errc::bad_input, "{}: the profile has no rate for {} weights", device.name, dtype);
    if (!product->unsupported.empty())
        return fail(Errc::bad_input, "{}: no executable path for {} weights: {}", device.name, dtype,
                    product->unsupported);
    DeviceRates out;
    StageRates& rates = out.rates;
    const auto assume = [&out](std::string what) {
        out.verified = false;
        out.assumed.push_back(std::move(what));
    };
    const bool measured = product->origin == hw::Origin::measured;
    if (!product->gemm_gflop_per_s)
        return fail(Errc::bad_input, "{}: the rate of products with {} weights is not known", device.name, dtype);
    rates.product_flop_per_s = *product->gemm_gflop_per_s * giga * (measured ? 1 : usual.products);
    if (!measured)
        assume(fmt::format("{}: products of {} at {} of the specified rate", device.name, dtype, usual.products));
    rates.bytes_per_weight = product->bytes_per_weight.value_or(usual_bytes_per_weight(dtype));

    bool memory_measured = false;
    const double memory = memory_bytes_per_s(device, &memory_measured);
    if (product->gemv_gb_per_s) {
        rates.weight_bytes_per_s = *product->gemv_gb_per_s * giga * (measured ? 1 : usual.weights);
    } else if (memory > 0) {
        rates.weight_bytes_per_s = memory * (memory_measured ? 1 : usual.weights);
        if (!memory_measured)
            assume(fmt::format("{}: weights read at {} of the specified bandwidth", device.name, usual.weights));
    } else {
        return fail(Errc::bad_input, "{}: the profile has no rate of memory", device.name);
    }
    rates.batch_flop_per_s = rates.product_flop_per_s;
    if (!product->batches.empty())
        rates.batch_flop_per_s = product->batches.back().gflop_per_s * giga * (measured ? 1 : usual.products);

    const hw::AttentionRate* attention = attention_of(device, kv_dtype, shape.prefill_pair_dims / 2);
    const bool attention_measured = attention != nullptr && attention->origin == hw::Origin::measured;
    if (attention != nullptr && attention->prefill_gflop_per_s) {
        rates.attention_flop_per_s =
            *attention->prefill_gflop_per_s * giga * (attention_measured ? 1 : usual.attention);
    } else {
        rates.attention_flop_per_s = *product->gemm_gflop_per_s * giga * usual.attention;
    }
    if (attention != nullptr && attention->decode_gb_per_s) {
        rates.kv_bytes_per_s = *attention->decode_gb_per_s * giga * (attention_measured ? 1 : usual.kv);
    } else {
        rates.kv_bytes_per_s = (memory > 0 ? memory : rates.weight_bytes_per_s) * usual.kv;
    }
    if (!attention_measured)
        assume(fmt::format("{}: attention over {} KV at {} of the rate of products and {} of the bandwidth",
                           device.name, kv_dtype, usual.attention, usual.kv));
    if (device.gpu) {
        rates.prefill_overhead_s = usual.prefill_overhead_s;
        rates.step_overhead_s = usual.step_overhead_s;
    }
    rates.exchange_latency_s = usual.exchange_latency_s;
    return out;
}

CodecRates codec_rates(const hw::Device& device, const std::string& codec) {
    const auto wanted = quant::parse_spec(codec);
    CodecRates out;
    int best = -1;
    for (const hw::CodecRate& rate : device.codecs) {
        const auto own = quant::parse_spec(rate.codec);
        if (!wanted || !own || own->codec != wanted->codec || !rate.unsupported.empty()) continue;
        const int rank = (*own == *wanted ? 1'000'000 : 0) + rate.threads;
        if (rank <= best) continue;
        best = rank;
        out.encode_bytes_per_s = rate.encode_gb_per_s.value_or(0) * giga;
        out.decode_bytes_per_s = rate.decode_gb_per_s.value_or(0) * giga;
        out.verified = rate.origin == hw::Origin::measured;
    }
    return out;
}

}  // namespace hetero::plan
