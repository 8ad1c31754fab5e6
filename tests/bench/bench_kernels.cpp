// Rates of every kernel, on one thread, for the backend that HETERO_BACKEND names (default: the best), beside the roofs
// of the machine measured in the same run. Shapes are those of SmolLM2-135M: hidden 576, feed-forward 1536, 3 KV heads
// of 64, vocabulary 49152. Compare within one run only; noisy neighbours move everything.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "../support/kv_pages.h"
#include "bench_roofs.h"
#include "kernels/api/ops.h"
#include "kernels/api/tiles.h"
#ifdef HETERO_BENCH_DNNL
#include <omp.h>

#include <dnnl.hpp>
#endif

using namespace hetero::kernels;

namespace {

// Starts at a cache line, as tile loads want it.
template <class T>
struct Aligned {
    using value_type = T;
    T* allocate(std::size_t n) { return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64})); }
    void deallocate(T* p, std::size_t) { ::operator delete (p, std::align_val_t{64}); }
    bool operator==(const Aligned&) const = default;
};

std::vector<float> ramp(std::size_t n) {
    std::vector<float> v(n);
    for (std::size_t i = 0; i < n; ++i) v[i] = std::sin(static_cast<float>(i % 8191) * 0.37F);
    return v;
}

// Plain types hold ordinary numbers; blocks have arbitrary codes, and scales that are no NaN (their exponent's top bit
// is clear).
std::vector<std::uint8_t> weights(DType type, std::size_t n) {
    std::vector<std::uint8_t> bytes(dtype_bytes(type, n));
    const auto values = ramp(n);
    auto* halves = reinterpret_cast<std::uint16_t*>(bytes.data());
    if (type == DType::f32)
        std::memcpy(bytes.data(), values.data(), bytes.size());
    else if (type == DType::f16)
        ops().f32_to_f16(values.data(), halves, n);
    else if (type == DType::bf16)
        ops().f32_to_bf16(values.data(), halves, n);
    else
        for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<std::uint8_t>(i * 131 % 251 & (i % 2 ? 0xbf : 0xff));
    return bytes;
}

