// Tensor parallelism among threads: every family, several numbers of ranks, the bits of a single process.
#include <algorithm>
#include <cstring>
#include <map>

#include "engine/share.h"
#include "kv/convert.h"
#include "kv/reshard_plan.h"
#include "support.h"
#include "support/thread_group.h"

using namespace hetero;
using namespace hetero::test;

namespace {

const std::string models[] = {"llama/f32",        "llama/bf16",       "llama3_rope/bf16",     "qwen2/bf16",
                              "qwen3/bf16",       "mistral_swa/bf16", "gemma2/bf16",          "gemma3_text/bf16",
                              "phi3/bf16",        "gpt_neox/bf16",    "mixtral/bf16",         "qwen3_moe/bf16",
                              "deepseek_v2/bf16", "deepseek_v3/bf16", "gguf/llama-q8_0.gguf", "gguf/qwen3-q4_0.gguf"};
constexpr int steps = 6;

std::vector<TokenId> prompt_of(std::size_t length) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>((i * 37 + 11) % 500));
    return tokens;
}

struct Setup {
    DType kv_dtype = DType::f16;
    std::uint32_t chunk_tokens = 16;
    int threads = 1;
    engine::Precision precision = engine::Precision::precise;
};

std::unique_ptr<Session> make_rank(const std::shared_ptr<const model::Model>& model, Communicator& group,
                                   const Setup& setup, std::uint64_t capacity) {
    engine::Options options;
    options.threads = setup.threads;
    options.kv_dtype = setup.kv_dtype;
    options.chunk_tokens = setup.chunk_tokens;
    options.precision = setup.precision;
    options.group = &group;
    return must(Session::create(model, options, capacity));
}

struct Run {
    std::vector<float> logits;      // of the prompt [token][vocab], then of each step [vocab]
    std::vector<kv::Layer> layers;  // after the prompt, all heads
};

void decode_steps(Session& session, std::vector<float>& logits) {
    const std::size_t vocab = session.model().config.vocab_size;
    for (int i = 0; i < steps; ++i) {
        const TokenId next = engine::argmax(std::span(logits).last(vocab));
        const std::span<const float> step = must(session.decode(next));
        logits.insert(logits.end(), step.begin(), step.end());
    }
}

Run run(Session& session, const std::vector<TokenId>& prompt) {
    Run out;
    must(session.prefill(prompt, engine::Logits::all, [&](std::uint64_t, std::span<const float> row) -> Status {
        out.logits.insert(out.logits.end(), row.begin(), row.end());
        return {};
    }));
    for (std::uint32_t layer = 0; layer < session.model().config.n_layers; ++layer) {
        out.layers.push_back(must(session.gather_layer(layer)));
    }
    decode_steps(session, out.logits);
    return out;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same(const std::vector<kv::Layer>& a, const std::vector<kv::Layer>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const kv::Layer& x, const kv::Layer& y) {
        return x.k.values.shape == y.k.values.shape && x.k.values.bytes == y.k.values.bytes &&
               x.v.values.shape == y.v.values.shape && x.v.values.bytes == y.v.values.bytes;
    });
}

kv::Header header_of(const model::Model& model) {
    kv::Header header;
    header.identity = engine::identity_of(model, Digest{});
    header.layer_shapes = engine::layer_shapes(model);
    return header;
}

Run single(const std::shared_ptr<const model::Model>& model, const Setup& setup, const std::vector<TokenId>& prompt) {
    return run(*make_rank(model, single_process(), setup, prompt.size() + steps), prompt);
}

// The bytes of some heads of a part [token][head][dim].
std::vector<std::byte> slice(const kv::Tensor& values, std::size_t first, std::size_t count) {
    const std::size_t row = values.bytes.size() / (values.shape[0] * values.shape[1]);
    std::vector<std::byte> out;
    for (std::size_t token = 0; token < values.shape[0]; ++token) {
        const auto at = values.bytes.begin() + static_cast<std::ptrdiff_t>((token * values.shape[1] + first) * row);
        out.insert(out.end(), at, at + static_cast<std::ptrdiff_t>(count * row));
    }
    return out;
}

}  // namespace

