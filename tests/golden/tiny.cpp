// Tiny random models of every family, from every container and weight type, against fp32 goldens: logits of every
// position, K and V, greedy continuations; and what must not change the result: chunks, threads, a trip through a
// state.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>

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
    {"golden/tiny/qwen2/bf16", "golden/tiny/qwen2/bf16/golden.safetensors"},
    {"golden/tiny/qwen3/bf16", "golden/tiny/qwen3/bf16/golden.safetensors"},
    {"golden/tiny/mistral_swa/bf16", "golden/tiny/mistral_swa/bf16/golden.safetensors"},
    {"golden/tiny/gemma2/bf16", "golden/tiny/gemma2/bf16/golden.safetensors"},
    {"golden/tiny/gemma3_text/bf16", "golden/tiny/gemma3_text/bf16/golden.safetensors"},
    {"golden/tiny/phi3/bf16", "golden/tiny/phi3/bf16/golden.safetensors"},
    {"golden/tiny/gpt_neox/bf16", "golden/tiny/gpt_neox/bf16/golden.safetensors"},
    {"golden/tiny/gguf/qwen2-q8_0.gguf", "golden/tiny/gguf/qwen2-q8_0.golden.safetensors", false},
    {"golden/tiny/gguf/qwen3-q4_0.gguf", "golden/tiny/gguf/qwen3-q4_0.golden.safetensors", false},
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

// For mistakes in a program. Each says whether anything was changed.
template <class Value, class Other>
bool take(Value& value, Other other) {
    const Value replacement = other;
    if (value == replacement) return false;
    value = replacement;
    return true;
}
bool take(std::optional<model::Norm>& norm, std::nullopt_t) {
    const bool had = norm.has_value();
    norm.reset();
    return had;
}
bool take(std::vector<float>& values, std::initializer_list<float>) {
    const bool had = !values.empty();
    values.clear();
    return had;
}
template <class Op>
bool each(model::Program& program, const std::function<bool(Op&)>& change) {
    bool changed = false;
    for (model::Op& any : program.ops) {
        if (auto* op = std::get_if<Op>(&any)) changed = change(*op) || changed;
    }
    return changed;
}
bool each_norm(model::Program& program, const std::function<bool(model::Norm&)>& change) {
    const auto inner = [&](std::optional<model::Norm>& norm) { return norm && change(*norm); };
    each<model::Normalize>(program, [&](auto& op) { return change(op.norm); });
    each<model::Head>(program, [&](auto& op) { return change(op.norm); });
    each<model::ProjectAdd>(program, [&](auto& op) { return inner(op.norm); });
    each<model::FfnAdd>(program, [&](auto& op) { return inner(op.norm); });
    each<model::Qkv>(program, [&](auto& op) { return inner(op.q_norm) | inner(op.k_norm); });
    return true;
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
    for (const Case& one : cases) {
        if (!one.has_kv) continue;  // the GGUFs: the same programs
        CAPTURE(one.model);
        const auto model = load(one.model);
        const Golden golden(one.golden);
        const auto prompt = golden.get<std::int32_t>(key(33, "input_ids"));  // beyond every window
        const auto greedy = golden.get<std::int32_t>(key(33, "greedy_ids"));
        for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
            const auto source = make_session(model, dtype, 64), target = make_session(model, dtype, 57, 7);
            TokenId next = engine::argmax(prefill_last(*source, prompt));
            kv::Header header;
            header.identity = engine::identity_of(*model, Digest{});
            for (std::uint32_t layer = model->config.n_layers; layer-- > 0;) {
                must(target->import_layer(header, layer, must(source->export_layer(layer)), prompt.size()));
            }
            CHECK(target->position() == prompt.size());
            CHECK((state_bytes(*target) == state_bytes(*source)));
            for (const TokenId expected_id : greedy) {
                if (dtype == DType::f32) CHECK(next == expected_id);
                const std::span<const float> expected = must(source->decode(next));
                const std::span<const float> got = must(target->decode(next));
                REQUIRE(std::memcmp(expected.data(), got.data(), expected.size_bytes()) == 0);
                next = engine::argmax(got);
            }
            CHECK((state_bytes(*target) == state_bytes(*source)));
        }
    }
}

