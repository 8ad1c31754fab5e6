// Codecs: bytes of f32 read (encode) or written (decode) per second, by one thread, on K-like data.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "quant/codec.h"

namespace {

using namespace hetero;
using quant::Axis;
using quant::Params;
using quant::Shape;

constexpr Shape shape{2048, 4, 64};  // 2 MiB of f32

struct Case {
    const char* label;
    const char* codec;
    Params params;
};
const Case cases[] = {
    {"f16", "f16", {}},
    {"bf16", "bf16", {}},
    {"int8_token_sym_head", "int8", {Axis::token, 0, true, quant::DType::f16}},
    {"int8_token_sym_32", "int8", {Axis::token, 32, true, quant::DType::f16}},
    {"int8_token_asym_head", "int8", {Axis::token, 0, false, quant::DType::f16}},
    {"int8_channel_sym_32", "int8", {Axis::channel, 32, true, quant::DType::f16}},
    {"int8_channel_asym_32", "int8", {Axis::channel, 32, false, quant::DType::f16}},
};

std::vector<float> values() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(shape.elements());
    for (float& value : x) value = normal(random);
    return x;
}

void encode(benchmark::State& state, const Case& c) {
    const quant::Codec& codec = *quant::find_codec(c.codec);
    const std::vector<float> x = values();
    auto out = codec.encode(c.params, shape, x).value();
    for (auto _ : state) {
        const Status status = codec.encode_into(c.params, shape, x, {out.values, out.scale, out.zero});
        if (!status) state.SkipWithError(status.error().message.c_str());
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(4 * x.size()));
}

void decode(benchmark::State& state, const Case& c) {
    const quant::Codec& codec = *quant::find_codec(c.codec);
    std::vector<float> x = values();
    const auto encoded = codec.encode(c.params, shape, x).value();
    for (auto _ : state) {
        const Status status = codec.decode(c.params, shape, encoded.values, encoded.scale, encoded.zero, x);
        if (!status) state.SkipWithError(status.error().message.c_str());
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(4 * x.size()));
}

const int registered = [] {
    for (const Case& c : cases) {
        benchmark::RegisterBenchmark((std::string("quant/encode/") + c.label).c_str(), encode, c);
        benchmark::RegisterBenchmark((std::string("quant/decode/") + c.label).c_str(), decode, c);
    }
    return 0;
}();

}  // namespace