TEST_CASE("rows and heads are divided without gaps") {
    using engine::Range;
    using engine::Share;
    for (const std::size_t n : {1U, 15U, 16U, 64U, 100U, 576U, 49152U}) {
        for (int size = 1; size <= 9; ++size) {
            std::size_t done = 0;
            for (int rank = 0; rank < size; ++rank) {
                const Range rows = Share(static_cast<std::size_t>(rank), static_cast<std::size_t>(size)).rows(n);
                CHECK(rows.begin == done);
                CHECK((rows.end % 16 == 0 || rows.end == n));
                CHECK(rows.size() * static_cast<std::size_t>(size) <= n + 32U * static_cast<std::size_t>(size));
                done = rows.end;
            }
            CHECK(done == n);
        }
    }
    struct Heads {
        std::size_t query, kv;
    };
    for (const Heads heads : {Heads{9, 3}, Heads{4, 2}, Heads{8, 8}, Heads{32, 8}, Heads{4, 1}}) {
        for (int size = 1; static_cast<std::size_t>(size) <= heads.query; ++size) {
            std::size_t done = 0, kv_done = 0;
            for (int rank = 0; rank < size; ++rank) {
                const Range query =
                    Share(static_cast<std::size_t>(rank), static_cast<std::size_t>(size)).heads(heads.query);
                const Range kept = Share(static_cast<std::size_t>(rank), static_cast<std::size_t>(size))
                                       .kv_heads(heads.query, heads.kv);
                CHECK(query.begin == done);
                CHECK(query.size() > 0);
                done = query.end;
                for (std::size_t head = query.begin; head < query.end; ++head) {
                    const std::size_t read = head / (heads.query / heads.kv);
                    CHECK(kept.begin <= read);
                    CHECK(read < kept.end);
                }
                CHECK(kept.begin <= kv_done);  // shared with the rank before, or next to it
                kv_done = kept.end;
            }
            CHECK(done == heads.query);
            CHECK(kv_done == heads.kv);
        }
    }
}

TEST_CASE("ranks compute the bits of a single process") {
    const auto prompt = prompt_of(37);
    for (const std::string& name : models) {
        const auto model = tiny_model(name);
        for (const Setup& setup :
             {Setup{DType::f16, 16, 1}, Setup{DType::f32, 64, 2}, Setup{DType::f16, 16, 1, engine::Precision::fast}}) {
            const Run alone = single(model, setup, prompt);
            for (const int size : {1, 2, 3, 4}) {  // 3 cuts groups of heads, 4 is more than there are KV heads
                CAPTURE(name);
                CAPTURE(size);
                std::vector<Run> runs(static_cast<std::size_t>(size));
                ThreadGroup(size).run([&](Communicator& group) {
                    const auto session = make_rank(model, group, setup, prompt.size() + steps);
                    runs[static_cast<std::size_t>(group.rank())] = run(*session, prompt);
                });
                for (const Run& one : runs) CHECK(same(one.logits, alone.logits));
                CHECK(same(runs[0].layers, alone.layers));
                for (std::size_t rank = 1; rank < runs.size(); ++rank) CHECK(runs[rank].layers[0].k.values.empty());
            }
        }
    }
}

TEST_CASE("a state made by some ranks is continued by another number of them") {
    const auto prompt = prompt_of(29);
    for (const std::string& name : models) {
        const auto model = tiny_model(name);
        const Run alone = single(model, {}, prompt);
        const kv::Header header = header_of(*model);
        const std::size_t vocab = model->config.vocab_size;
        for (const int size : {1, 2, 3, 4}) {
            CAPTURE(name);
            CAPTURE(size);
            ThreadGroup(size).run([&](Communicator& group) {
                const auto whole = make_rank(model, group, {}, prompt.size() + steps);
                for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
                    must(whole->import_layer(header, layer, alone.layers[layer], prompt.size()));
                }
                std::vector<float> logits(alone.logits.begin(),
                                          alone.logits.begin() + static_cast<std::ptrdiff_t>(prompt.size() * vocab));
                decode_steps(*whole, logits);
                CHECK(same(logits, alone.logits));

                // A rank's own heads go out and come in.
                must(whole->truncate(prompt.size()));
                kv::Header own = header;
                own.shard = whole->shard();
                const auto again = make_rank(model, group, {}, prompt.size() + steps);
                for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
                    const kv::Layer part = must(whole->export_layer(layer));
                    if (size > 1) {
                        CHECK(part.k.values.bytes ==
                              slice(alone.layers[layer].k.values, own.shard.head_first, own.shard.head_count));
                        CHECK(part.v.values.bytes ==
                              slice(alone.layers[layer].v.values, own.shard.head_first, own.shard.head_count));
                    }
                    must(again->import_layer(own, layer, part, prompt.size()));
                }
                logits.resize(prompt.size() * vocab);
                decode_steps(*again, logits);
                CHECK(same(logits, alone.logits));
            });
        }
    }
}

