// config.json: what is understood, and what is refused by name.
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using nlohmann::json;

namespace {

struct Refusal {
    std::string key;
    json value;
    std::vector<std::string> message;  // parts of it
};

void check_refusals(const std::string& relative, const std::vector<Refusal>& refusals) {
    for (const Refusal& one : refusals) {
        CAPTURE(one.key);
        CAPTURE(one.value.dump());
        const TempDir folder;
        copy_folder(folder, relative, [&](json& config) {
            if (one.value.is_discarded()) {
                config.erase(one.key);
            } else {
                config[one.key] = one.value;
            }
        });
        const std::string message = load_error(folder.path());
        for (const std::string& part : one.message) {
            CAPTURE(message);
            CAPTURE(part);
            CHECK(message.find(part) != std::string::npos);
        }
    }
}

const json missing = json(json::value_t::discarded);

}  // namespace

TEST_CASE("the published configuration of a Llama") {
    const auto loaded = model::Model::load(testdata("golden/tiny/llama3_rope/bf16"));
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
    const model::Model& model = **loaded;
    CHECK(model.config.arch == "llama");
    CHECK(model.config.n_layers == 2);
    CHECK(model.config.n_heads == 4);
    CHECK(model.config.n_kv_heads == 1);
    CHECK(model.config.head_dim == 16);
    CHECK(model.config.hidden == 64);
    CHECK(model.config.ffn == 128);
    CHECK(model.config.vocab_size == 512);
    CHECK(model.config.context_length == 512);
    CHECK(model.config.norm_eps == 1e-5F);
    CHECK(model.config.tied_embeddings);
    CHECK(model.config.rope.theta == 500000);
    CHECK(model.config.rope.scaling == model::RopeScalingKind::llama3);
    CHECK(model.config.rope.pairing == kernels::RopePairing::half_split);
    CHECK(model.rope_scaling_text() == R"({"factor":8,"high_freq_factor":4,"low_freq_factor":1,)"
                                       R"("original_max_position_embeddings":64,"rope_type":"llama3"})");
    CHECK(model.gguf == nullptr);
    CHECK(model.weight_bytes == 2 * (512 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 16 * 64 + 3 * 128 * 64)));
    // Tied: the head reads the rows of the embedding, in the file.
    const auto& embed = std::get<model::Embed>(model.program.ops.front());
    const auto& head = std::get<model::Head>(model.program.ops.back());
    CHECK(head.weight.data == embed.table.data);
    CHECK(head.weight.data == model.weights->find("model.embed_tokens.weight")->bytes.data());
}

TEST_CASE("arithmetic that is not implemented is refused by name") {
    check_refusals(
        "golden/tiny/llama/bf16",
        {
            {"model_type", "mamba", {"config.json", "model_type", "\"mamba\"", "llama"}},
            {"model_type", missing, {"model_type is missing"}},
            {"architectures", {"LlamaForSequenceClassification"}, {"architectures", "LlamaForSequenceClassification"}},
            {"hidden_act", "gelu", {"hidden_act", "\"gelu\"", "silu"}},
            {"attention_bias", true, {"attention_bias is true"}},
            {"mlp_bias", true, {"mlp_bias is true"}},
            {"partial_rotary_factor", 0.5, {"partial_rotary_factor is 0.5"}},
            {"rope_interleaved", true, {"rope_interleaved"}},
            {"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}, {"rope_type is \"dynamic\"", "llama3"}},
            {"rope_scaling", {{"rope_type", "linear"}}, {"rope_scaling.factor is missing"}},
            {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"beta_fast", 32}}, {"rope_scaling.beta_fast"}},
            {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, {"low_freq_factor"}},
            {"rope_scaling",
             {{"rope_type", "llama3"},
              {"factor", 8},
              {"low_freq_factor", 4},
              {"high_freq_factor", 4},
              {"original_max_position_embeddings", 64}},
             {"high_freq_factor 4", "larger"}},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 20000}}, {"10000", "20000"}},
            {"quantization_config", {{"quant_method", "awq"}}, {"quantization_config.quant_method", "awq"}},
            {"sliding_window", 4096, {"sliding_window = 4096"}},
            {"some_new_feature", 1.5, {"some_new_feature = 1.5", "not implemented"}},
            {"some_new_feature", {1, 2}, {"some_new_feature = [1,2]"}},
        });
}

TEST_CASE("keys that are switched off, and keys that cannot matter, are let pass") {
    const TempDir folder;
    copy_folder(folder, "golden/tiny/llama/bf16", [](json& config) {
        config["some_new_feature"] = nullptr;
        config["another"] = false;
        config["third"] = json::object();
        config["quantization_config"] = nullptr;
        config["attention_dropout"] = 0.1;
        config["pretraining_tp"] = 2;
        config["transformers.js_config"] = {{"dtype", {{"x", "q4"}}}};
        config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000}};
    });
    const auto changed = model::Model::load(folder.path());
    REQUIRE_MESSAGE(changed.has_value(), (changed ? "" : changed.error().message));
    const auto original = model::Model::load(testdata("golden/tiny/llama/bf16"));
    REQUIRE(original.has_value());
    CHECK((*changed)->arch_digest == (*original)->arch_digest);
    CHECK((*changed)->lineage == (*original)->lineage);
    CHECK((*changed)->weights_digest != (*original)->weights_digest);  // the header is another
}

