// Mixtral, Qwen3 MoE, DeepSeek-V2 and V3: what their configurations say, and what is refused by name.
#include <array>
#include <cmath>
#include <cstring>

#include "io/tensor_source.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;
using nlohmann::json;

namespace {

using Score = model::RoutingRule::Score;
using GroupScore = model::RoutingRule::GroupScore;

Result<std::shared_ptr<const model::Model>> try_load(const std::string& family,
                                                     const std::function<void(json&)>& edit) {
    const TempDir folder;
    copy_folder(folder, "golden/tiny/" + family + "/bf16", edit);
    return model::Model::load(folder.path());
}

std::shared_ptr<const model::Model> load(const std::string& family, const std::function<void(json&)>& edit = {}) {
    auto loaded = try_load(
        family, edit ? edit : [](json&) {});
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
    return std::move(*loaded);
}

template <class Op>
std::vector<const Op*> ops_of(const model::Model& model) {
    std::vector<const Op*> found;
    for (const model::Op& any : model.program.ops) {
        if (const auto* op = std::get_if<Op>(&any)) found.push_back(op);
    }
    return found;
}

struct Refusal {
    std::string family, key;
    json value;  // discarded: the key is removed
    std::vector<std::string> message;
};
const json missing = json(json::value_t::discarded);

}  // namespace

TEST_CASE("the rules by which each family routes") {
    const auto mixtral = load("mixtral");
    const auto& two = mixtral->config.moe->rule;
    CHECK(mixtral->config.moe->n_experts == 4);
    CHECK(mixtral->config.moe->layers == std::vector<bool>{true, true});
    CHECK(two.score == Score::softmax);
    CHECK(two.top_k == 2);
    CHECK(two.normalize);
    CHECK(two.n_groups == 1);

    const auto qwen = load("qwen3_moe");
    CHECK(qwen->config.moe->layers == std::vector<bool>{true, false, true});
    CHECK(qwen->config.moe->expert_ffn == 32);
    CHECK(qwen->config.moe->rule.normalize);
    CHECK(ops_of<model::MoeAdd>(*qwen).size() == 2);
    CHECK(ops_of<model::FfnAdd>(*qwen).size() == 1);

    const auto v2 = load("deepseek_v2");
    const auto& by_softmax = v2->config.moe->rule;
    CHECK(by_softmax.score == Score::softmax);
    CHECK(by_softmax.group_score == GroupScore::highest);
    CHECK(by_softmax.n_groups == 4);
    CHECK(by_softmax.top_groups == 2);
    CHECK(by_softmax.top_k == 3);
    CHECK_FALSE(by_softmax.normalize);
    CHECK(by_softmax.scale == 1.5F);
    CHECK(v2->config.moe->layers == std::vector<bool>{false, true});
    CHECK_FALSE(v2->config.moe->selection_bias);

    const auto v3 = load("deepseek_v3");
    const auto& by_sigmoid = v3->config.moe->rule;
    CHECK(by_sigmoid.score == Score::sigmoid);
    CHECK(by_sigmoid.group_score == GroupScore::highest_two);
    CHECK(by_sigmoid.normalize);
    CHECK(by_sigmoid.scale == 2.5F);
    CHECK(ops_of<model::MoeAdd>(*v3).at(0)->selection_bias.values.size() == 8);
    CHECK(v3->config.rope.attention_factor ==
          doctest::Approx((0.1 * std::log(4.0) + 1) / (0.0707 * std::log(4.0) + 1)).epsilon(1e-12));
    const double growth = 0.1 * 0.707 * std::log(4.0) + 1;
    CHECK(ops_of<model::Attention>(*v3).at(0)->scale == doctest::Approx(growth * growth / std::sqrt(24.0)));

    const auto greedy = load("deepseek_v2", [](json& config) { config["topk_method"] = "greedy"; });
    CHECK(greedy->config.moe->rule.n_groups == 1);
}

TEST_CASE("layers with experts") {
    const auto all = try_load("qwen3_moe", [](json& config) { config["mlp_only_layers"] = json::array(); });
    REQUIRE_FALSE(all.has_value());  // layer 1 has no router
    CHECK(all.error().message.find("model.layers.1.mlp.gate.weight") != std::string::npos);
    const auto step = try_load("qwen3_moe", [](json& config) { config["decoder_sparse_step"] = 2; });
    REQUIRE_FALSE(step.has_value());  // layers 0 and 2 are dense then
    CHECK(step.error().message.find("model.layers.0.mlp.gate_proj.weight") != std::string::npos);
}