TEST_CASE("a quantized state is decoded to the same bits by any number of ranks") {
    const auto prompt = prompt_of(29);
    const auto model = tiny_model("qwen3/bf16");
    kv::Header header = header_of(*model);
    const Run alone = single(model, {}, prompt);
    kv::Scheme scheme;
    scheme.codec = "int8";
    scheme.source_dtype = DType::f16;
    std::vector<kv::Layer> quantized;
    for (const kv::Layer& layer : alone.layers) {
        kv::Layer& out = quantized.emplace_back();
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            const auto values = must(kv::decode_part(header, layer.part(id), prompt.size(), id));
            out.part(id) = must(kv::encode_part(header, scheme, prompt.size(), id, values));
        }
    }
    header.k_schemes.assign(model->config.n_layers, scheme);
    header.v_schemes = header.k_schemes;
    std::vector<float> expected;
    for (const int size : {1, 2, 4}) {
        ThreadGroup(size).run([&](Communicator& group) {
            const auto session = make_rank(model, group, {}, prompt.size() + steps);
            for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
                must(session->import_layer(header, layer, quantized[layer], prompt.size()));
            }
            std::vector<float> logits(model->config.vocab_size);
            decode_steps(*session, logits);
            if (size == 1) expected = logits;
            CHECK(same(logits, expected));
        });
    }
}

TEST_CASE("each rank keeps its heads only") {
    const auto model = tiny_model("gpt_neox/bf16");  // as many KV heads as query heads
    ThreadGroup(4).run([&](Communicator& group) {
        const auto session = make_rank(model, group, {}, 8);
        const kv::Shard shard = session->shard();
        CHECK(shard.tp_size == 4);
        CHECK(shard.tp_rank == static_cast<std::uint32_t>(group.rank()));
        CHECK(shard.head_first == static_cast<std::uint32_t>(group.rank()));
        CHECK(shard.head_count == 1);
        must(session->prefill(prompt_of(5), engine::Logits::none, {}));
        CHECK(must(session->export_layer(0)).k.values.shape == std::vector<std::uint64_t>{5, 1, 16});
    });
}

TEST_CASE("more ranks than heads, and heads that are not there, are refused") {
    const auto model = tiny_model();
    ThreadGroup(5).run([&](Communicator& group) {
        engine::Options options;
        options.group = &group;
        const Error error = error_of(Session::create(model, options, 8));
        CHECK(error.code == Errc::usage);
        CHECK(has(error, "5 ranks"));
        CHECK(has(error, "4 attention heads"));
    });
    const auto alone = single(model, {}, prompt_of(4));
    ThreadGroup(2).run([&](Communicator& group) {
        const auto session = make_rank(model, group, {}, 8);
        kv::Header header = header_of(*model);
        header.shard = {2, 1, 1, 1};
        kv::Layer second;
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            kv::Part& part = second.part(id);
            part = alone.layers[0].part(id);
            part.values.bytes = slice(part.values, 1, 1);
            part.values.shape[1] = 1;
        }
        const Status imported = session->import_layer(header, 0, second, 4);
        if (group.rank() == 1) return must(imported);
        CHECK(error_of(imported).code == Errc::bad_input);
        CHECK(has(error_of(imported), "the state has the KV heads 1 to 1, here 0 to 0 are needed"));
    });
}

TEST_CASE("an error of one rank reaches the others") {
    const auto scaled = scaled_model(1, Target::k, 1e6F);  // K overflows f16
    ThreadGroup(2).run([&](Communicator& group) {
        const auto session = make_rank(scaled->model, group, {}, 8);
        const Status done = session->prefill(prompt_of(5), engine::Logits::none, {});
        const Error error = error_of(done);
        // Which of the two met a value first, and which was left alone, is open.
        CHECK((error.code == Errc::bad_input || error.code == Errc::peer));
        if (error.code == Errc::bad_input) CHECK(has(error, fmt::format("layer 1, K, token 0, head {}", group.rank())));
    });
}

TEST_CASE("a rank computes with the KV heads that states of so many ranks give it") {
    for (std::uint32_t n_kv_heads = 1; n_kv_heads <= 6; ++n_kv_heads) {
        for (std::uint32_t group = 1; group <= 4; ++group) {
            const kv::HeadCounts counts{n_kv_heads * group, n_kv_heads};
            for (std::uint32_t size = 1; size <= counts.n_heads; ++size) {
                for (std::uint32_t rank = 0; rank < size; ++rank) {
                    const engine::Range own = engine::Share(rank, size).kv_heads(counts.n_heads, n_kv_heads);
                    const kv::HeadRange held = kv::heads_of(counts, size, rank);
                    CHECK(own.begin == held.first);
                    CHECK(own.end == held.end());
                }
            }
        }
    }
}
