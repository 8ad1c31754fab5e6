// Tiny random llamas, from every container and weight type, against fp32 goldens: logits of every position, K and V,
// greedy continuations; and what must not change the result: chunks, threads, a trip through a state.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "golden/runs.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace {

using namespace hetero;
using namespace hetero::test;

constexpr int lengths[] = {1, 7, 33, 129};
// Two correct fp32 programs differ by up to 1e-4 here, typical mistakes move the logits by 0.06 and more.
constexpr double logit_tolerance = 1e-3;
constexpr double kv_tolerance = 1e-4;  // relative to the largest element of the part: fp32 noise

struct Case {
    std::string model, golden;
    bool has_kv = true;  // goldens of K and V are there
};
const Case cases[] = {
    {"golden/tiny/llama/f32", "golden/tiny/llama/f32/golden.safetensors"},
    {"golden/tiny/llama/bf16", "golden/tiny/llama/bf16/golden.safetensors"},
    {"golden/tiny/llama3_rope/f32", "golden/tiny/llama3_rope/f32/golden.safetensors"},
    {"golden/tiny/llama3_rope/bf16", "golden/tiny/llama3_rope/bf16/golden.safetensors"},
    {"golden/tiny/gguf/llama-f32.gguf", "golden/tiny/llama/f32/golden.safetensors"},
    {"golden/tiny/gguf/llama-q8_0.gguf", "golden/tiny/gguf/llama-q8_0.golden.safetensors", false},
    {"golden/tiny/gguf/llama3_rope-f16.gguf", "golden/tiny/gguf/llama3_rope-f16.golden.safetensors", false},
};

std::shared_ptr<const model::Model> load(const std::string& relative) {
    return must(model::Model::load(testdata(relative)));
}

std::string key(int length, const std::string& name) { return fmt::format("p{}.{}", length, name); }

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
        if (!(difference <= largest)) largest = difference;  // NaN stays, and compares false with any tolerance
        if (std::isnan(difference)) break;
    }
    return largest;
}

// Golden parts are [kv_head][token][head_dim], ours [token][kv_head][head_dim].
std::vector<float> token_major(const std::vector<float>& golden, const std::vector<std::size_t>& shape) {
    std::vector<float> out(golden.size());
    const std::size_t heads = shape[0], tokens = shape[1], dim = shape[2];
    for (std::size_t head = 0; head < heads; ++head) {
        for (std::size_t token = 0; token < tokens; ++token) {
            std::copy_n(&golden[(head * tokens + token) * dim], dim, &out[(token * heads + head) * dim]);
        }
    }
    return out;
}

// Half the distance between neighbours of `value` in a type with `mantissa_bits` and normal numbers from
// 2^min_exponent.
double half_ulp(double value, int mantissa_bits, int min_exponent) {
    const int exponent = value == 0 ? min_exponent : std::max(min_exponent, std::ilogb(value));
    return std::ldexp(0.5, exponent - mantissa_bits);
}

std::vector<std::byte> state_bytes(const engine::Session& session) {
    std::vector<std::byte> bytes;
    for (std::uint32_t layer = 0; layer < session.model().config.n_layers; ++layer) {
        const kv::Layer exported = must(session.export_layer(layer));
        bytes.insert(bytes.end(), exported.k.values.bytes.begin(), exported.k.values.bytes.end());
        bytes.insert(bytes.end(), exported.v.values.bytes.begin(), exported.v.values.bytes.end());
    }
    return bytes;
}

struct Run {
    std::vector<float> logits;  // of the prompt [token][vocab], then of each step [vocab]
    std::vector<TokenId> greedy;
    std::vector<std::byte> state;  // after prefill
    friend bool operator==(const Run&, const Run&) = default;
};

