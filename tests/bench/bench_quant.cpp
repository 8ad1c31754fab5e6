// Codecs from 16-bit floats and back as kv-quantize runs them, by one thread, over 256 MiB of f16 K and V in memory,
// beside a copy in the same run. Decoding, encoding and measuring the error are timed (kv::ConvertReport::seconds).
// GB/s counts bytes read and bytes written; of_copy is that rate over the faster of memcpy and a copy past the caches;
// call_GB/s is that of the whole call, with memory that is taken and zeroed for what it yields. All memory is in huge
// pages, as that of states read from files.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/huge_pages.h"
#include "kernels/api/ops.h"
#include "kv/convert.h"
#include "quant/spec.h"

namespace {

using namespace hetero;
constexpr std::uint32_t n_tokens = 256 * 1024, heads = 4, head_dim = 64;  // 128 MiB of f16 each
constexpr std::size_t part_elements = std::size_t{n_tokens} * heads * head_dim;

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
    "int5:token",
    "int4:token:asym",
    "int4:channel:g32:asym",
    "int8:channel:g64:asym",
    "had:int8:token:asym",
    "had:int6:token",
    "had:int4:token:asym",
    "had:int4:token:g32:asym",
    "int3:token",
    "int2:token",
    "fp8_e4m3fn:token",
    "fp8_e4m3fnuz:token",
    "fp8_e5m2:token",
    "wf9:channel:g64",
    "wf8:channel:g64",
    "wf6:channel:g64",
    "wf5:channel:g64",
    "wf4:channel:g64",
    "wf3:channel:g64",
    "wf2:channel:g64",
    "compat:q8_0",
    "compat:q4_0",
    "compat:q4_1",
    "compat:lmdeploy8",
    "compat:lmdeploy4",
    "compat:vllm_fp8",
};

// A few channels far larger than the others, as keys have them.
std::vector<std::byte> random_values() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> some(1 << 20);
    for (std::size_t i = 0; i < some.size(); ++i) some[i] = normal(random) * (i % 64 % 19 == 3 ? 12.0F : 1.0F);
    std::vector<std::uint16_t> half(some.size());
    kernels::ops().f32_to_f16(some.data(), half.data(), half.size());
    std::vector<std::byte> out;
    resize_in_huge_pages(out, 2 * part_elements);
    for (std::size_t at = 0; at < out.size(); at += 2 * half.size())
        std::memcpy(out.data() + at, half.data(), std::min(2 * half.size(), out.size() - at));
    return out;
}

// One layer, unquantized.
std::shared_ptr<const kv::State> plain_state() {
    static const std::shared_ptr<const kv::State> state = [] {
        auto made = std::make_shared<kv::State>();
        kv::Identity& identity = made->header.identity;
        identity.arch = "bench";
        identity.n_layers = 1;
        identity.n_heads = identity.n_kv_heads = heads;
        identity.head_dim_k = identity.head_dim_v = head_dim;
        identity.vocab_size = 1;
        identity.context_length = n_tokens;
        made->header.sequences = {{"0", std::vector<std::int32_t>(n_tokens), -1, false, {}}};
        made->header.k_schemes = made->header.v_schemes = {kv::Scheme{}};
        kv::Layer layer;
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v})
            layer.part(id).values = {kernels::DType::f16, {n_tokens, heads, head_dim}, random_values()};
        made->layers.emplace_back().push_back(std::move(layer));
        return made;
    }();
    return state;
}

class MemorySink final : public kv::Sink {
public:
    Status begin(const kv::Header& header) override {
        state->header = header;
        state->layers.assign(1, {});
        return {};
    }
    Status write_layer(const kv::Layer& layer) override {
        state->layers[0].push_back(layer);
        return {};
    }
    Status commit() override { return {}; }
    void abort(const Error& /*reason*/) noexcept override {}
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    std::shared_ptr<kv::State> state = std::make_shared<kv::State>();

private:
    std::string name_ = "memory";
};

struct Schemes {
    kv::Scheme k, v;
};
kv::Scheme scheme_of(const quant::Spec& spec) { return {spec.codec, spec.params, kernels::DType::f16, 0, 0}; }

