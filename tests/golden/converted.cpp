// Tiny models converted and run: the goldens of their source hold as closely as the new type allows, and a state of one
// precision belongs to the other.
#include <cmath>
#include <filesystem>
#include <numeric>

#include "convert/writer.h"
#include "golden/runs.h"
#include "kv/state.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace {

using namespace hetero;
using namespace hetero::test;
using convert::Target;

constexpr double logit_tolerance = 1e-3;  // of two correct fp32 programs, as for the models themselves

struct Source {
    std::string model, golden;
};
const Source folders[] = {
    {"golden/tiny/llama/bf16", "golden/tiny/llama/bf16/golden.safetensors"},
    {"golden/tiny/llama3_rope/bf16", "golden/tiny/llama3_rope/bf16/golden.safetensors"},
    {"golden/tiny/qwen2/bf16", "golden/tiny/qwen2/bf16/golden.safetensors"},
    {"golden/tiny/qwen3/bf16", "golden/tiny/qwen3/bf16/golden.safetensors"},
    {"golden/tiny/mistral_swa/bf16", "golden/tiny/mistral_swa/bf16/golden.safetensors"},
    {"golden/tiny/gemma2/bf16", "golden/tiny/gemma2/bf16/golden.safetensors"},
    {"golden/tiny/gemma3_text/bf16", "golden/tiny/gemma3_text/bf16/golden.safetensors"},
    {"golden/tiny/phi3/bf16", "golden/tiny/phi3/bf16/golden.safetensors"},
    {"golden/tiny/gpt_neox/bf16", "golden/tiny/gpt_neox/bf16/golden.safetensors"},
    {"golden/tiny/mixtral/bf16", "golden/tiny/mixtral/bf16/golden.safetensors"},
    {"golden/tiny/qwen3_moe/bf16", "golden/tiny/qwen3_moe/bf16/golden.safetensors"},
    {"golden/tiny/deepseek_v2/bf16", "golden/tiny/deepseek_v2/bf16/golden.safetensors"},
    {"golden/tiny/deepseek_v3/bf16", "golden/tiny/deepseek_v3/bf16/golden.safetensors"},
};
const Source ggufs[] = {
    {"golden/tiny/gguf/llama-f32.gguf", "golden/tiny/llama/f32/golden.safetensors"},
    {"golden/tiny/gguf/qwen2-q8_0.gguf", "golden/tiny/gguf/qwen2-q8_0.golden.safetensors"},
};

std::shared_ptr<const model::Model> load(const std::string& path) { return must(model::Model::load(path)); }

convert::Report convert_model(const std::string& from, const std::string& to, std::string_view dtype, int threads = 0,
                              const std::vector<convert::Keep>& keeps = {}) {
    const auto model = load(from);
    const Target target = to.ends_with(".gguf") ? Target::gguf : Target::folder;
    const convert::Plan plan = must(convert::make_plan(*model, target));
    const auto choices =
        must(convert::choose_types(plan, *model->weights, target, *quant::find_weight_format(dtype), keeps));
    convert::Options options;
    options.threads = threads;
    return must(convert::write_model(*model, plan, choices, target, to, options));
}

struct Difference {
    double max_logit = 0, kl = 0;  // mean over positions
};

Difference against_golden(const std::string& path, const Golden& golden) {
    const auto model = load(path);
    const std::string longest = golden.has("p129.logits") ? "p129" : "p33";
    const auto prompt = golden.get<std::int32_t>(longest + ".input_ids");
    const auto expected = golden.get<float>(longest + ".logits");
    const auto session = make_session(model, DType::f32, prompt.size());
    const auto got = prefill_all(*session, prompt);
    const std::size_t vocab = got.size() / prompt.size(), rows = expected.size() / vocab;
    std::vector<std::int32_t> positions(rows);  // all, or those that the golden lists
    std::iota(positions.begin(), positions.end(), 0);
    if (golden.has(longest + ".logit_positions")) positions = golden.get<std::int32_t>(longest + ".logit_positions");
    REQUIRE((rows > 0 && positions.size() == rows));
    Difference out;
    for (std::size_t row = 0; row < rows; ++row) {
        const auto one = must(engine::compare_logits(
            std::span(expected).subspan(row * vocab, vocab),
            std::span(got).subspan(static_cast<std::size_t>(positions[row]) * vocab, vocab), "golden", "model"));
        out.max_logit = std::max(out.max_logit, one.max_abs_dlogit);
        out.kl += one.kl / static_cast<double>(rows);
    }
    return out;
}

}  // namespace