TEST_CASE("latents: queries with and without compression, and what the cache keeps") {
    const auto v2 = load("deepseek_v2"), v3 = load("deepseek_v3");
    CHECK(v2->config.latent->q_rank == 0);
    CHECK(v3->config.latent->q_rank == 24);
    CHECK(ops_of<model::Project>(*v2).size() == 2 * 2);
    CHECK(ops_of<model::Project>(*v3).size() == 3 * 3);
    for (const model::KvLayout& layout : v3->program.kv) {
        CHECK(layout.kind == model::KvLayout::Kind::latent);
        CHECK(layout.n_kv_heads == 1);
        CHECK(layout.head_dim_k == 32);
        CHECK(layout.head_dim_v == 8);
        CHECK(layout.query_dim() == 40);
        CHECK(layout.output_dim() == 32);
    }
    // The matrix that is absorbed is the transpose of the keys' rows of kv_b_proj, head by head.
    const model::LatentQuery& query = *ops_of<model::LatentQuery>(*v2).at(1);
    const auto* whole = v2->weights->find("model.layers.1.self_attn.kv_b_proj.weight");
    REQUIRE(whole != nullptr);
    CHECK(query.k_absorb.rows == 4 * 32);
    CHECK(query.k_absorb.cols == 16);
    for (const auto& [head, dim, rank] : {std::array{0, 0, 0}, {3, 15, 31}, {2, 5, 9}}) {
        const std::size_t from = static_cast<std::size_t>((head * 32 + dim) * 32 + rank) * 2;
        const std::size_t to = static_cast<std::size_t>((head * 32 + rank) * 16 + dim) * 2;
        CHECK(std::memcmp(whole->bytes.data() + from, query.k_absorb.data + to, 2) == 0);
    }
    CHECK(load("deepseek_v3", [](json& config) { config["rope_interleave"] = false; })->config.rope.pairing ==
          kernels::RopePairing::half_split);
}

