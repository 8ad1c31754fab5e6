// The tiny random models: where they are, what their goldens hold, and how results are compared with them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "golden/runs.h"
#include "support/golden.h"

namespace hetero::test {

inline constexpr int lengths[] = {1, 7, 33, 129};  // of prompts; a golden file need not have all
// Two correct fp32 programs differ by up to 1e-4 here, typical mistakes move the logits by 0.006 and more.
inline constexpr double logit_tolerance = 1e-3;
inline constexpr double kv_tolerance = 1e-4;  // relative to the largest element of the part: fp32 noise

struct Case {
    std::string model, golden;  // under testdata, or absolute
    bool has_kv = true;         // goldens of K and V are there
};

// What testdata has.
inline std::vector<Case> testdata_cases() {
    std::vector<Case> cases;
    for (const std::string name :
         {"llama/f32", "llama/bf16", "llama3_rope/bf16", "qwen2/bf16", "qwen3/bf16", "mistral_swa/bf16", "gemma2/bf16",
          "gemma3_text/bf16", "phi3/bf16", "gpt_neox/bf16", "mixtral/bf16", "qwen3_moe/bf16", "deepseek_v2/f32",
          "deepseek_v2/bf16", "deepseek_v3/bf16"}) {
        cases.push_back({"golden/tiny/" + name, "golden/tiny/" + name + "/golden.safetensors"});
    }
    for (const std::string name : {"llama-q8_0", "llama3_rope-f16", "qwen2-q8_0", "qwen3-q4_0"}) {
        cases.push_back(
            {"golden/tiny/gguf/" + name + ".gguf", "golden/tiny/gguf/" + name + ".golden.safetensors", false});
    }
    cases.push_back({"golden/tiny/gguf/llama-f32.gguf", "golden/tiny/llama/f32/golden.safetensors"});
    cases.push_back({"golden/tiny/gguf/mixtral-f32.gguf", "golden/tiny/mixtral/f32/golden.safetensors"});
    return cases;
}

// All models of a folder laid out as testdata/golden/tiny is: NAME/{f32,bf16}, and gguf/NAME-TYPE.gguf, whose goldens
// are beside them or, of f32, in NAME/f32.
inline std::vector<Case> cases_in(const std::string& folder) {
    namespace fs = std::filesystem;
    std::vector<Case> cases;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const fs::path path = entry.path();
        if (path.filename() == "config.json") {
            cases.push_back({path.parent_path(), path.parent_path() / "golden.safetensors"});
        } else if (path.extension() == ".gguf") {
            const std::string name = path.stem();
            const bool f32 = name.ends_with("-f32");
            const fs::path golden = f32 ? fs::path(folder) / name.substr(0, name.size() - 4) / "f32/golden.safetensors"
                                        : path.parent_path() / (name + ".golden.safetensors");
            cases.push_back({path, golden, f32});
        }
    }
    std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.model < b.model; });
    return cases;
}

inline std::shared_ptr<const model::Model> load(const std::string& path) {
    return must(model::Model::load(testdata(path)));
}

inline std::string key(int length, const std::string& name) { return fmt::format("p{}.{}", length, name); }

inline double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
        if (!(difference <= largest)) largest = difference;  // NaN stays, and compares false with any tolerance
        if (std::isnan(difference)) break;
    }
    return largest;
}

// Of a prompt's logits [token][vocab], against the positions that the golden has: all, or those it lists.
inline double logit_error(const Golden& golden, int length, std::span<const float> logits) {
    const auto expected = golden.get<float>(key(length, "logits"));
    const std::size_t vocab = golden.shape(key(length, "logits")).at(1);
    REQUIRE(logits.size() == static_cast<std::size_t>(length) * vocab);
    std::vector<std::int32_t> positions;
    if (golden.has(key(length, "logit_positions"))) {
        positions = golden.get<std::int32_t>(key(length, "logit_positions"));
    } else {
        for (int i = 0; i < length; ++i) positions.push_back(i);
    }
    REQUIRE(expected.size() == positions.size() * vocab);
    std::vector<float> got;
    for (const std::int32_t position : positions) {
        const auto row = logits.subspan(static_cast<std::size_t>(position) * vocab, vocab);
        got.insert(got.end(), row.begin(), row.end());
    }
    return max_difference(got, expected);
}

// [head][token][dim] becomes [token][head][dim], of the tokens from `first` on.
inline std::vector<float> token_major(const std::vector<float>& golden, const std::vector<std::size_t>& shape,
                                      std::size_t first) {
    std::vector<float> out;
    const std::size_t heads = shape[0], tokens = shape[1], dim = shape[2];
    for (std::size_t token = first; token < tokens; ++token) {
        for (std::size_t head = 0; head < heads; ++head) {
            const auto row = golden.begin() + static_cast<std::ptrdiff_t>((head * tokens + token) * dim);
            out.insert(out.end(), row, row + static_cast<std::ptrdiff_t>(dim));
        }
    }
    return out;
}