TEST_CASE("floats that hold every weight change nothing") {
    const TempDir out;
    for (const Source& source : folders) {
        CAPTURE(source.model);
        const Golden golden(source.golden);
        for (const char* dtype : {"f32", "bf16"}) {
            const std::string to = out / fmt::format("{}-{}", &source - folders, dtype);
            for (const auto& tensor : convert_model(testdata(source.model), to, dtype).tensors) {
                CHECK(tensor.max_abs_error == 0);
            }
            CHECK(against_golden(to, golden).max_logit <= logit_tolerance);
        }
    }
    for (const Source& source : ggufs) {
        CAPTURE(source.model);
        const std::string to = out / fmt::format("{}.gguf", &source - ggufs);
        convert_model(testdata(source.model), to, "f32");
        CHECK(against_golden(to, Golden(source.golden)).max_logit <= logit_tolerance);
    }
}

TEST_CASE("through the other container and back") {
    const TempDir out;
    for (const Source& source : folders) {
        CAPTURE(source.model);
        const Golden golden(source.golden);
        const std::string gguf = out / fmt::format("{}.gguf", &source - folders),
                          back = out / fmt::format("{}", &source - folders);
        for (const char* dtype : {"f32", "bf16"}) {
            CAPTURE(dtype);
            if (source.model.find("deepseek_v3") != std::string::npos) {  // its YaRN factor has no key in a GGUF
                const auto refused = convert::make_plan(*load(testdata(source.model)), Target::gguf);
                REQUIRE_FALSE(refused.has_value());
                CHECK(refused.error().message.find("YaRN") != std::string::npos);
                continue;
            }
            convert_model(testdata(source.model), gguf, dtype);
            CHECK(against_golden(gguf, golden).max_logit <= logit_tolerance);
            CHECK(kv::compare(engine::identity_of(*load(testdata(source.model)), Digest{}),
                              engine::identity_of(*load(gguf), Digest{}))
                      .empty());
            convert_model(gguf, back, dtype);
            CHECK(against_golden(back, golden).max_logit <= logit_tolerance);
            std::filesystem::remove_all(back);
            std::filesystem::remove(gguf);
        }
    }
}

TEST_CASE("smaller types stay near the golden, each as near as its step allows") {
    const TempDir out;
    struct Bound {
        std::string dtype;
        double kl;
    };
    // A random model's logits are very sensitive: the mean KL grows with the square of the step. Measured: f16 1e-5,
    // bf16 1e-3, 8 bits 0.01, 4 bits 1.4.
    for (const Source& source : ggufs) {
        const Golden golden(source.golden);
        for (const Bound& bound :
             std::initializer_list<Bound>{Bound{"f16", 1e-4}, Bound{"bf16", 5e-3}, Bound{"q8_0", 0.05},
                                          Bound{"q4_0", 2.5}, Bound{"q4_1", 2.5}, Bound{"q4_k", 0.05}}) {
            const std::string to = out / fmt::format("{}-{}.gguf", &source - ggufs, bound.dtype);
            convert_model(testdata(source.model), to, bound.dtype);
            const Difference difference = against_golden(to, golden);
            CAPTURE(source.model);
            CAPTURE(bound.dtype);
            MESSAGE(source.model, " as ", bound.dtype, ": mean KL ", difference.kl);
            CHECK(difference.kl <= bound.kl);
        }
    }
    for (const Source& source : folders) {
        const std::string to = out / fmt::format("{}-int8", &source - folders);
        convert_model(testdata(source.model), to, "int8-channel");
        const Difference difference = against_golden(to, Golden(source.golden));
        CAPTURE(source.model);
        MESSAGE(source.model, " as int8-channel: mean KL ", difference.kl);
        CHECK(difference.kl > 0);
        // A router that sees slightly other numbers sends some tokens to other experts.
        CHECK(difference.kl <= (load(testdata(source.model))->config.moe ? 0.5 : 0.05));
    }
}