TEST_CASE("arithmetic that these families do not have is refused by name") {
    const Refusal refusals[] = {
        {"mixtral", "hidden_act", "gelu", {"hidden_act", "\"gelu\""}},
        {"mixtral", "num_local_experts", 8, {"block_sparse_moe.gate.weight", "[4, 64]", "[8, 64]"}},
        {"mixtral", "num_local_experts", 2, {"block_sparse_moe.gate.weight", "[4, 64]", "[2, 64]"}},
        {"mixtral", "num_local_experts", 0, {"num_local_experts", "found 0"}},
        {"mixtral", "num_experts_per_tok", 5, {"5 experts for each token", "there are 4"}},
        {"mixtral", "num_experts_per_tok", 0, {"num_experts_per_tok", "found 0"}},
        {"mixtral", "intermediate_size", 32, {"experts.0.w1.weight", "[64, 64]", "[32, 64]"}},
        {"mixtral", "attention_bias", true, {"attention_bias = true"}},
        {"mixtral", "router_z_loss", 0.1, {"router_z_loss = 0.1"}},
        {"qwen3_moe", "mlp_only_layers", {3}, {"mlp_only_layers has 3", "0 to 2"}},
        {"qwen3_moe", "mlp_only_layers", {"1"}, {"mlp_only_layers", "array of integers"}},
        {"qwen3_moe", "decoder_sparse_step", 0, {"decoder_sparse_step", "found 0"}},
        {"qwen3_moe", "use_sliding_window", true, {"use_sliding_window is true"}},
        {"qwen3_moe", "moe_intermediate_size", 64, {"experts.0.gate_proj.weight", "[32, 64]", "[64, 64]"}},
        {"qwen3_moe", "num_experts", 4, {"num_local_experts is 8", "4"}},
        {"qwen3_moe", "attention_bias", true, {"attention_bias is true"}},
        {"qwen3_moe", "shared_expert_intermediate_size", 32, {"shared_expert_intermediate_size"}},
        {"deepseek_v2", "topk_method", "noaux_tc", {"topk_method is \"noaux_tc\"", "group_limited_greedy"}},
        {"deepseek_v2", "scoring_func", "sigmoid", {"scoring_func is \"sigmoid\"", "softmax"}},
        {"deepseek_v2", "norm_topk_prob", true, {"norm_topk_prob is true"}},
        {"deepseek_v2", "moe_layer_freq", 2, {"moe_layer_freq is 2"}},
        {"deepseek_v2", "n_group", 3, {"8 experts", "3 groups"}},
        {"deepseek_v2", "topk_group", 1, {"3 experts for each token", "1 of 4 groups of 2"}},
        {"deepseek_v2", "topk_group", 5, {"5 of 4 groups"}},
        {"deepseek_v2", "n_group", nullptr, {"n_group is missing"}},
        {"deepseek_v2", "mlp_bias", true, {"mlp_bias is true"}},
        {"deepseek_v2", "attention_bias", true, {"attention_bias is true"}},
        {"deepseek_v2", "num_key_value_heads", 2, {"num_key_value_heads is 2", "only 4"}},
        {"deepseek_v2", "q_lora_rank", 16, {"self_attn.q_a_proj.weight"}},
        {"deepseek_v2", "q_lora_rank", missing, {"q_lora_rank is missing"}},
        {"deepseek_v2", "n_shared_experts", missing, {"n_shared_experts is missing"}},
        {"deepseek_v2", "n_shared_experts", nullptr, {"shared_experts.down_proj.weight", "no place"}},
        {"deepseek_v2", "n_shared_experts", 2, {"shared_experts.gate_proj.weight", "[32, 64]", "[64, 64]"}},
        {"deepseek_v2", "n_routed_experts", 16, {"mlp.gate.weight", "[8, 64]", "[16, 64]"}},
        {"deepseek_v2", "n_routed_experts", missing, {"n_routed_experts is missing"}},
        {"deepseek_v2", "kv_lora_rank", 64, {"kv_a_proj_with_mqa.weight", "[40, 64]", "[72, 64]"}},
        {"deepseek_v2", "qk_rope_head_dim", 7, {"qk_head_dim is 24", "only 23"}},
        {"deepseek_v2", "first_k_dense_replace", 0, {"model.layers.0.mlp.gate.weight"}},
        {"deepseek_v2", "quantization_config", {{"quant_method", "fp8"}}, {"quantization_config.quant_method"}},
        {"deepseek_v3", "topk_method", "greedy", {"topk_method is \"greedy\"", "noaux_tc"}},
        {"deepseek_v3", "scoring_func", "softmax", {"scoring_func is \"softmax\"", "sigmoid"}},
        {"deepseek_v3", "n_group", 8, {"groups of 1 expert"}},
        {"deepseek_v3", "n_group", nullptr, {"n_group is missing"}},
        {"deepseek_v3", "index_topk", 2048, {"index_topk = 2048"}},
        {"deepseek_v3", "rope_scaling", {{"type", "yarn"}}, {"rope_scaling.factor is missing"}},
        {"deepseek_v3",
         "rope_scaling",
         {{"type", "yarn"}, {"factor", 4}, {"beta_fast", 1}, {"beta_slow", 32}},
         {"beta_fast 1", "beta_slow 32"}},
        {"deepseek_v3", "rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"ramp", 1}}, {"rope_scaling.ramp"}},
        {"deepseek_v3", "rope_scaling", {{"type", "longrope"}, {"factor", 4}}, {"longrope", "yarn"}},
    };
    for (const Refusal& one : refusals) {
        CAPTURE(one.family);
        CAPTURE(one.key);
        CAPTURE(one.value.dump());
        const auto loaded = try_load(one.family, [&](json& config) {
            if (one.value.is_discarded()) {
                config.erase(one.key);
            } else {
                config[one.key] = one.value;
            }
        });
        REQUIRE_FALSE(loaded.has_value());
        const std::string message = loaded.error().message;
        CAPTURE(message);
        for (const std::string& part : one.message) CHECK(message.find(part) != std::string::npos);
    }
}

TEST_CASE("keys of training and of placement are let pass") {
    load("mixtral", [](json& config) { config["router_jitter_noise"] = 0.1; });
    load("deepseek_v2", [](json& config) {
        config["ep_size"] = 8;
        config["aux_loss_alpha"] = 0.001;
        config["seq_aux"] = true;
        config["moe_layer_freq"] = 1;
    });
    load("deepseek_v3", [](json& config) { config["ep_size"] = 8; });
}

TEST_CASE("YaRN where transformers has it") {
    const json scaling = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
    for (const std::string family : {"llama", "qwen2", "qwen3", "mistral_swa", "mixtral", "qwen3_moe", "deepseek_v2"}) {
        CAPTURE(family);
        const auto model = load(family, [&](json& config) { config["rope_scaling"] = scaling; });
        CHECK(model->config.rope.scaling == model::RopeScalingKind::yarn);
        CHECK(model->config.rope.original_context == 128);
        CHECK(model->config.rope.attention_factor == doctest::Approx(1.138629436111989));
    }
    const auto own = load("qwen2", [&](json& config) {
        config["rope_scaling"] = scaling;
        config["rope_scaling"]["attention_factor"] = 2.0;
        config["rope_scaling"].erase("original_max_position_embeddings");
    });
    CHECK(own->config.rope.attention_factor == 2);
    CHECK(own->config.rope.original_context == own->config.context_length);
    for (const std::string family : {"gemma2", "phi3", "gpt_neox"}) {
        const auto refused = try_load(family, [&](json& config) { config["rope_scaling"] = scaling; });
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().message.find("rope_type is \"yarn\"") != std::string::npos);
    }
}

