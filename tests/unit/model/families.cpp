// Families besides Llama: what their configurations say, and what is refused by name.
#include <cstring>

#include "io/tensor_source.h"
#include "model/digest.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using nlohmann::json;

namespace {

std::shared_ptr<const model::Model> load(const std::string& family, const std::function<void(json&)>& edit = {}) {
    const TempDir folder;
    copy_folder(
        folder, "golden/tiny/" + family + "/bf16", edit ? edit : [](json&) {});
    auto loaded = model::Model::load(folder.path());
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
    return std::move(*loaded);
}

struct Refusal {
    std::string family, key;
    json value;  // discarded: the key is removed
    std::vector<std::string> message;
};
const json missing = json(json::value_t::discarded);

}  // namespace

TEST_CASE("arithmetic that a family does not have is refused by name") {
    const Refusal refusals[] = {
        {"qwen2", "hidden_act", "gelu", {"hidden_act", "\"gelu\""}},
        {"qwen2",
         "layer_types",
         {"full_attention", "sliding_attention", "full_attention"},
         {"layer 1", "no sliding_window"}},
        {"qwen2", "layer_types", {"full_attention"}, {"layer_types", "1 entries for 3 layers"}},
        {"qwen2", "layer_types", {"full_attention", "linear_attention", "full_attention"}, {"linear_attention"}},
        {"qwen2", "layer_types", {1, 2, 3}, {"layer_types", "array of strings"}},
        {"qwen2", "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4}}, {"rope_type is \"dynamic\""}},
        {"qwen2", "use_mrope", true, {"use_mrope = true"}},
        {"qwen2", "architectures", {"Qwen2ForSequenceClassification"}, {"Qwen2ForCausalLM"}},
        {"qwen3", "attention_bias", true, {"attention_bias is true"}},
        {"qwen3", "head_dim", missing, {"self_attn.q_proj.weight", "[128, 64]", "[512, 64]"}},  // the class says 128
        {"mistral_swa", "sliding_window", -1, {"sliding_window", "found -1"}},
        {"mistral_swa", "attention_bias", true, {"attention_bias = true"}},
        {"gemma2", "hidden_activation", "gelu", {"hidden_activation", "gelu_pytorch_tanh"}},
        {"gemma2", "use_bidirectional_attention", true, {"use_bidirectional_attention"}},
        {"gemma2", "attn_logit_softcapping", -4, {"attn_logit_softcapping", "found -4"}},
        {"gemma2", "query_pre_attn_scalar", 0, {"query_pre_attn_scalar", "found 0"}},
        {"gemma3_text", "sliding_window", nullptr, {"layer 0", "no sliding_window"}},
        {"gemma3_text", "rope_local_base_freq", 0, {"rope_local_base_freq"}},
        {"gemma3_text", "rope_scaling", {{"rope_type", "longrope"}}, {"longrope"}},
        {"phi3", "rope_scaling", {{"type", "longrope"}, {"long_factor", {1}}}, {"rope_type is \"longrope\""}},
        {"phi3", "partial_rotary_factor", 0.01, {"partial_rotary_factor"}},
        {"phi3", "partial_rotary_factor", 1.5, {"partial_rotary_factor", "1.5"}},
        {"gpt_neox", "hidden_act", "relu", {"hidden_act", "\"relu\""}},
        {"gpt_neox", "attention_bias", false, {"attention.dense.bias", "no place"}},
        {"gpt_neox", "num_key_value_heads", 2, {"num_key_value_heads"}},
    };
    for (const Refusal& one : refusals) {
        CAPTURE(one.family);
        CAPTURE(one.key);
        const TempDir folder;
        copy_folder(folder, "golden/tiny/" + one.family + "/bf16", [&](json& config) {
            if (one.value.is_discarded()) {
                config.erase(one.key);
            } else {
                config[one.key] = one.value;
            }
        });
        const std::string message = load_error(folder.path());
        CAPTURE(message);
        for (const std::string& part : one.message) CHECK(message.find(part) != std::string::npos);
    }
}