TEST_CASE("int8 rows come back as the floats that they stand for") {
    const TempDir out;
    for (const Source& source : folders) {
        CAPTURE(source.model);
        const std::string int8 = out / fmt::format("{}-int8", &source - folders), wide = int8 + "-f32",
                          again = int8 + "-again";
        convert_model(testdata(source.model), int8, "int8-channel");
        convert_model(int8, wide, "f32");
        // What is computed with codes and scales is what is computed with their products: no row has another's scale.
        const auto prompt = Golden(source.golden).get<std::int32_t>("p33.input_ids");
        const auto a = prefill_all(*make_session(load(int8), DType::f32, 33), prompt);
        const auto b = prefill_all(*make_session(load(wide), DType::f32, 33), prompt);
        double largest = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
        }
        CHECK(largest <= logit_tolerance);
        for (const auto& tensor : convert_model(int8, again, "int8-channel").tensors) CHECK(tensor.exact);
        CHECK(read_file(int8 + "/model.safetensors") == read_file(again + "/model.safetensors"));
    }
}

TEST_CASE("int8 matrices need their scales, and a configuration that says so") {
    const TempDir out;
    convert_model(testdata(folders[0].model), out / "int8", "int8-channel");
    const std::string weights = read_file(out / "int8/model.safetensors");
    const std::string config = read_file(out / "int8/config.json");
    const auto refusal = [&] {
        const auto model = model::Model::load(out / "int8");
        return model ? std::string("(loaded)") : model.error().message;
    };
    REQUIRE(refusal() == "(loaded)");
    auto bare = nlohmann::json::parse(config);
    bare.erase("quantization_config");
    out.write("int8/config.json", bare.dump());
    CHECK(refusal().find("q_proj.weight is of type i8") != std::string::npos);
    out.write("int8/config.json", config);

    const std::string name = "model.layers.0.mlp.up_proj.weight_scale";
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, weights.data(), 8);
    const auto header = nlohmann::json::parse(weights.substr(8, header_bytes));
    const std::size_t at = 8 + header_bytes + header.at(name).at("data_offsets").at(0).get<std::size_t>();
    for (const float bad : {-0.5F, NAN, INFINITY}) {
        std::string damaged = weights;
        std::memcpy(&damaged[at + 4], &bad, sizeof bad);
        out.write("int8/model.safetensors", damaged);
        CHECK(refusal().find(name) != std::string::npos);
    }
    std::string renamed = weights;
    renamed.replace(renamed.find(name), name.size(), "model.layers.0.mlp.up_proj.weight_scala");
    out.write("int8/model.safetensors", renamed);
    CHECK(refusal().find(name) != std::string::npos);
}

TEST_CASE("the bytes do not depend on the number of threads") {
    const TempDir out;
    for (const char* dtype : {"q4_0", "q8_0", "f16"}) {
        const auto one = convert_model(testdata(ggufs[0].model), out / "one.gguf", dtype, 1);
        const auto three = convert_model(testdata(ggufs[0].model), out / "three.gguf", dtype, 3);
        CHECK(read_file(out / "one.gguf") == read_file(out / "three.gguf"));
        for (std::size_t i = 0; i < one.tensors.size(); ++i) {
            CHECK(one.tensors[i].relative_l2 == three.tensors[i].relative_l2);
        }
        std::remove((out / "one.gguf").c_str());
        std::remove((out / "three.gguf").c_str());
    }
}