TEST_CASE("a bias of the choice that holds no number, and an expert that is not there, are refused by name") {
    const TempDir folder;
    copy_folder(folder, "golden/tiny/deepseek_v3/bf16", [](json&) {});
    const std::string path = folder / "model.safetensors", original = read_file(path);
    const std::string name = "model.layers.2.mlp.gate.e_score_correction_bias";
    const auto sound = load("deepseek_v3");
    const auto bias = sound->weights->find(name)->bytes;
    std::string bytes = original;
    const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(bias.data()), bias.size()));
    REQUIRE(at != std::string::npos);
    const std::uint32_t nan = 0x7FC00000;
    std::memcpy(bytes.data() + at + 12, &nan, sizeof(nan));
    std::filesystem::remove(path);
    folder.write("model.safetensors", bytes);
    const std::string message = load_error(folder.path());
    CHECK(message.find(name) != std::string::npos);
    CHECK(message.find("nan") != std::string::npos);

    bytes = original;
    rename_gguf(bytes, "layers.1.mlp.experts.5.up_proj", "layers.1.mlp.experts.8.up_proj");
    folder.write("model.safetensors", bytes);
    CHECK(load_error(folder.path()).find("model.layers.1.mlp.experts.5.up_proj.weight") != std::string::npos);
}

TEST_CASE("layers that predict further tokens are let pass, as many as the configuration says") {
    const TempDir folder;
    copy_folder(folder, "golden/tiny/deepseek_v3/bf16", [](json& config) { config["num_hidden_layers"] = 2; });
    CHECK(load_error(folder.path()).find("model.layers.2.") != std::string::npos);
    const auto shorter = load("deepseek_v3", [](json& config) {
        config["num_hidden_layers"] = 2;
        config["num_nextn_predict_layers"] = 1;
    });
    CHECK(shorter->program.kv.size() == 2);
}

TEST_CASE("a GGUF called llama is a Mixtral where it has experts") {
    const std::string path = testdata("golden/tiny/gguf/mixtral-f32.gguf");
    const auto gguf = model::Model::load(path);
    REQUIRE_MESSAGE(gguf.has_value(), (gguf ? "" : gguf.error().message));
    CHECK((*gguf)->config.arch == "mixtral");
    CHECK((*gguf)->arch_digest == load("mixtral")->arch_digest);
    // Experts are views of one tensor.
    const model::MoeAdd& moe = *ops_of<model::MoeAdd>(**gguf).at(1);
    const auto* stacked = (*gguf)->weights->find("blk.1.ffn_down_exps.weight");
    REQUIRE(stacked != nullptr);
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK(moe.experts[i].down.data == stacked->bytes.data() + i * 64 * 64 * 4);
        CHECK(moe.experts[i].down.rows == 64);
    }
    std::uint64_t bytes = 0;
    for (const std::string& name : (*gguf)->weights->names()) bytes += (*gguf)->weights->find(name)->bytes.size();
    CHECK((*gguf)->weight_bytes == bytes);

    const TempDir folder;
    std::string changed = read_file(path);
    set_gguf(changed, "llama.expert_count", std::uint32_t{8});
    const std::string message = load_error(folder.write("changed.gguf", changed));
    CHECK(message.find("blk.0.ffn_gate_inp.weight") != std::string::npos);
    CHECK(message.find("[8, 64]") != std::string::npos);
    changed = read_file(path);
    set_gguf(changed, "llama.expert_count", std::uint32_t{0});  // then it is a llama, which has none
    CHECK(load_error(folder.write("changed.gguf", changed)).find("expert_used_count is 2") != std::string::npos);
}