Run run(const std::shared_ptr<const model::Model>& model, const std::vector<TokenId>& prompt, DType dtype,
        std::uint32_t chunk_tokens, int threads, int steps) {
    const auto session =
        make_session(model, dtype, prompt.size() + static_cast<std::size_t>(steps), chunk_tokens, threads);
    Run out;
    out.logits = prefill_all(*session, prompt);
    out.state = state_bytes(*session);
    const std::size_t vocab = model->config.vocab_size;
    std::span<const float> last(out.logits.data() + (prompt.size() - 1) * vocab, vocab);
    TokenId next = engine::argmax(last);
    for (int i = 0; i < steps; ++i) {
        out.greedy.push_back(next);
        last = must(session->decode(next));
        out.logits.insert(out.logits.end(), last.begin(), last.end());
        next = engine::argmax(last);
    }
    return out;
}

double prompt_error(const std::shared_ptr<const model::Model>& model, const Golden& golden, int length,
                    std::uint32_t chunk_tokens = 256) {
    const auto prompt = golden.get<std::int32_t>(key(length, "input_ids"));
    const auto session = make_session(model, DType::f32, prompt.size(), chunk_tokens);
    return max_difference(prefill_all(*session, prompt), golden.get<float>(key(length, "logits")));
}

}  // namespace

TEST_CASE("logits of every position, and greedy continuations") {
    for (const Case& one : cases) {
        CAPTURE(one.model);
        const auto model = load(one.model);
        const Golden golden(one.golden);
        double worst = 0;
        for (const int length : lengths) {
            CAPTURE(length);
            const auto prompt = golden.get<std::int32_t>(key(length, "input_ids"));
            const auto greedy = golden.get<std::int32_t>(key(length, "greedy_ids"));
            const Run got = run(model, prompt, DType::f32, 256, 0, static_cast<int>(greedy.size()));
            auto expected = golden.get<float>(key(length, "logits"));
            const std::vector<float> prompt_logits(got.logits.begin(),
                                                   got.logits.begin() + static_cast<std::ptrdiff_t>(expected.size()));
            worst = std::max(worst, max_difference(prompt_logits, expected));
            CHECK(max_difference(prompt_logits, expected) <= logit_tolerance);
            CHECK(got.greedy == greedy);
            // The logits that chose the last greedy token: prefill and all decode steps stand behind them.
            const std::size_t vocab = model->config.vocab_size;
            const auto at = static_cast<std::ptrdiff_t>((prompt.size() + greedy.size() - 2) * vocab);
            const std::vector<float> last(got.logits.begin() + at,
                                          got.logits.begin() + at + static_cast<std::ptrdiff_t>(vocab));
            CHECK(max_difference(last, golden.get<float>(key(length, "greedy_last_logits"))) <= logit_tolerance);
        }
        MESSAGE(one.model, ": max |d logit| ", worst);
    }
}

TEST_CASE("K after RoPE and V, in f32") {
    for (const Case& one : cases) {
        if (!one.has_kv) continue;
        const auto model = load(one.model);
        const Golden golden(one.golden);
        for (const int length : lengths) {
            const auto prompt = golden.get<std::int32_t>(key(length, "input_ids"));
            const auto session = make_session(model, DType::f32, prompt.size());
            must(session->prefill(prompt, engine::Logits::none, {}));
            for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
                const kv::Layer exported = must(session->export_layer(layer));
                for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                    const std::string name = key(length, golden_part(id, layer));
                    CAPTURE(one.model);
                    CAPTURE(name);
                    const kv::Part& part = exported.part(id);
                    const auto expected = token_major(golden.get<float>(name), golden.shape(name));
                    CHECK(part.scheme.codec == "f32");
                    CHECK(part.values.shape ==
                          std::vector<std::uint64_t>{prompt.size(), model->config.n_kv_heads, model->config.head_dim});
                    float largest = 0;
                    for (const float value : expected) largest = std::max(largest, std::fabs(value));
                    CHECK(max_difference(part_values(part), expected) <= kv_tolerance * largest);
                }
            }
        }
    }
}