TEST_CASE("which layers slide") {
    CHECK(load("qwen2")->config.sliding == std::vector<bool>(3, false));
    const auto upper = load("qwen2", [](json& config) {
        config.erase("layer_types");
        config["use_sliding_window"] = true;
        config["sliding_window"] = 10;
        config["max_window_layers"] = 1;
    });
    CHECK(upper->config.sliding == std::vector<bool>{false, true, true});
    CHECK(upper->config.window == 10);
    CHECK(load("mistral_swa")->config.sliding == std::vector<bool>(3, true));
    // null: no window; missing: that of the published class.
    CHECK(load("mistral_swa", [](json& c) { c["sliding_window"] = nullptr; })->config.sliding ==
          std::vector<bool>(3, false));
    CHECK(load("mistral_swa", [](json& c) { c.erase("sliding_window"); })->config.window == 4096);
    CHECK(load("gemma2", [](json& c) { c.erase("layer_types"); })->config.sliding == std::vector<bool>{true, false});
    const auto pattern = load("gemma3_text", [](json& config) {
        config.erase("layer_types");
        config["sliding_window_pattern"] = 2;
    });
    CHECK(pattern->config.sliding == std::vector<bool>{true, false, true, false});
    for (const model::Op& any : pattern->program.ops) {
        if (const auto* attention = std::get_if<model::Attention>(&any)) {
            CHECK(attention->window == (pattern->config.sliding[attention->layer] ? 16 : 0));
        }
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            CHECK(qkv->rope == (pattern->config.sliding[qkv->layer] ? 1 : 0));
        }
    }
    CHECK(pattern->program.ropes.at(1).theta == 10000);
    CHECK(pattern->program.ropes.at(1).factor == 1);
    CHECK(pattern->program.ropes.at(0).factor == 8);
}

TEST_CASE("whatever changes the arithmetic changes the architecture's digest") {
    struct Change {
        std::string family, key;
        json value;
    };
    const Change changes[] = {
        {"mistral_swa", "sliding_window", 25},
        {"mistral_swa", "sliding_window", nullptr},
        {"gemma2", "attn_logit_softcapping", 5.0},
        {"gemma2", "final_logit_softcapping", nullptr},
        {"gemma2", "query_pre_attn_scalar", 24},
        {"gemma2", "layer_types", {"full_attention", "sliding_attention"}},
        {"gemma3_text", "rope_local_base_freq", 20000.0},
        {"gemma3_text", "rope_theta", 20000.0},
        {"gemma3_text", "rope_scaling", nullptr},
        {"phi3", "partial_rotary_factor", 1.0},
        {"phi3", "sliding_window", 100},
        {"gpt_neox", "use_parallel_residual", false},
        {"gpt_neox", "hidden_act", "gelu_new"},
        {"gpt_neox", "rotary_pct", 0.5},
    };
    for (const Change& change : changes) {
        CAPTURE(change.family);
        CAPTURE(change.key);
        const auto changed = load(change.family, [&](json& config) { config[change.key] = change.value; });
        CHECK(changed->arch_digest != load(change.family)->arch_digest);
    }
    // The names of families are part of it.
    CHECK(load("qwen2")->arch_digest != load("qwen3")->arch_digest);
}