TEST_CASE("numbers that no model has are refused before any memory is taken for them") {
    check_refusals("golden/tiny/llama/bf16",
                   {
                       {"num_attention_heads", 0, {"num_attention_heads", "found 0"}},
                       {"num_attention_heads", -4, {"num_attention_heads", "found -4"}},
                       {"num_attention_heads", 4.5, {"num_attention_heads", "found 4.5"}},
                       {"num_attention_heads", "4", {"num_attention_heads", "found \"4\""}},
                       {"num_attention_heads", true, {"num_attention_heads", "found true"}},
                       {"num_attention_heads", missing, {"num_attention_heads is missing"}},
                       {"num_attention_heads", 3, {"3 query heads", "2 KV heads"}},
                       {"num_key_value_heads", 0, {"num_key_value_heads", "found 0"}},
                       {"num_key_value_heads", 3, {"4 query heads", "3 KV heads"}},
                       {"num_hidden_layers", 0, {"num_hidden_layers", "found 0"}},
                       {"num_hidden_layers", 4294967297, {"num_hidden_layers", "4294967297"}},
                       {"num_hidden_layers", 18446744073709551615ULL, {"num_hidden_layers"}},
                       {"num_hidden_layers", 4096, {"tensor", "model.layers.3."}},
                       {"hidden_size", 1e300, {"hidden_size"}},
                       {"hidden_size", 128, {"model.embed_tokens.weight", "[512, 64]", "[512, 128]"}},
                       {"intermediate_size", 127, {"mlp.gate_proj.weight", "[128, 64]", "[127, 64]"}},
                       {"vocab_size", 513, {"model.embed_tokens.weight", "[512, 64]", "[513, 64]"}},
                       {"vocab_size", 1LL << 40, {"vocab_size"}},
                       {"head_dim", 0, {"head_dim", "found 0"}},
                       {"head_dim", 15, {"15"}},
                       {"head_dim", 32, {"self_attn.q_proj.weight", "[64, 64]", "[128, 64]"}},
                       {"max_position_embeddings", 0, {"max_position_embeddings"}},
                       {"rms_norm_eps", -1, {"rms_norm_eps", "found -1"}},
                       {"rope_theta", 0, {"rope_theta", "found 0"}},
                       {"tie_word_embeddings", 1, {"tie_word_embeddings", "true or false"}},
                       {"num_hidden_layers", 2, {"model.layers.2.", "no place"}},
                   });
    const TempDir folder;
    copy_folder(folder, "golden/tiny/llama/bf16", [](json& config) {
        config.erase("head_dim");
        config["hidden_size"] = 66;
    });
    CHECK(load_error(folder.path()).find("hidden size 66 is not a multiple of 4 heads") != std::string::npos);
}

TEST_CASE("config.json that is none") {
    for (const std::string text : {"", "{", "[]", "3", "{\"a\": 1e999}", "\xFF\xFE", "{\"model_type\": \"llama\""}) {
        CAPTURE(text);
        const TempDir folder;
        folder.write("config.json", text);
        CHECK(load_error(folder.path()).find("config.json") != std::string::npos);
    }
    const TempDir deep;
    deep.write("config.json",
               "{\"model_type\":\"llama\",\"a\":" + std::string(20000, '[') + std::string(20000, ']') + "}");
    CHECK(load_error(deep.path()).find("config.json") != std::string::npos);
    const TempDir empty;
    CHECK(load_error(empty.path()).find("config.json") != std::string::npos);
    CHECK(load_error(empty / "absent.gguf").find("absent.gguf") != std::string::npos);
}

TEST_CASE("weights that are not all there") {
    const TempDir missing_shard;
    copy_folder(missing_shard, "golden/tiny/llama/f32", [](json&) {});
    std::filesystem::remove(missing_shard / "model-00002-of-00003.safetensors");
    CHECK(load_error(missing_shard.path()).find("model-00002-of-00003.safetensors") != std::string::npos);

    const TempDir short_shard;
    copy_folder(short_shard, "golden/tiny/llama/f32", [](json&) {});
    const std::string name = "model-00003-of-00003.safetensors";
    const std::string bytes = read_file(short_shard / name);
    std::filesystem::remove(short_shard / name);
    short_shard.write(name, bytes.substr(0, bytes.size() - 1));
    CHECK(load_error(short_shard.path()).find(name) != std::string::npos);

    const TempDir index_without;
    copy_folder(index_without, "golden/tiny/llama/f32", [](json&) {});
    auto index = json::parse(read_file(index_without / "model.safetensors.index.json"));
    index["weight_map"].erase("model.layers.1.mlp.up_proj.weight");
    std::filesystem::remove(index_without / "model.safetensors.index.json");
    index_without.write("model.safetensors.index.json", index.dump());
    CHECK(load_error(index_without.path()).find("model.layers.1.mlp.up_proj.weight") != std::string::npos);
}