TEST_CASE("K and V in 16 bits are the goldens, rounded") {
    struct Type {
        DType dtype;
        int mantissa_bits, min_exponent;
    };
    for (const Type type : {Type{DType::f16, 10, -14}, Type{DType::bf16, 7, -126}}) {
        double largest = 0;  // relative L2, in units of the largest rounding
        for (const Case& one : cases) {
            if (!one.has_kv) continue;
            const auto model = load(one.model);
            const Golden golden(one.golden);
            const int length = 129;
            const auto prompt = golden.get<std::int32_t>(key(length, "input_ids"));
            const auto session = make_session(model, type.dtype, prompt.size());
            must(session->prefill(prompt, engine::Logits::none, {}));
            for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
                const kv::Layer exported = must(session->export_layer(layer));
                for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                    const std::string name = key(length, golden_part(id, layer));
                    CAPTURE(one.model);
                    CAPTURE(name);
                    const auto expected = token_major(golden.get<float>(name), golden.shape(name));
                    const auto got = part_values(exported.part(id));
                    REQUIRE(got.size() == expected.size());
                    double error2 = 0, norm2 = 0, worst_excess = 0;
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
                        error2 += error * error;
                        norm2 += static_cast<double>(expected[i]) * expected[i];
                        worst_excess = std::max(worst_excess,
                                                error - half_ulp(expected[i], type.mantissa_bits, type.min_exponent));
                    }
                    if (layer == 0) {
                        // Nothing before it was rounded: half an ulp and fp32 noise.
                        CHECK(worst_excess <= kv_tolerance);
                    }
                    // Deeper layers are computed from rounded K and V: their own rounding, and what the
                    // roundings before them leave after the softmax.
                    const double relative = std::sqrt(error2 / norm2) * std::ldexp(1.0, type.mantissa_bits + 1);
                    CHECK(relative <= (layer == 0 ? 1.0 : 4.0));
                    largest = std::max(largest, relative);
                }
            }
        }
        MESSAGE(std::string(kernels::dtype_info(type.dtype).name), ": relative L2 up to ", largest, " half ulps");
    }
}

TEST_CASE("chunk sizes of prefill do not matter beyond rounding") {
    for (const Case& one : cases) {
        CAPTURE(one.model);
        const auto model = load(one.model);
        const Golden golden(one.golden);
        for (const std::uint32_t chunk_tokens : {1U, 5U, 32U}) {
            CAPTURE(chunk_tokens);
            CHECK(prompt_error(model, golden, 129, chunk_tokens) <= logit_tolerance);
        }
    }
}

TEST_CASE("the number of threads does not change a bit") {
    for (const Case& one : cases) {
        CAPTURE(one.model);
        const auto model = load(one.model);
        const auto prompt = Golden(one.golden).get<std::int32_t>(key(129, "input_ids"));
        for (const std::uint32_t chunk_tokens : {1U, 50U}) {
            const Run single = run(model, prompt, DType::f16, chunk_tokens, 1, 8);
            for (const int threads : {2, 3}) {
                CAPTURE(threads);
                CHECK((run(model, prompt, DType::f16, chunk_tokens, threads, 8) == single));
            }
        }
    }
}

TEST_CASE("decoding from an imported state gives the bits of the session that prefilled") {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
        const auto model = load("golden/tiny/llama/bf16");
        const Golden golden("golden/tiny/llama/bf16/golden.safetensors");
        const auto prompt = golden.get<std::int32_t>(key(33, "input_ids"));
        const auto source = make_session(model, dtype, 64), target = make_session(model, dtype, 50, 7);
        TokenId next = engine::argmax(prefill_last(*source, prompt));
        kv::Header header;
        header.identity = engine::identity_of(*model, Digest{});
        for (const std::uint32_t layer : {2U, 0U, 1U}) {
            must(target->import_layer(header, layer, must(source->export_layer(layer)), prompt.size()));
        }
        CHECK(target->position() == prompt.size());
        CHECK((state_bytes(*target) == state_bytes(*source)));
        for (int step = 0; step < 10; ++step) {
            const std::span<const float> expected = must(source->decode(next));
            const std::span<const float> got = must(target->decode(next));
            REQUIRE(std::memcmp(expected.data(), got.data(), expected.size_bytes()) == 0);
            next = engine::argmax(got);
        }
        CHECK((state_bytes(*target) == state_bytes(*source)));
    }
}