TEST_CASE("fused weights are read where they lie") {
    const auto model = load("gpt_neox");
    const io::TensorView* fused = model->weights->find("gpt_neox.layers.1.attention.query_key_value.weight");
    REQUIRE(fused != nullptr);
    const model::Qkv* qkv = nullptr;
    for (const model::Op& any : model->program.ops) {
        if (const auto* op = std::get_if<model::Qkv>(&any)) qkv = op;
    }
    REQUIRE(qkv != nullptr);
    const std::size_t row = 64 * 2;
    CHECK(qkv->q.data == fused->bytes.data());
    CHECK(qkv->k.data == fused->bytes.data() + 16 * row);
    CHECK(qkv->v.data == fused->bytes.data() + 32 * row);
    for (const model::Matrix* part : {&qkv->q, &qkv->k, &qkv->v}) {
        CHECK(part->rows == 64);
        CHECK(part->group_rows == 16);
        CHECK(part->group_bytes == 48 * row);
        CHECK(part->bias.size() == 64);
    }
    // weight_bytes counts a fused tensor once.
    std::uint64_t bytes = 0;
    for (const std::string& name : model->weights->names()) bytes += model->weights->find(name)->bytes.size();
    CHECK(model->weight_bytes == bytes);
}

TEST_CASE("row views: adjacent rows, groups, and their biases") {
    std::vector<std::byte> data(12 * 2 * sizeof(float));
    model::Matrix whole;
    whole.data = data.data();
    whole.rows = 12;
    whole.cols = 2;
    whole.row_bytes = 2 * sizeof(float);
    for (int i = 0; i < 12; ++i) whole.bias.push_back(static_cast<float>(i));
    const model::Matrix slice = model::row_view(whole, 3, 4);
    CHECK(slice.data == data.data() + 3 * whole.row_bytes);
    CHECK(slice.rows == 4);
    CHECK(slice.group_rows == 0);
    CHECK(slice.bias == std::vector<float>{3, 4, 5, 6});
    const model::Matrix spread = model::row_view(whole, 2, 2, 2, 6);  // rows 2, 3, 8, 9
    CHECK(spread.rows == 4);
    CHECK(spread.group_rows == 2);
    CHECK(spread.group_bytes == 6 * whole.row_bytes);
    CHECK(spread.bias == std::vector<float>{2, 3, 8, 9});
    const model::Matrix adjacent = model::row_view(whole, 0, 3, 4, 3);
    CHECK(adjacent.group_rows == 0);
    CHECK(adjacent.rows == 12);
}

TEST_CASE("multimodal models and LoRA adapters are told apart from unknown families") {
    const TempDir vision;
    copy_folder(vision, "golden/tiny/gemma3_text/bf16", [](json& config) {
        config["model_type"] = "gemma3";
        config["vision_config"] = {{"hidden_size", 8}};
    });
    const std::string multimodal = load_error(vision.path());
    CHECK(multimodal.find("vision_config") != std::string::npos);
    CHECK(multimodal.find("multimodal") != std::string::npos);

    const TempDir adapter;
    adapter.write("adapter_config.json", R"({"peft_type": "LORA", "r": 8})");
    CHECK(load_error(adapter.path()).find("LoRA adapter") != std::string::npos);

    const TempDir unknown;
    copy_folder(unknown, "golden/tiny/qwen2/bf16", [](json& config) { config["model_type"] = "rwkv"; });
    const std::string message = load_error(unknown.path());
    for (const char* part :
         {"\"rwkv\"", "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "gpt_neox"}) {
        CHECK(message.find(part) != std::string::npos);
    }
}

TEST_CASE("a vector that holds no number is refused by name") {
    const TempDir folder;
    copy_folder(folder, "golden/tiny/qwen3/bf16", [](json&) {});
    const std::string path = folder / "model.safetensors";
    std::string bytes = read_file(path);
    const auto original = load("qwen3");
    const auto norm = original->weights->find("model.layers.1.self_attn.k_norm.weight")->bytes;
    const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(norm.data()), norm.size()));
    REQUIRE(at != std::string::npos);
    const std::uint16_t nan = 0x7FC0;
    std::memcpy(bytes.data() + at + 6, &nan, sizeof(nan));
    std::filesystem::remove(path);
    folder.write("model.safetensors", bytes);
    const std::string message = load_error(folder.path());
    CHECK(message.find("model.layers.1.self_attn.k_norm.weight") != std::string::npos);
    CHECK(message.find("nan") != std::string::npos);
}