TEST_CASE("the fast precision of experts whose matrices are of unlike types") {
    const TempDir out;
    const std::string to = out / "mixed.gguf";
    const std::vector<TokenId> prompt{3, 141, 59, 26, 5, 358, 97, 9, 323, 84, 62, 64};
    for (const char* matrix : {"gate", "up", "down"}) {
        CAPTURE(matrix);
        const auto keep = must(convert::parse_keep(fmt::format("blk.*.ffn_{}_exps.weight=f32", matrix)));
        convert_model(testdata("golden/tiny/mixtral/bf16"), to, "q8_0", 0, {keep});
        const auto model = load(to);
        engine::Options options;
        options.kv_dtype = DType::f32;
        const auto logits = [&](engine::Precision precision) {
            options.precision = precision;
            return prefill_all(*must(engine::Session::create(model, options, prompt.size())), prompt);
        };
        const std::vector<float> fast = logits(engine::Precision::fast), precise = logits(engine::Precision::precise);
        double difference = 0, size = 0;
        for (std::size_t i = 0; i < precise.size(); ++i) {
            const double delta = static_cast<double>(fast[i]) - static_cast<double>(precise[i]);
            difference += delta * delta;
            size += static_cast<double>(precise[i]) * static_cast<double>(precise[i]);
        }
        CHECK(std::sqrt(difference / size) < 0.1);
        std::filesystem::remove(to);
    }
}

TEST_CASE("a state belongs to every precision of its weights, and to no others") {
    const TempDir out;
    const std::string source = testdata(ggufs[0].model);
    convert_model(source, out / "half.gguf", "bf16");
    convert_model(source, out / "small.gguf", "q4_0");
    convert_model(out / "half.gguf", out / "smaller.gguf", "q4_1");
    const auto identity = [](const std::string& path) { return engine::identity_of(*load(path), Digest{}); };
    const kv::Identity original = identity(source);
    for (const char* name : {"half.gguf", "small.gguf", "smaller.gguf"}) {
        CAPTURE(name);
        const kv::Identity converted = identity(out / name);
        CHECK(kv::compare(original, converted).empty());
        CHECK(converted.weights_digest != original.weights_digest);
    }
    // The same configuration with weights of its own.
    CHECK(kv::compare(original, identity(testdata("golden/tiny/gguf/llama-q8_0.gguf"))).size() == 1);

    // Weights that were changed after the conversion are no longer what they say.
    std::string bytes = read_file(out / "small.gguf");
    bytes[bytes.size() - 40] = static_cast<char>(bytes[bytes.size() - 40] ^ 1);
    CHECK(kv::compare(original, identity(out.write("changed.gguf", bytes))).size() == 1);

    // The same for folders.
    const std::string folder = testdata(folders[0].model);
    convert_model(folder, out / "int8", "int8-channel");
    convert_model(out / "int8", out / "wide", "f32");
    CHECK(kv::compare(identity(folder), identity(out / "wide")).empty());
    out.write("wide/hetero.json", "{}");
    CHECK_FALSE(model::Model::load(out / "wide").has_value());
    std::remove((out / "wide/hetero.json").c_str());
    CHECK(kv::compare(identity(folder), identity(out / "wide")).size() == 1);
}

TEST_CASE("a conversion that fails leaves nothing") {
    const TempDir out;
    const auto model = load(testdata(ggufs[0].model));
    const convert::Plan plan = must(convert::make_plan(*model, Target::gguf));
    const auto choices =
        must(convert::choose_types(plan, *model->weights, Target::gguf, *quant::find_weight_format("f16"), {}));
    convert::Options options;
    options.before_publish = [&](const std::string& path) -> Status {
        CHECK(model::Model::load(path).has_value());
        return fail(Errc::check_failed, "no");
    };
    CHECK(convert::write_model(*model, plan, choices, Target::gguf, out / "x.gguf", options).error().message == "no");
    CHECK(out.names().empty());
}