TEST_CASE("both styles of config.json describe the same model") {
    namespace fs = std::filesystem;
    for (const std::string name : {"llama/f32", "llama/bf16", "llama3_rope/f32", "llama3_rope/bf16"}) {
        CAPTURE(name);
        const std::string relative = "golden/tiny/" + name;
        const TempDir folder;
        for (const auto& entry : fs::directory_iterator(testdata(relative))) {
            const std::string file = entry.path().filename().string();
            if (file == "config.json") continue;
            fs::create_symlink(entry.path(), folder / (file == "config.v5.json" ? "config.json" : file));
        }
        const auto published = load(relative), rewritten = must(model::Model::load(folder.path()));
        CHECK(rewritten->arch_digest == published->arch_digest);
        CHECK(rewritten->lineage == published->lineage);
        CHECK(prompt_error(rewritten, Golden(relative + "/golden.safetensors"), 129) <= logit_tolerance);
    }
}

TEST_CASE("a truncated session computes the same bits again") {
    const auto model = load("golden/tiny/llama3_rope/f32");
    const auto prompt =
        Golden("golden/tiny/llama3_rope/f32/golden.safetensors").get<std::int32_t>(key(33, "input_ids"));
    const auto session = make_session(model, DType::f32, 64);
    const auto first = prefill_last(*session, prompt);
    const std::span<const float> step = must(session->decode(17));
    const std::vector<float> after(step.begin(), step.end());
    session->truncate(prompt.size());
    const std::span<const float> again = must(session->decode(17));
    CHECK((std::vector<float>(again.begin(), again.end()) == after));
    session->truncate(0);
    CHECK((prefill_last(*session, prompt) == first));
}

// The tolerance is worth what it catches: a model that is wrong in one of the usual ways must miss it.
TEST_CASE("typical mistakes exceed the tolerance") {
    struct Mistake {
        const char* name;
        void (*make)(model::Program&);
        bool without_scaling_too;  // also a mistake where RoPE is not scaled
    };
    const Mistake mistakes[] = {
        {"wrong RoPE pairing",
         [](model::Program& program) {
             auto& pairing = program.ropes[0].pairing;
             pairing = pairing == kernels::RopePairing::half_split ? kernels::RopePairing::interleaved
                                                                   : kernels::RopePairing::half_split;
         },
         true},
        {"RoPE base", [](model::Program& program) { program.ropes[0].theta *= 1.2; }, true},
        {"RoPE scaling ignored",
         [](model::Program& program) {
             program.ropes[0].scaling = model::RopeScalingKind::none;
             program.ropes[0].frequency_divisors.clear();
         },
         false},
        {"norm epsilon",
         [](model::Program& program) {
             for (model::Op& op : program.ops) {
                 if (auto* norm = std::get_if<model::RmsNorm>(&op)) norm->eps *= 1000;
             }
         },
         true},
        {"attention scale",
         [](model::Program& program) {
             for (model::Op& op : program.ops) {
                 if (auto* attention = std::get_if<model::Attention>(&op)) attention->scale *= 0.99F;
             }
         },
         true},
        {"gate and up exchanged",
         [](model::Program& program) {
             for (model::Op& op : program.ops) {
                 if (auto* ffn = std::get_if<model::GatedFfnAdd>(&op)) std::swap(ffn->gate, ffn->up);
             }
         },
         true},
        {"K and V exchanged",
         [](model::Program& program) {
             for (model::Op& op : program.ops) {
                 if (auto* qkv = std::get_if<model::Qkv>(&op)) std::swap(qkv->k, qkv->v);
             }
         },
         true},
    };
    for (const Case& one : cases) {
        const auto right = load(one.model);
        const Golden golden(one.golden);
        const model::RopeConfig& rope = right->config.rope;
        const bool scaled = rope.scaling != model::RopeScalingKind::none || !rope.frequency_divisors.empty();
        for (const Mistake& mistake : mistakes) {
            if (!scaled && !mistake.without_scaling_too) continue;
            CAPTURE(one.model);
            CAPTURE(mistake.name);
            auto wrong = std::make_shared<model::Model>(*right);
            mistake.make(wrong->program);
            CHECK(prompt_error(wrong, golden, 129) > 10 * logit_tolerance);
        }
    }
}