// What a state of `model` must hold of a layer's part after the prompt: [token][kv_head][head_dim] of the tokens that
// the layer keeps. RoPE keys of latents are half-split; goldens of DeepSeek-V2 have their pairs side by side.
inline std::vector<float> expected_part(const Golden& golden, const model::Model& model, int length,
                                        std::uint32_t layer, kv::PartId id) {
    const auto shapes = engine::layer_shapes(model);
    const kv::LayerShape shape = shapes.empty() ? kv::LayerShape{} : shapes[layer];
    const std::size_t first = shape.first_token(static_cast<std::uint64_t>(length));
    if (shape.kind != kv::LayerKind::mla) {
        const std::string name = key(length, fmt::format("{}.{}", id == kv::PartId::k ? 'k' : 'v', layer));
        return token_major(golden.get<float>(name), golden.shape(name), first);
    }
    const std::string name = key(length, fmt::format("{}.{}", id == kv::PartId::k ? "mla_ckv" : "mla_kpe", layer));
    auto values = golden.get<float>(name);
    if (id == kv::PartId::v && model.config.arch == "deepseek_v2") {
        const std::size_t dim = golden.shape(name).at(1);
        const auto pairs = values;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const std::size_t at = i % dim, half = dim / 2;
            values[i] = pairs[i - at + (at < half ? 2 * at : 2 * (at - half) + 1)];
        }
    }
    return values;
}

// Largest difference relative to the part's largest element.
inline double kv_error(const std::vector<float>& got, const std::vector<float>& expected) {
    float largest = 0;
    for (const float value : expected) largest = std::max(largest, std::fabs(value));
    return max_difference(got, expected) / largest;
}

inline kv::Header header_of(const model::Model& model) {
    kv::Header header;
    header.identity = engine::identity_of(model, Digest{});
    header.layer_shapes = engine::layer_shapes(model);
    return header;
}

inline std::vector<std::byte> state_bytes(const engine::Session& session) {
    std::vector<std::byte> bytes;
    for (std::uint32_t layer = 0; layer < session.model().config.n_layers; ++layer) {
        const kv::Layer exported = must(session.export_layer(layer));
        bytes.insert(bytes.end(), exported.k.values.bytes.begin(), exported.k.values.bytes.end());
        bytes.insert(bytes.end(), exported.v.values.bytes.begin(), exported.v.values.bytes.end());
    }
    return bytes;
}

struct Run {
    std::vector<float> prompt_logits;  // [token][vocab]
    std::vector<float> step_logits;    // [step][vocab]
    std::vector<TokenId> greedy;
    std::vector<std::byte> state;  // after prefill
    friend bool operator==(const Run&, const Run&) = default;
};

inline Run run(const std::shared_ptr<const model::Model>& model, const std::vector<TokenId>& prompt, DType dtype,
               std::uint32_t chunk_tokens, int threads, int steps) {
    const auto session =
        make_session(model, dtype, prompt.size() + static_cast<std::size_t>(steps), chunk_tokens, threads);
    Run out;
    out.prompt_logits = prefill_all(*session, prompt);
    out.state = state_bytes(*session);
    const std::size_t vocab = model->config.vocab_size;
    std::span<const float> last(out.prompt_logits.data() + (prompt.size() - 1) * vocab, vocab);
    TokenId next = engine::argmax(last);
    for (int i = 0; i < steps; ++i) {
        out.greedy.push_back(next);
        last = must(session->decode(next));
        out.step_logits.insert(out.step_logits.end(), last.begin(), last.end());
        next = engine::argmax(last);
    }
    return out;
}

inline double prompt_error(const std::shared_ptr<const model::Model>& model, const Golden& golden, int length,
                           std::uint32_t chunk_tokens = 256) {
    const auto prompt = golden.get<std::int32_t>(key(length, "input_ids"));
    const auto session = make_session(model, DType::f32, prompt.size(), chunk_tokens);
    return logit_error(golden, length, prefill_all(*session, prompt));
}

struct Errors {
    double logit = 0, kv = 0;  // the largest
};

// Logits, K and V, and greedy continuations of every prompt of a golden file, in f32.
inline Errors check_case(const Case& one) {
    const auto model = load(one.model);
    const Golden golden(one.golden);
    Errors worst;
    int prompts = 0;
    for (const int length : lengths) {
        if (!golden.has(key(length, "input_ids"))) continue;
        ++prompts;
        CAPTURE(length);
        const auto prompt = golden.get<std::int32_t>(key(length, "input_ids"));
        const auto greedy = golden.get<std::int32_t>(key(length, "greedy_ids"));
        const Run got = run(model, prompt, DType::f32, 256, 0, static_cast<int>(greedy.size()));
        const double logits = logit_error(golden, length, got.prompt_logits);
        CHECK(logits <= logit_tolerance);
        CHECK(got.greedy == greedy);
        // The logits that chose the last greedy token: prefill and all decode steps stand behind them.
        const std::size_t vocab = model->config.vocab_size;
        const auto end = got.step_logits.end() - static_cast<std::ptrdiff_t>(vocab);
        const std::vector<float> last(end - static_cast<std::ptrdiff_t>(vocab), end);
        const double step = max_difference(last, golden.get<float>(key(length, "greedy_last_logits")));
        CHECK(step <= logit_tolerance);
        worst.logit = std::max({worst.logit, logits, step});
        if (!one.has_kv) continue;
        const auto session = make_session(model, DType::f32, prompt.size());
        must(session->prefill(prompt, engine::Logits::none, {}));
        for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
            const kv::Layer exported = must(session->export_layer(layer));
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                CAPTURE(layer);
                CAPTURE(kv::part_name(id));
                CHECK(exported.part(id).scheme.codec == "f32");
                const double error =
                    kv_error(part_values(exported.part(id)), expected_part(golden, *model, length, layer, id));
                CHECK(error <= kv_tolerance);
                worst.kv = std::max(worst.kv, error);
            }
        }
    }
    CHECK(prompts > 0);
    return worst;
}

}  // namespace hetero::test
