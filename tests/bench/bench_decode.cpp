// A model's decode at a long context with K and V in each resident type, and of several sequences together.
//   bench_decode MODEL [THREADS [CONTEXT [SEQUENCES]]]        default: 1 8000 16
// All types take turns, step by step, so that a noisy neighbour moves all of them; medians of their steps. `attention`
// is a step less a step with an empty context; GB/s: the bytes of K and V over it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/statistics.h"
#include "engine/session.h"
#include "kernels/api/ops.h"

using namespace hetero;
using engine::Session;

namespace {

constexpr int rounds = 30;

[[noreturn]] void give_up(const Error& error) {
    std::fprintf(stderr, "bench_decode: %s\n", error.message.c_str());
    std::exit(1);
}
void must(Status status) {
    if (!status) give_up(status.error());
}
template <class T>
T must(Result<T> result) {
    if (!result) give_up(result.error());
    return std::move(*result);
}

engine::TokenId token_at(std::uint64_t position) { return static_cast<engine::TokenId>(100 + position * 7919 % 40000); }

std::vector<engine::TokenId> text_of(std::uint64_t n) {
    std::vector<engine::TokenId> tokens;
    for (std::uint64_t i = 0; i < n; ++i) tokens.push_back(token_at(i));
    return tokens;
}

template <class Run>
double milliseconds(Run run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    return milliseconds_since(start);
}
double step(Session& session) {
    return milliseconds([&] { must(session.decode(token_at(session.position()))); });
}

struct Resident {
    const char* name;
    std::unique_ptr<Session> full, empty;
    std::vector<double> with_context = {}, without = {};
    double kv_bytes = 0;
};

double part_bytes(const kv::Part& part) {
    return static_cast<double>(part.values.bytes.size() + part.scale.bytes.size() + part.zero.bytes.size());
}

Resident resident(const std::shared_ptr<const model::Model>& model, engine::Options options, const char* name,
                  std::uint64_t capacity, const Session* source) {
    options.sequences = 2;
    if (std::string(name) != "f16") options.kv_codecs = must(engine::resident_codecs(name));
    Resident made{name, must(Session::create(model, options, capacity)), nullptr};
    if (source == nullptr) {
        must(made.full->prefill(text_of(capacity - 2 * rounds), engine::Logits::none, {}));
    } else {
        kv::Header header;
        header.identity = engine::identity_of(*model, Digest{});
        header.layer_shapes = engine::layer_shapes(*model);
        for (std::uint32_t layer = 0; layer < header.identity.n_layers; ++layer)
            must(made.full->import_layer(header, layer, must(source->export_layer(layer)), source->position()));
    }
    const kv::Layer first = must(made.full->export_layer(0));
    made.kv_bytes = (part_bytes(first.k) + part_bytes(first.v)) * model->config.n_layers;
    made.empty = must(made.full->fork(0));
    return made;
}

void resident_types(const std::shared_ptr<const model::Model>& model, const engine::Options& options,
                    std::uint64_t context) {
    std::vector<Resident> all;
    for (const char* name : {"f16", "int8", "int8-channel", "int4", "int4-channel", "fp8_e4m3fn"})
        all.push_back(resident(model, options, name, context + 2 * rounds, all.empty() ? nullptr : all[0].full.get()));
    for (int round = 0; round < rounds; ++round)
        for (Resident& one : all) {
            one.with_context.push_back(step(*one.full));
            one.without.push_back(step(*one.empty));
        }
    std::printf("%-14s %9s %9s %7s %11s %7s %7s\n", "K and V", "step ms", "tokens/s", "x f16", "attention", "x f16",
                "GB/s");
    double f16_step = 0, f16_attention = 0;
    for (const Resident& one : all) {
        const double ms = percentile(one.with_context, 50), attention = ms - percentile(one.without, 50);
        if (f16_step == 0) f16_step = ms, f16_attention = attention;
        std::printf("%-14s %9.2f %9.1f %7.2f %8.2f ms %7.2f %7.1f\n", one.name, ms, 1e3 / ms, f16_step / ms, attention,
                    f16_attention / attention, one.kv_bytes / attention / 1e6);
    }
}

// Of all products of a token.
double weights_of(const model::Model& model) {
    double weights = 0;
    for (const model::Op& any : model.program.ops) {
        const auto count = [&](const model::Matrix& m) {
            weights += static_cast<double>(m.rows) * static_cast<double>(m.cols);
        };
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            count(qkv->q), count(qkv->k), count(qkv->v);
        } else if (const auto* add = std::get_if<model::ProjectAdd>(&any)) {
            count(add->weight);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            count(ffn->gate), count(ffn->up), count(ffn->down);
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            count(head->weight);
        }
    }
    return weights;
}

void batches(const std::shared_ptr<const model::Model>& model, engine::Options options, std::size_t largest) {
    constexpr std::uint64_t prompt = 64;
    options.sequences = static_cast<std::uint32_t>(largest);
    const auto root = must(Session::create(model, options, prompt + 8 * rounds));
    std::vector<std::unique_ptr<Session>> sequences;
    std::vector<std::size_t> sizes;
    for (std::size_t n = 1; n <= largest; n *= 2) sizes.push_back(n);
    for (std::size_t i = 0; i < largest; ++i) {
        sequences.push_back(i == 0 ? nullptr : must(root->fork(0)));
        must((i == 0 ? *root : *sequences[i]).prefill(text_of(prompt), engine::Logits::none, {}));
    }
    std::vector<std::vector<double>> times(sizes.size());
    for (int round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            std::vector<Session::Step> steps;
            for (std::size_t s = 0; s < sizes[i]; ++s) {
                Session* session = s == 0 ? root.get() : sequences[s].get();
                steps.push_back({session, token_at(session->position() + s)});
            }
            times[i].push_back(milliseconds([&] {
                must(Session::decode_together(steps, [](std::size_t, std::span<const float>) { return Status{}; }));
            }));
        }
    std::printf("%-14s %9s %9s %7s %9s\n", "sequences", "step ms", "tokens/s", "x 1", "GOP/s");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const double ms = percentile(times[i], 50), n = static_cast<double>(sizes[i]);
        std::printf("%-14zu %9.2f %9.1f %7.2f %9.1f\n", sizes[i], ms, n * 1e3 / ms, n * percentile(times[0], 50) / ms,
                    2 * n * weights_of(*model) / ms / 1e6);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 5) {
        std::fprintf(stderr, "usage: bench_decode MODEL [THREADS [CONTEXT [SEQUENCES]]]\n");
        return 2;
    }
    const auto number = [&](int i, long otherwise) { return argc > i ? std::strtol(argv[i], nullptr, 10) : otherwise; };
    const auto model = must(model::Model::load(argv[1]));
    engine::Options options;
    options.threads = static_cast<int>(number(2, 1));
    options.precision = engine::Precision::fast;
    std::printf("%s, %s, %d threads\n", model->config.name.c_str(), kernels::ops().name, options.threads);
    if (const long context = number(3, 8000); context > 0)
        resident_types(model, options, static_cast<std::uint64_t>(context));
    if (const long sequences = number(4, 16); sequences > 0)
        batches(model, options, static_cast<std::size_t>(sequences));
}