TEST_CASE("both styles of config.json describe the same model") {
    namespace fs = std::filesystem;
    for (const std::string name :
         {"llama/f32", "llama/bf16", "llama3_rope/f32", "llama3_rope/bf16", "qwen2/bf16", "qwen3/bf16",
          "mistral_swa/bf16", "gemma2/bf16", "gemma3_text/bf16", "phi3/bf16", "gpt_neox/bf16"}) {
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
        std::string name;
        std::function<bool(model::Program&)> make;  // false: this model has nothing of the kind
    };
    const std::vector<Mistake> mistakes = {
        {"wrong RoPE pairing",
         [](model::Program& program) {
             for (model::RopeConfig& rope : program.ropes) {
                 rope.pairing = rope.pairing == kernels::RopePairing::half_split ? kernels::RopePairing::interleaved
                                                                                 : kernels::RopePairing::half_split;
             }
             return true;
         }},
        {"RoPE base", [](model::Program& program) { return program.ropes[0].theta *= 1.2, true; }},
        {"RoPE scaling ignored",
         [](model::Program& program) {
             model::RopeConfig& rope = program.ropes[0];
             const bool scaled = rope.scaling != model::RopeScalingKind::none || !rope.frequency_divisors.empty();
             rope.scaling = model::RopeScalingKind::none;
             rope.frequency_divisors.clear();
             return scaled;
         }},
        {"RoPE over twice the dimensions",
         [](model::Program& program) {
             if (2 * program.ropes[0].rotary_dim > program.kv[0].head_dim_k) return false;
             return program.ropes[0].rotary_dim *= 2, true;
         }},
        {"local layers with the global RoPE",
         [](model::Program& program) { return each<model::Qkv>(program, [](auto& op) { return take(op.rope, 0U); }); }},
        {"norm epsilon",
         [](model::Program& program) {
             return each_norm(program, [](model::Norm& norm) { return norm.eps *= 1000, true; });
         }},
        {"norm weights without 1 added",  // where the weights are that far from 1
         [](model::Program& program) {
             return each_norm(program, [](model::Norm& norm) {
                 for (float& weight : norm.weight.values) weight -= 1;
                 return true;
             });
         }},
        {"norms after attention and FFN ignored",
         [](model::Program& program) {
             const auto drop = [](auto& op) { return take(op.norm, std::nullopt); };
             const bool projects = each<model::ProjectAdd>(program, drop);
             return each<model::FfnAdd>(program, drop) || projects;
         }},
        {"norm over the heads of Q ignored",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return take(op.q_norm, std::nullopt); });
         }},
        {"norm over the heads of K after RoPE, as if its weights were 1",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) {
                 if (op.k_norm) std::fill(op.k_norm->weight.values.begin(), op.k_norm->weight.values.end(), 1.0F);
                 return op.k_norm.has_value();
             });
         }},
        {"bias of Q ignored",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return take(op.q.bias, {}); });
         }},
        {"bias of V ignored",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return take(op.v.bias, {}); });
         }},
        {"bias of the FFN ignored",
         [](model::Program& program) {
             return each<model::FfnAdd>(program, [](auto& op) { return take(op.down.bias, {}); });
         }},
        {"interleaved Q, K and V read as if they lay apart",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) {
                 const bool spread = op.q.group_rows != 0;
                 op.q.group_rows = op.k.group_rows = op.v.group_rows = 0;
                 return spread;
             });
         }},
        {"attention scale",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return op.scale *= 0.99F, true; });
         }},
        {"attention soft cap ignored",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return take(op.softcap, 0.0F); });
         }},
        {"logit soft cap ignored",
         [](model::Program& program) {
             return each<model::Head>(program, [](auto& op) { return take(op.softcap, 0.0F); });
         }},
        {"sliding window ignored",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return take(op.window, 0U); });
         }},
        {"sliding window one too short",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return op.window != 0 && (--op.window, true); });
         }},
        {"sliding window in the other layers",
         [](model::Program& program) {
             std::uint32_t window = 0;
             bool full = false;
             each<model::Attention>(program, [&](auto& op) {
                 window = std::max(window, op.window);
                 full = full || op.window == 0;
                 return true;
             });
             each<model::Attention>(program, [&](auto& op) { return op.window = op.window == 0 ? window : 0, true; });
             return window != 0 && full;
         }},
        {"embedding not scaled",
         [](model::Program& program) {
             return each<model::Embed>(program, [](auto& op) { return take(op.scale, 1.0F); });
         }},
        {"the other GELU",
         [](model::Program& program) {
             return each<model::FfnAdd>(program, [](auto& op) {
                 if (op.activation == model::Activation::silu) return false;
                 op.activation = op.activation == model::Activation::gelu_erf ? model::Activation::gelu_tanh
                                                                              : model::Activation::gelu_erf;
                 return true;
             });
         }},
        {"FFN reads what attention reads",
         [](model::Program& program) {
             const auto read = std::get<model::Normalize>(program.ops[1]).out;
             return each<model::FfnAdd>(program, [&](auto& op) { return take(op.in, read); });
         }},
        {"serial instead of parallel residual",
         [](model::Program& program) {
             bool changed = false;
             for (auto op = program.ops.begin(); op + 1 != program.ops.end(); ++op) {
                 if (!std::holds_alternative<model::Normalize>(op[0]) ||
                     !std::holds_alternative<model::Normalize>(op[1])) {
                     continue;
                 }
                 std::rotate(op + 1, op + 2, op + 5);  // past Qkv, Attention and ProjectAdd
                 changed = true;
             }
             return changed;
         }},
        {"gate and up exchanged",
         [](model::Program& program) {
             return each<model::FfnAdd>(program, [](auto& op) {
                 if (op.gate.rows == 0) return false;
                 std::swap(op.gate, op.up);
                 return true;
             });
         }},
        {"K and V exchanged",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return std::swap(op.k, op.v), true; });
         }},
    };
    std::vector<int> caught(mistakes.size());
    double smallest = INFINITY;
    for (const Case& one : cases) {
        const auto right = load(one.model);
        const Golden golden(one.golden);
        for (std::size_t i = 0; i < mistakes.size(); ++i) {
            auto wrong = std::make_shared<model::Model>(*right);
            if (!mistakes[i].make(wrong->program)) continue;
            CAPTURE(one.model);
            CAPTURE(mistakes[i].name);
            const double error = prompt_error(wrong, golden, 129);
            CHECK(error > 2 * logit_tolerance);
            smallest = std::min(smallest, error);
            ++caught[i];
        }
    }
    for (std::size_t i = 0; i < mistakes.size(); ++i) {
        CAPTURE(mistakes[i].name);
        CHECK(caught[i] > 0);  // a mistake that no model can make is not tested
    }
    MESSAGE("smallest effect of a mistake: ", smallest);
}