void gflops(benchmark::State& state, double flop) {
    state.counters["GFLOP/s"] =
        benchmark::Counter(flop * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
void gigaops(benchmark::State& state, double op) {
    state.counters["GOP/s"] =
        benchmark::Counter(op * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
void gigabytes(benchmark::State& state, double bytes) {
    state.counters["GB/s"] =
        benchmark::Counter(bytes * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// The best of 20 rounds of what `round` counts, per second.
template <class Round>
double best_rate(Round round) {
    double best = 0;
    for (int i = 0; i < 20; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const double work = round();
        best = std::max(best, work / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

// The machine's roofs, each measured once, in this run: of the fastest unit that this backend may use.
bool has_matrix_unit() { return std::strcmp(ops().name, "amx") == 0; }
double bf16_roof() {
    static const double roof = std::max(best_rate([] { return hetero::bench::bf16_rounds(1, 100000); }),
                                        best_rate([] { return hetero::bench::bf16_rounds(2, 100000); }));
    return roof;
}
double int8_roof() {
    static const double roof = best_rate([] { return hetero::bench::int8_rounds(has_matrix_unit() ? 2 : 1, 100000); });
    return roof;
}
double f32_roof() {
    static const double roof = std::max(best_rate([] { return hetero::bench::fma_rounds(8, 100000); }),
                                        best_rate([] { return hetero::bench::fma_rounds(16, 100000); }));
    return roof;
}
double read_roof() {
    static const double roof = [] {
        const std::vector<char> buffer(std::size_t{256} << 20, 1);
        return best_rate([&] {
            hetero::bench::read_bytes(buffer.data(), buffer.size());
            return static_cast<double>(buffer.size());
        });
    }();
    return roof;
}
// Percent of a roof. A rate: printed with "/s".
void percent_of_roof(benchmark::State& state, double work, double roof) {
    if (roof <= 0) return;
    state.counters["%roof"] =
        benchmark::Counter(100 * work / roof * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
void of_roof(benchmark::State& state, double flop, double roof) {
    gflops(state, flop);
    percent_of_roof(state, flop, roof);
}
void of_read_roof(benchmark::State& state, double bytes) {
    gigabytes(state, bytes);
    percent_of_roof(state, bytes, read_roof());
}
constexpr double kBeyondCaches = 48e6;  // bytes: what is larger is read from memory, or from a cache that many share

// ---- roofs

void roof_fma(benchmark::State& state) {
    double flop = 0;
    for (auto _ : state) flop = hetero::bench::fma_rounds(static_cast<int>(state.range(0)), 100000);
    gflops(state, flop);
}
BENCHMARK(roof_fma)->ArgName("lanes")->Arg(8)->Arg(16);

// 8-bit dot products: 1, 512 bits of VNNI; 2, AMX tiles.
void roof_int8(benchmark::State& state) {
    double op = 0;
    for (auto _ : state) op = hetero::bench::int8_rounds(static_cast<int>(state.range(0)), 100000);
    gigaops(state, op);
}
BENCHMARK(roof_int8)->ArgName("unit")->Arg(1)->Arg(2);

// Dot products in bf16: 1, 512 bits; 2, AMX tiles.
void roof_bf16(benchmark::State& state) {
    double flop = 0;
    for (auto _ : state) flop = hetero::bench::bf16_rounds(static_cast<int>(state.range(0)), 100000);
    gflops(state, flop);
}
BENCHMARK(roof_bf16)->ArgName("unit")->Arg(1)->Arg(2);

void roof_read(benchmark::State& state) {
    const std::vector<char> buffer(static_cast<std::size_t>(state.range(0)) << 20, 1);
    for (auto _ : state) hetero::bench::read_bytes(buffer.data(), buffer.size());
    gigabytes(state, static_cast<double>(buffer.size()));
}
BENCHMARK(roof_read)->ArgName("MiB")->Arg(1)->Arg(30)->Arg(1024);

// ---- matrices

void gemm(benchmark::State& state, DType type, std::size_t rows, std::size_t cols) {
    const auto tokens = static_cast<std::size_t>(state.range(0));
    const auto w = weights(type, rows * cols);
    const auto x = ramp(tokens * cols);
    std::vector<float> y(tokens * rows);
    for (auto _ : state)
        ops().gemm(type, w.data(), dtype_bytes(type, cols), 0, rows, cols, x.data(), cols, tokens, y.data(), rows);
    of_roof(state, 2.0 * static_cast<double>(rows * cols * tokens), f32_roof());
}

void gemv(benchmark::State& state, DType type, std::size_t rows, std::size_t cols) {
    const auto w = weights(type, rows * cols);
    const auto x = ramp(cols);
    std::vector<float> y(rows);
    for (auto _ : state) ops().gemv(type, w.data(), dtype_bytes(type, cols), 0, rows, cols, x.data(), y.data());
    const auto bytes = static_cast<double>(w.size());
    bytes > kBeyondCaches ? of_read_roof(state, bytes)
                          : of_roof(state, 2.0 * static_cast<double>(rows * cols), f32_roof());
    gigabytes(state, bytes);
}

// Weights packed beforehand, activations quantized beforehand.
void packed_gemm(benchmark::State& state, DType type, std::size_t rows, std::size_t cols) {
    const auto tokens = static_cast<std::size_t>(state.range(0));
    const auto w = weights(type, rows * cols);
    const Packing packing = packing_of(type);
    std::vector<std::uint8_t> packed(packed_bytes(packing, rows, cols));
    pack(type, w.data(), dtype_bytes(type, cols), rows, cols, 0, (rows + 15) / 16, packed.data());
    const auto x = ramp(tokens * cols);
    std::vector<std::uint8_t> q(activation_bytes(tokens, cols));
    ops().quantize_activations(x.data(), cols, tokens, cols, q.data(), nullptr);
    std::vector<float> y(tokens * rows);
    for (auto _ : state)
        ops().packed_gemm(packing, packed.data(), 0, rows, cols, q.data(), nullptr, tokens, y.data(), rows);
    const double op = 2.0 * static_cast<double>(rows * cols * tokens);
    const auto bytes = static_cast<double>(packed.size());
    bytes > kBeyondCaches ? of_read_roof(state, bytes) : percent_of_roof(state, op, int8_roof());
    gigaops(state, op);
    gigabytes(state, bytes);
}

// Weights packed and activations rounded beforehand; the weights' expansion is a part of it.
void tile_gemm(benchmark::State& state, DType type, std::size_t rows, std::size_t cols) {
    const TileOps* tiles = tile_ops();
    if (tiles == nullptr) return state.SkipWithError("this backend has no tiles");
    const auto tokens = static_cast<std::size_t>(state.range(0));
    const auto w = weights(type, rows * cols);
    const Packing packing = packing_of(type);
    std::vector<std::uint8_t> packed(packed_bytes(packing, rows, cols));
    pack(type, w.data(), dtype_bytes(type, cols), rows, cols, 0, (rows + 15) / 16, packed.data());
    const auto x = ramp(tokens * cols);
    std::vector<Bf16, Aligned<Bf16>> rounded(tiles_size(tokens, cols));
    tiles->round(x.data(), cols, tokens, {rounded.data(), cols, 0, cols});
    std::vector<float, Aligned<float>> y(tokens * rows);
    for (auto _ : state)
        tiles->gemm(packing, packed.data(), 0, rows, cols, rounded.data(), tokens, false, y.data(), rows);
    of_roof(state, 2.0 * static_cast<double>(rows * cols * tokens), bf16_roof());
}

#ifdef HETERO_BENCH_DNNL
// oneDNN's product of the same shape, both operands bf16 and in the layout that it chooses: without any expansion.
void dnnl_gemm(benchmark::State& state, std::size_t rows, std::size_t cols) {
    using dnnl::memory;
    const auto tokens = static_cast<memory::dim>(state.range(0));
    const auto n = static_cast<memory::dim>(rows), k = static_cast<memory::dim>(cols);
    omp_set_num_threads(1);
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto of = [](memory::dim a, memory::dim b, memory::data_type type, memory::format_tag tag) {
        return memory::desc({a, b}, type, tag);
    };
    using Type = memory::data_type;
    using Tag = memory::format_tag;
    const dnnl::matmul::desc wanted(of(tokens, k, Type::bf16, Tag::any), of(k, n, Type::bf16, Tag::any),
                                    of(tokens, n, Type::f32, Tag::ab));
    const dnnl::matmul::primitive_desc desc(wanted, engine);
    const memory x(desc.src_desc(), engine), w(desc.weights_desc(), engine), y(desc.dst_desc(), engine);
    std::memset(x.get_data_handle(), 0, desc.src_desc().get_size());
    std::memset(w.get_data_handle(), 0, desc.weights_desc().get_size());
    const dnnl::matmul product(desc);
    for (auto _ : state) {
        product.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
        stream.wait();
    }
    of_roof(state, 2.0 * static_cast<double>(rows * cols) * static_cast<double>(tokens), bf16_roof());
}
#endif

void pack_weights(benchmark::State& state, DType type) {
    constexpr std::size_t kRows = 1536, kCols = 768;
    const auto w = weights(type, kRows * kCols);
    std::vector<std::uint8_t> packed(packed_bytes(packing_of(type), kRows, kCols));
    for (auto _ : state) pack(type, w.data(), dtype_bytes(type, kCols), kRows, kCols, 0, kRows / 16, packed.data());
    gigabytes(state, static_cast<double>(w.size()));
}

void quantize_activations(benchmark::State& state) {
    constexpr std::size_t kTokens = 64, kCols = 576;
    const auto x = ramp(kTokens * kCols);
    std::vector<std::uint8_t> q(activation_bytes(kTokens, kCols));
    for (auto _ : state) ops().quantize_activations(x.data(), kCols, kTokens, kCols, q.data(), nullptr);
    gigabytes(state, static_cast<double>(kTokens * kCols) * 4);
}
BENCHMARK(quantize_activations);

void dequantize(benchmark::State& state, DType type) {
    constexpr std::size_t kValues = 256 * 256;
    const auto w = weights(type, kValues);
    std::vector<float> y(kValues);
    for (auto _ : state) ops().dequantize(type, w.data(), y.data(), kValues);
    gigabytes(state, static_cast<double>(kValues) * 4);
}

// ---- attention: one query head of 64

void attention(benchmark::State& state, DType type, bool rounded) {
    const auto run = rounded ? prefill_attention() : ops().attention;
    if (run == nullptr) return state.SkipWithError("this backend has no attention in 16 bits");
    const auto queries = static_cast<std::size_t>(state.range(0)), keys = static_cast<std::size_t>(state.range(1));
    constexpr std::size_t kDim = 64;
    std::vector<std::uint8_t> k(dtype_bytes(type, keys * kDim)), v = k;
    const auto values = ramp(keys * kDim);
    for (auto* part : {&k, &v}) {
        if (type == DType::f32) std::memcpy(part->data(), values.data(), part->size());
        if (type == DType::f16)
            ops().f32_to_f16(values.data(), reinterpret_cast<std::uint16_t*>(part->data()), values.size());
        if (type == DType::bf16)
            ops().f32_to_bf16(values.data(), reinterpret_cast<std::uint16_t*>(part->data()), values.size());
    }
    const auto q = ramp(queries * kDim);
    std::vector<float> out(queries * kDim);
    const hetero::test::KvPages k_pages(type, k, kDim), v_pages(type, v, kDim);
    const AttentionArgs args{.q = q.data(),
                             .q_stride = kDim,
                             .k = k_pages.view(),
                             .v = v_pages.view(),
                             .out = out.data(),
                             .out_stride = kDim,
                             .n_queries = queries,
                             .kv_tokens = keys,
                             .first_position = keys - queries,
                             .window = 0,
                             .head_dim_k = kDim,
                             .head_dim_v = kDim,
                             .scale = 0.125F,
                             .softcap = 0};
    for (auto _ : state) run(args);
    const double pairs =
        static_cast<double>(queries) * (static_cast<double>(keys - queries) + (static_cast<double>(queries) + 1) / 2);
    of_roof(state, 4.0 * kDim * pairs, rounded ? bf16_roof() : f32_roof());
    gigabytes(state, static_cast<double>(k.size() + v.size()));
}

// ---- a step of decode: three query heads on each KV head of 64, keys and values beyond the L2 cache from 8192 on

struct KvFormat {
    const char* name;
    DType dtype;
    KvCodes codes;
    std::size_t k_group_tokens;  // of channels; 0: a scale for each token
    std::size_t v_group;         // dims
    bool zeros;
};
constexpr KvFormat kv_formats[] = {
    {"f16", DType::f16, KvCodes::floats, 0, 0, false}, {"bf16", DType::bf16, KvCodes::floats, 0, 0, false},
    {"f32", DType::f32, KvCodes::floats, 0, 0, false}, {"int8", DType::f16, KvCodes::i8, 0, 64, false},
    {"hk8", DType::f16, KvCodes::u8, 32, 64, false},   {"int4", DType::f16, KvCodes::u4, 0, 32, true},
    {"hk4", DType::f16, KvCodes::u4, 32, 32, true},    {"fp8_e4m3fn", DType::f16, KvCodes::e4m3fn, 0, 64, false},
};

void decode_attention(benchmark::State& state, const KvFormat& format) {
    constexpr std::size_t kDim = 64, kKvHeads = 3, kHeads = 3, kLayers = 4, kSpan = 512;
    const auto keys = static_cast<std::size_t>(state.range(0));
    const bool codes = format.codes != KvCodes::floats, half = format.codes == KvCodes::u4;
    const std::size_t row = codes ? kDim / (half ? 2 : 1) : dtype_bytes(format.dtype, kDim);
    // As the cache of a model: a page has the tiles of all layers and heads.
    const std::size_t metadata = codes ? 2 * 2 * 2 * kDim : 0, tile = 64 * row + 2 * metadata;
    const std::size_t heads = kLayers * kKvHeads, page = 2 * heads * tile;
    const std::size_t pages = (keys + 63) / 64;
    std::vector<std::byte> memory(pages * page);
    for (std::size_t i = 0; i < memory.size(); ++i)
        memory[i] = static_cast<std::byte>(i * 37 % 48);  // finite in every type
    std::vector<const std::byte*> table;
    for (std::size_t i = 0; i < pages; ++i) table.push_back(memory.data() + i * page);
    const auto q = ramp(kHeads * kDim);
    std::vector<float> parts((keys / kSpan + 1) * kHeads * (kDim + 2)), out(kDim);
    AttentionArgs args;
    args.q = q.data();
    args.n_queries = 1;
    args.head_dim_k = args.head_dim_v = kDim;
    args.scale = 0.125F;
    args.n_heads = kHeads;
    args.q_head_stride = kDim;
    const auto view = [&](std::size_t index, bool is_k) {
        KvView v;
        v.dtype = format.dtype;
        v.pages = table.data();
        v.offset = index * tile;
        v.token_stride = kDim;
        v.codes = format.codes;
        v.scale_offset = v.offset + 64 * row;
        v.zero_offset = format.zeros || (is_k && format.k_group_tokens != 0) ? v.scale_offset + metadata : 0;
        v.group_tokens = is_k ? format.k_group_tokens : 0;
        v.group = !is_k ? format.v_group : format.k_group_tokens == 0 ? (half ? 32 : kDim) : 0;
        return v;
    };
    for (auto _ : state)
        for (std::size_t head = 0; head < heads; ++head) {
            args.k = view(2 * head, true);
            args.v = view(2 * head + 1, false);
            const std::size_t spans = (keys + kSpan - 1) / kSpan;
            ops().attention_spans(args, 0, keys, kSpan, parts.data(), (keys / kSpan + 1) * (kDim + 2));
            for (std::size_t h = 0; h < kHeads; ++h)
                ops().attention_merge(parts.data() + h * (keys / kSpan + 1) * (kDim + 2), spans, kDim, out.data());
        }
    // A scale in 2 bytes for each group, with a zero twice that.
    const std::size_t k_scales = !codes ? 0 : format.k_group_tokens != 0 ? 2 * kDim * 2 : half ? 2 * 64 * 2 : 64;
    const std::size_t v_scales = !codes ? 0 : 64 * (kDim / format.v_group) * (format.zeros ? 2 : 1);
    const auto bytes = static_cast<double>(heads * pages * (2 * 64 * row + 2 * (k_scales + v_scales)));
    bytes > kBeyondCaches ? of_read_roof(state, bytes) : gigabytes(state, bytes);
}

// ---- the rest, on 64 Ki values that stay in the L2 cache

constexpr std::size_t kValues = 64 * 1024;

template <class Run>
void stream(benchmark::State& state, double bytes_per_value, Run run) {
    const auto x = ramp(kValues);
    auto y = x;
    std::vector<std::uint16_t> half(kValues, 0x3c00);
    std::vector<std::uint8_t> codes(kValues, 7);
    for (auto _ : state) {
        run(x.data(), y.data(), half.data(), codes.data());
        benchmark::ClobberMemory();
    }
    gigabytes(state, bytes_per_value * kValues);
}

void register_all() {
    struct Shape {
        const char* name;
        std::size_t rows, cols;
    };
    const auto reg = [](const std::string& name, auto function) {
        return benchmark::RegisterBenchmark(name.c_str(), function);
    };
    for (const Shape& s : {Shape{"q", 576, 576}, {"k", 192, 576}, {"gate", 1536, 576}, {"down", 576, 1536}})
        for (const DType type : {DType::q4_1, DType::q8_0, DType::f16, DType::f32})
            reg(std::string("gemm/") + std::string(dtype_info(type).name) + "/" + s.name,
                [=](benchmark::State& state) { gemm(state, type, s.rows, s.cols); })
                ->ArgName("tokens")
                ->Arg(2)
                ->Arg(8)
                ->Arg(256)
                ->Arg(512);
    reg("gemm/q8_0/head", [](benchmark::State& state) { gemm(state, DType::q8_0, 49152, 576); })
        ->ArgName("tokens")
        ->Arg(4);
    reg("gemm/q4_k/large", [](benchmark::State& state) { gemm(state, DType::q4_k, 512, 8192); })
        ->ArgName("tokens")
        ->Arg(256);
    for (const Shape& s : {Shape{"q", 576, 576}, {"k", 192, 576}, {"gate", 1536, 576}, {"down", 576, 1536}})
        for (const DType type : {DType::q4_0, DType::q4_1, DType::q5_0, DType::q8_0})
            reg(std::string("packed_gemm/") + packing_info(packing_of(type)).name + "/" + s.name,
                [=](benchmark::State& state) { packed_gemm(state, type, s.rows, s.cols); })
                ->ArgName("tokens")
                ->Arg(1)
                ->Arg(2)
                ->Arg(8)
                ->Arg(16)
                ->Arg(256);
    for (const Shape& s : {Shape{"q", 576, 576},
                           {"k", 192, 576},
                           {"gate", 1536, 576},
                           {"down", 576, 1536},
                           {"gate_1b", 8192, 2048},
                           {"down_1b", 2048, 8192}})
        for (const DType type : {DType::q4_1, DType::q8_0})
            reg(std::string("tile_gemm/") + packing_info(packing_of(type)).name + "/" + s.name,
                [=](benchmark::State& state) { tile_gemm(state, type, s.rows, s.cols); })
                ->ArgName("tokens")
                ->Arg(32)
                ->Arg(256)
                ->Arg(512);
#ifdef HETERO_BENCH_DNNL
    for (const Shape& s : {Shape{"q", 576, 576}, {"k", 192, 576}, {"gate", 1536, 576}, {"down", 576, 1536}})
        reg(std::string("dnnl_gemm/bf16/") + s.name, [=](benchmark::State& state) { dnnl_gemm(state, s.rows, s.cols); })
            ->ArgName("tokens")
            ->Arg(256)
            ->Arg(512);
#endif
    for (const DType type : {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0})
        reg(std::string("packed_gemm/") + packing_info(packing_of(type)).name + "/memory",
            [=](benchmark::State& state) { packed_gemm(state, type, 98304, 1536); })
            ->ArgName("tokens")
            ->Arg(1)
            ->Arg(16);
    for (int i = 0; i < static_cast<int>(DType::count_); ++i) {
        const auto type = static_cast<DType>(i);
        if (type == DType::i8 || type == DType::u8 || type == DType::i32) continue;
        const std::string name(dtype_info(type).name);
        reg("gemv/" + name + "/cache", [=](benchmark::State& state) { gemv(state, type, 576, 1536); });
        reg("gemv/" + name + "/memory", [=](benchmark::State& state) { gemv(state, type, 98304, 1536); });
        reg("pack/" + name, [=](benchmark::State& state) { pack_weights(state, type); });
        reg("dequantize/" + name, [=](benchmark::State& state) { dequantize(state, type); });
    }
    reg("gemv/q8_0/head", [](benchmark::State& state) { gemv(state, DType::q8_0, 49152, 576); });
    for (const DType type : {DType::f16, DType::bf16, DType::f32})
        reg("attention/" + std::string(dtype_info(type).name),
            [=](benchmark::State& state) { attention(state, type, false); })
            ->ArgNames({"queries", "keys"})
            ->Args({1, 512})
            ->Args({1, 2048})
            ->Args({1, 32768})
            ->Args({256, 256})
            ->Args({256, 2048});

    if (prefill_attention() != nullptr)
        reg("prefill_attention/f16", [](benchmark::State& state) { attention(state, DType::f16, true); })
            ->ArgNames({"queries", "keys"})
            ->Args({128, 128})
            ->Args({384, 512})
            ->Args({384, 2048});

    for (const KvFormat& format : kv_formats)
        reg(std::string("decode_attention/") + format.name, [&](benchmark::State& s) { decode_attention(s, format); })
            ->ArgName("keys")
            ->Arg(512)
            ->Arg(2048)
            ->Arg(8192)
            ->Arg(32768);

    reg("f32_to_f16", [](benchmark::State& s) {
        stream(s, 6, [](auto* x, auto*, auto* h, auto*) { ops().f32_to_f16(x, h, kValues); });
    });
    reg("f32_to_bf16", [](benchmark::State& s) {
        stream(s, 6, [](auto* x, auto*, auto* h, auto*) { ops().f32_to_bf16(x, h, kValues); });
    });
    reg("f16_to_f32", [](benchmark::State& s) {
        stream(s, 6, [](auto*, auto* y, auto* h, auto*) { ops().f16_to_f32(h, y, kValues); });
    });
    reg("bf16_to_f32", [](benchmark::State& s) {
        stream(s, 6, [](auto*, auto* y, auto* h, auto*) { ops().bf16_to_f32(h, y, kValues); });
    });
    reg("rms_norm", [](benchmark::State& s) {
        stream(s, 12, [](auto* x, auto* y, auto*, auto*) {
            for (std::size_t i = 0; i + 576 <= kValues; i += 576) ops().rms_norm(x + i, x, y + i, 576, 1e-5F);
        });
    });
    reg("rope", [](benchmark::State& s) {
        stream(s, 8, [](auto* x, auto* y, auto*, auto*) {
            ops().rope(x, y, kValues / 64, 64, {x, x + 32, 32}, 0, RopePairing::half_split);
        });
    });
    reg("rope_interleaved", [](benchmark::State& s) {
        stream(s, 8, [](auto* x, auto* y, auto*, auto*) {
            ops().rope(x, y, kValues / 64, 64, {x, x + 32, 32}, 0, RopePairing::interleaved);
        });
    });
    reg("silu_mul", [](benchmark::State& s) {
        stream(s, 12, [](auto* x, auto* y, auto*, auto*) { ops().silu_mul(x, x, y, kValues); });
    });
    reg("add",
        [](benchmark::State& s) { stream(s, 12, [](auto* x, auto* y, auto*, auto*) { ops().add(x, y, kValues); }); });
    reg("quantize_i8", [](benchmark::State& s) {
        stream(s, 5, [](auto* x, auto*, auto*, auto* q) {
            ops().quantize_i8(x, 0.01F, reinterpret_cast<std::int8_t*>(q), kValues);
        });
    });
    reg("min_max", [](benchmark::State& s) {
        stream(s, 4, [](auto* x, auto*, auto*, auto*) {
            float low = 0, high = 0;
            benchmark::DoNotOptimize(ops().min_max(x, kValues, &low, &high));
        });
    });
}

}  // namespace

int main(int argc, char** argv) {
    if (const char* error = backend_error()) {
        std::fprintf(stderr, "bench_kernels: %s\n", error);
        return 4;
    }
    benchmark::AddCustomContext("backend", ops().name);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    register_all();
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
