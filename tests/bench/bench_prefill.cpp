// Prefill of a whole model, end to end: bench_prefill MODEL [--benchmark_...]. The model is loaded and its weights are
// packed beforehand; tokens are arbitrary. HETERO_BACKEND chooses the backend.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <vector>

#include "engine/session.h"
#include "model/model.h"

using namespace hetero;

namespace {

void prefill(benchmark::State& state, const std::shared_ptr<const model::Model>& model) {
    const auto n_tokens = static_cast<std::size_t>(state.range(0));
    engine::Options options;
    options.threads = static_cast<int>(state.range(1));
    options.chunk_tokens = static_cast<std::uint32_t>(state.range(2));
    options.precision = engine::Precision::fast;
    if (state.range(3) != 0) options.block_tokens = engine::default_block_tokens;
    const auto session = engine::Session::create(model, options, n_tokens);
    if (!session) return state.SkipWithError(session.error().message.c_str());
    std::vector<engine::TokenId> tokens(n_tokens);
    for (std::size_t i = 0; i < n_tokens; ++i)
        tokens[i] = static_cast<engine::TokenId>(i * 7919 % model->config.vocab_size);
    if (state.range(3) != 0) (*session)->observe_layers([](std::uint32_t, std::uint64_t) { return Status{}; });
    const auto ignore = [](std::uint64_t, std::span<const float>) { return Status{}; };
    for (auto _ : state) {
        Status done = (*session)->truncate(0);
        if (done) done = (*session)->prefill(tokens, engine::Logits::last, ignore);
        if (!done) return state.SkipWithError(done.error().message.c_str());
    }
    state.counters["tokens/s"] = benchmark::Counter(
        static_cast<double>(n_tokens) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (argc != 2) {
        std::fprintf(stderr, "usage: bench_prefill MODEL [--benchmark_...]\n");
        return 2;
    }
    const auto model = model::Model::load(argv[1]);
    if (!model) {
        std::fprintf(stderr, "bench_prefill: %s\n", model.error().message.c_str());
        return 1;
    }
    benchmark::RegisterBenchmark("prefill", [&](benchmark::State& state) { prefill(state, *model); })
        ->ArgNames({"tokens", "threads", "chunk", "by_layer"})
        ->ArgsProduct({{512, 2048}, {1, 2}, {256, 512, 1024}, {0, 1}})
        ->Unit(benchmark::kMillisecond)
        ->MeasureProcessCPUTime()
        ->UseRealTime();
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