// Copies of the same values, the best of several, right before a codec is timed.
double copy_rate() {
    const std::vector<std::byte>& from = plain_state()->layers[0][0].k.values.bytes;
    static std::vector<std::byte> to;
    resize_in_huge_pages(to, from.size());
    double best = 0;
    for (int i = 0; i < 8; ++i) {
        const auto start = std::chrono::steady_clock::now();
        i % 2 == 0 ? static_cast<void>(std::memcpy(to.data(), from.data(), to.size()))
                   : kernels::ops().copy_streaming(to.data(), from.data(), to.size());
        benchmark::ClobberMemory();
        best = std::max(best, 2e-9 * static_cast<double>(to.size()) / seconds_since(start));
    }
    return best;
}

void convert(benchmark::State& state, const std::shared_ptr<const kv::State>& from, const Schemes& to) {
    const double copy = copy_rate();
    double bytes = 0, half = 0, call_seconds = 0;
    for (auto _ : state) {
        const auto source = kv::memory_source(from, "memory");
        MemorySink sink;
        const auto start = std::chrono::steady_clock::now();
        const auto done = kv::convert_state(*source, sink, to.k, to.v, false, {"bench", "", "convert"}, 1);
        call_seconds += seconds_since(start);
        if (!done) {
            state.SkipWithError(done.error().message.c_str());
            break;
        }
        state.SetIterationTime(done->seconds);
        bytes += static_cast<double>(done->bytes_in + done->bytes_out);
        half += 4.0 * static_cast<double>(part_elements);
    }
    state.counters["copy_GB/s"] = copy;
    state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsRate);
    state.counters["of_copy"] = benchmark::Counter(bytes * 1e-9 / copy, benchmark::Counter::kIsRate);
    state.counters["call_GB/s"] = bytes * 1e-9 / call_seconds;
    state.counters["f16_GB/s"] = benchmark::Counter(half * 1e-9, benchmark::Counter::kIsRate);
}

void quantize(benchmark::State& state, const Schemes& to) { convert(state, plain_state(), to); }

void dequantize(benchmark::State& state, const Schemes& from) {
    const auto source = kv::memory_source(plain_state(), "memory");
    MemorySink stored;
    const auto done = kv::convert_state(*source, stored, from.k, from.v, false, {"bench", "", "quantize"}, 1);
    if (!done) return state.SkipWithError(done.error().message.c_str());
    convert(state, stored.state, {});
}

void add(const std::string& name, const Schemes& schemes) {
    const auto set = [](benchmark::internal::Benchmark* one) { one->UseManualTime()->Unit(benchmark::kMillisecond); };
    set(benchmark::RegisterBenchmark(("quantize/" + name).c_str(), quantize, schemes));
    set(benchmark::RegisterBenchmark(("dequantize/" + name).c_str(), dequantize, schemes));
}

// What is kept as it is, but looked at: the copy that finds values that are no numbers.
void copy_finite(benchmark::State& state) {
    const std::vector<std::byte>& from = plain_state()->layers[0][0].k.values.bytes;
    const double copy = copy_rate();
    std::vector<std::byte> to;
    resize_in_huge_pages(to, from.size());
    const kernels::KvValues values{kernels::DType::f16, from.data(), std::size_t{n_tokens} * heads, head_dim, head_dim};
    double bytes = 0;
    for (auto _ : state) {
        const auto start = std::chrono::steady_clock::now();
        if (!kernels::ops().copy_finite(values, to.data(), head_dim)) return state.SkipWithError("not finite");
        benchmark::ClobberMemory();
        state.SetIterationTime(seconds_since(start));
        bytes += 2 * static_cast<double>(from.size());
    }
    state.counters["copy_GB/s"] = copy;
    state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsRate);
    state.counters["of_copy"] = benchmark::Counter(bytes * 1e-9 / copy, benchmark::Counter::kIsRate);
}

const int registered = [] {
    benchmark::RegisterBenchmark("copy_finite", copy_finite)->UseManualTime()->Unit(benchmark::kMillisecond);
    for (const char* text : specs) {
        const kv::Scheme scheme = scheme_of(quant::parse_spec(text).value());
        add(text, {scheme, scheme});
    }
    // As --preset has them, but for the sinks: four tokens of all.
    for (const quant::Preset& preset : quant::presets()) {
        const auto scheme = [](std::string_view text) { return scheme_of(quant::parse_spec(text).value()); };
        add("preset:" + std::string(preset.name), {scheme(preset.k), scheme(preset.v)});
    }
    return 0;
}();

}  // namespace
