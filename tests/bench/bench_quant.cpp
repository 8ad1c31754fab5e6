// Codecs from 16-bit floats and back, by one thread, over 256 MiB of f16 keys in memory, beside memcpy in the same run.
// GB/s counts bytes read and bytes written; of_copy is that rate over memcpy's.
#include <benchmark/benchmark.h>

#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "kernels/api/ops.h"
#include "quant/spec.h"
#include "quant/transcode.h"

namespace {

using namespace hetero;
using quant::Shape;

constexpr Shape shape{512 * 1024, 4, 64};  // 256 MiB of f16
const quant::Spec f16{};

constexpr const char* specs[] = {
    "f32",
    "bf16",
    "int8:token",
    "int8:token:asym",
    "int8:token:g32",
    "had:int8:token",
    "int8:head",
    "int8:tensor",
    "int8:channel:g32",
    "int8:channel:g32:asym",
    "int6:token",
    "int4:token:asym",
    "int4:channel:g32:asym",
    "had:int4:token:g32:asym",
    "int3:token",
    "int2:token",
    "fp8_e4m3fn:token",
    "fp8_e5m2:token",
    "compat:q8_0",
    "compat:q4_0",
    "compat:lmdeploy8",
    "compat:vllm_fp8",
};

// Keys: a few channels far larger than the others.
const std::vector<std::byte>& keys() {
    static const std::vector<std::byte> bytes = [] {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::vector<float> some(1 << 20);
        for (std::size_t i = 0; i < some.size(); ++i) some[i] = normal(random) * (i % 64 % 19 == 3 ? 12.0F : 1.0F);
        std::vector<std::uint16_t> half(some.size());
        kernels::ops().f32_to_f16(some.data(), half.data(), half.size());
        std::vector<std::byte> out(2 * shape.elements());
        for (std::size_t at = 0; at < out.size(); at += 2 * half.size())
            std::memcpy(out.data() + at, half.data(), std::min(2 * half.size(), out.size() - at));
        return out;
    }();
    return bytes;
}

double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// memcpy of the same keys, the best of several, right before a codec is timed.
double copy_rate() {
    static std::vector<std::byte> to(keys().size(), std::byte{1});
    double best = 0;
    for (int i = 0; i < 5; ++i) {
        const double start = cpu_seconds();
        std::memcpy(to.data(), keys().data(), to.size());
        benchmark::ClobberMemory();
        best = std::max(best, 2e-9 * static_cast<double>(to.size()) / (cpu_seconds() - start));
    }
    return best;
}

quant::Encoded allocate(const quant::Spec& spec) {
    const quant::EncodedBytes size = quant::find_codec(spec.codec)->bytes(spec.params, shape);
    return {std::vector<std::byte>(size.values, std::byte{1}), std::vector<std::byte>(size.scale, std::byte{1}),
            std::vector<std::byte>(size.zero, std::byte{1})};
}

void report(benchmark::State& state, const quant::Spec& spec, double copy) {
    const std::size_t moved = 2 * shape.elements() + quant::find_codec(spec.codec)->bytes(spec.params, shape).total();
    const double bytes = static_cast<double>(moved) * static_cast<double>(state.iterations());
    state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsRate);
    state.counters["of_copy"] = benchmark::Counter(bytes * 1e-9 / copy, benchmark::Counter::kIsRate);
    state.counters["f16_GB/s"] =
        benchmark::Counter(2e-9 * static_cast<double>(shape.elements()) * static_cast<double>(state.iterations()),
                           benchmark::Counter::kIsRate);
}

void quantize(benchmark::State& state, const quant::Spec& spec) {
    const double copy = copy_rate();
    quant::Encoded out = allocate(spec);
    quant::Scratch scratch;
    for (auto _ : state) {
        const Status status =
            quant::transcode(f16, {keys(), {}, {}}, spec, {out.values, out.scale, out.zero}, shape, scratch);
        if (!status) state.SkipWithError(status.error().message.c_str());
        benchmark::ClobberMemory();
    }
    report(state, spec, copy);
}

void dequantize(benchmark::State& state, const quant::Spec& spec) {
    const double copy = copy_rate();
    quant::Encoded stored = allocate(spec), out = allocate(f16);
    quant::Scratch scratch;
    Status status =
        quant::transcode(f16, {keys(), {}, {}}, spec, {stored.values, stored.scale, stored.zero}, shape, scratch);
    for (auto _ : state) {
        if (status)
            status = quant::transcode(spec, {stored.values, stored.scale, stored.zero}, f16, {out.values, {}, {}},
                                      shape, scratch);
        if (!status) state.SkipWithError(status.error().message.c_str());
        benchmark::ClobberMemory();
    }
    report(state, spec, copy);
}

const int registered = [] {
    for (const char* text : specs) {
        const quant::Spec spec = quant::parse_spec(text).value();
        benchmark::RegisterBenchmark((std::string("quantize/") + text).c_str(), quantize, spec)
            ->Unit(benchmark::kMillisecond);
        benchmark::RegisterBenchmark((std::string("dequantize/") + text).c_str(), dequantize, spec)
            ->Unit(benchmark::kMillisecond);
    }
    return 0;
}();

}  // namespace
