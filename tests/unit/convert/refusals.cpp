// What a folder says and a GGUF cannot: refused by name, never left out.
#include "unit/convert/carry_out.h"
#include "unit/model/support.h"

namespace {

using namespace hetero;
using namespace hetero::test;
using nlohmann::json;

std::shared_ptr<const model::Model> changed(const std::string& family, const TempDir& dir,
                                            const std::function<void(json&)>& edit) {
    copy_folder(dir, "golden/tiny/" + family + "/bf16", edit);
    return load_model(dir.path());
}

void refused(const std::string& family, const std::function<void(json&)>& edit, const std::vector<std::string>& named) {
    CAPTURE(family);
    const TempDir dir;
    const auto plan = convert::plan_to_gguf(*changed(family, dir, edit));
    REQUIRE_FALSE(plan.has_value());
    CAPTURE(plan.error().message);
    CHECK(plan.error().code == Errc::bad_input);
    CHECK(plan.error().message.starts_with(dir.path()));
    CHECK(plan.error().message.find('\n') == std::string::npos);
    for (const std::string& text : named) CHECK(plan.error().message.find(text) != std::string::npos);
}

std::shared_ptr<const model::Model> through_gguf(const std::string& family, const std::function<void(json&)>& edit,
                                                 const TempDir& dir, const TempDir& gguf) {
    const auto folder = changed(family, dir, edit);
    const auto model = load_model(write_gguf(gguf, must(convert::plan_to_gguf(*folder)), *folder));
    CHECK(folder->arch_digest == model->arch_digest);
    const auto back = load_model(write_folder(gguf, must(convert::plan_to_folder(*model)), *model));
    CHECK(folder->arch_digest == back->arch_digest);
    return model;
}

}  // namespace

TEST_CASE("layers that slide otherwise than a GGUF can say") {
    const auto types = [](std::vector<std::string> list) {
        return [list](json& config) { config["layer_types"] = list; };
    };
    const std::string slide = "sliding_attention", full = "full_attention";
    refused("gemma2", types({full, slide}), {"layer 0", "gemma2"});
    refused("gemma3_text", types({slide, full, full, slide}), {"layer_types", "gemma3"});
    refused("mistral_swa", types({slide, full, slide}), {"24 tokens", "llama"});
    refused("qwen2",
            [&](json& config) {
                config["use_sliding_window"] = true;
                config["sliding_window"] = 16;
                config["layer_types"] = {full, slide, slide};
            },
            {"use_sliding_window", "qwen2"});
    refused("qwen3",
            [&](json& config) {
                config["use_sliding_window"] = true;
                config["sliding_window"] = 16;
                config["layer_types"] = {full, slide};
            },
            {"use_sliding_window", "qwen3"});
    refused("phi3",
            [&](json& config) {
                config["sliding_window"] = 16;
                config["layer_types"] = {full, slide};
            },
            {"16 tokens", "phi3"});
}

TEST_CASE("arithmetic that a GGUF has no key for") {
    const json llama3 = {{"rope_type", "llama3"},
                         {"factor", 8},
                         {"low_freq_factor", 1},
                         {"high_freq_factor", 4},
                         {"original_max_position_embeddings", 64}};
    for (const char* family : {"qwen2", "qwen3", "gemma2", "phi3", "gpt_neox"}) {
        refused(family, [&](json& config) { config["rope_scaling"] = llama3; }, {"llama3", family});
    }
    refused("gemma3_text", [](json& config) { config["attn_logit_softcapping"] = 50; },
            {"attn_logit_softcapping", "50"});
    refused("gpt_neox", [](json& config) { config["hidden_act"] = "gelu_fast"; }, {"hidden_act", "erf"});
}

TEST_CASE("YaRN that a GGUF cannot say") {
    // The golden of DeepSeek-V3 scales Q and K: mscale is not mscale_all_dim.
    refused("deepseek_v3", [](json&) {}, {"YaRN", "deepseek_v3"});
    refused("deepseek_v3",
            [](json& config) {
                config["rope_scaling"].erase("mscale");
                config["rope_scaling"].erase("mscale_all_dim");
            },
            {"YaRN"});
    const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
    for (const auto& [key, value] : {std::pair<const char*, json>{"attention_factor", 2.0}, {"truncate", false}}) {
        refused("llama",
                [&, key = key, value = value](json& config) {
                    config["rope_scaling"] = yarn;
                    config["rope_scaling"][key] = value;
                },
                {"YaRN"});
    }
}

TEST_CASE("what a configuration may say comes through") {
    struct Case {
        const char* family;
        std::function<void(json&)> edit;
    };
    const auto set = [](const char* key, json value) { return [key, value](json& config) { config[key] = value; }; };
    const json linear = {{"rope_type", "linear"}, {"factor", 2.3}};
    const Case cases[] = {
        {"llama", set("rope_scaling", linear)},
        {"llama", set("rope_theta", 123456789.0)},  // no float
        {"qwen2", set("rope_scaling", linear)},
        {"llama", set("rms_norm_eps", 3.3e-6)},
        {"mistral_swa", set("sliding_window", nullptr)},
        {"gemma2", set("attn_logit_softcapping", nullptr)},
        {"gemma2", set("final_logit_softcapping", 12.3)},
        {"gemma2", set("query_pre_attn_scalar", 24)},  // the head size
        {"gemma2", set("query_pre_attn_scalar", 17.7)},
        {"gemma3_text", set("final_logit_softcapping", 7.5)},
        {"gemma3_text", set("rope_local_base_freq", 20000.0)},
        {"gemma3_text", set("layer_types", std::vector<std::string>(4, "sliding_attention"))},
        {"gemma3_text", set("layer_types", std::vector<std::string>(4, "full_attention"))},
        {"phi3", set("sliding_window", 16)},
        {"phi3", set("partial_rotary_factor", 0.3751)},
        {"gpt_neox", set("use_parallel_residual", false)},
        {"gpt_neox", set("rotary_pct", 0.5)},
        {"llama",
         set("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}})},
        {"qwen3", set("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.3}, {"beta_fast", 24}})},
        {"mixtral", set("sliding_window", 16)},
        {"mixtral", set("num_experts_per_tok", 1)},
        {"qwen3_moe", set("norm_topk_prob", false)},
        {"qwen3_moe", set("mlp_only_layers", json::array({1}))},
        {"deepseek_v2", set("topk_method", "greedy")},
        {"deepseek_v2", set("routed_scaling_factor", 16.0)},
        {"deepseek_v2", set("topk_group", 3)},
        {"deepseek_v3", [](json& config) { config["rope_scaling"] = nullptr; }},
        {"deepseek_v3",
         [](json& config) {
             config["rope_scaling"] = nullptr;
             config["rope_interleave"] = false;
         }},
        {"deepseek_v3",
         [](json& config) {
             config["rope_scaling"]["mscale"] = config["rope_scaling"]["mscale_all_dim"] = 1.0;
             config["norm_topk_prob"] = false;
             config["n_group"] = 1;
             config["topk_group"] = 1;
         }},
    };
    for (const Case& one : cases) {
        const TempDir dir, gguf;
        CAPTURE(one.family);
        CAPTURE(&one - cases);
        through_gguf(one.family, one.edit, dir, gguf);
    }
}

TEST_CASE("Llama 3's scaling with other than the published bounds: the same frequencies, but another name, and said") {
    const TempDir dir, out;
    const auto folder =
        changed("llama3_rope", dir, [](json& config) { config["rope_scaling"]["high_freq_factor"] = 3.0; });
    const convert::Plan plan = must(convert::plan_to_gguf(*folder));
    REQUIRE_FALSE(plan.warnings.empty());
    CHECK(plan.warnings[0].find("high_freq_factor 3") != std::string::npos);
    const auto gguf = load_model(write_gguf(out, plan, *folder));
    CHECK(folder->arch_digest != gguf->arch_digest);
    const auto a = model::inverse_frequencies(folder->config.rope), b = model::inverse_frequencies(gguf->config.rope);
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-6));
}

TEST_CASE("a head that is tied and written all the same is left out") {
    const TempDir dir, out;
    const auto folder = changed("llama", dir, [](json& config) { config["tie_word_embeddings"] = true; });
    const convert::Plan plan = must(convert::plan_to_gguf(*folder));
    for (const convert::TensorPlan& one : plan.tensors) CHECK(one.name != "output.weight");
    CHECK(load_model(write_gguf(out, plan, *folder))->config.tied_embeddings);
}

TEST_CASE("gpt_neox with a tied head has one of its own in GGUF, as llama.cpp wants") {
    const TempDir dir, out;
    const auto folder = changed("gpt_neox", dir, [](json& config) { config["tie_word_embeddings"] = true; });
    const auto gguf = load_model(write_gguf(out, must(convert::plan_to_gguf(*folder)), *folder));
    CHECK_FALSE(gguf->config.tied_embeddings);
    CHECK(folder->arch_digest == gguf->arch_digest);
    const Tensors tensors = tensors_of(*gguf->weights);
    CHECK((tensors.at("output.weight") == tensors.at("token_embd.weight")));
}

TEST_CASE("rotated rows of latent attention are interleaved where the checkpoint has halves") {
    const TempDir dir, out;
    const auto folder = changed("deepseek_v3", dir, [](json& config) {
        config["rope_scaling"] = nullptr;
        config["rope_interleave"] = false;
    });
    const auto gguf = load_model(write_gguf(out, must(convert::plan_to_gguf(*folder)), *folder));
    const Tensors from = tensors_of(*folder->weights), to = tensors_of(*gguf->weights);
    const model::LatentConfig& latent = *folder->config.latent;
    const auto check = [&](const std::string& source, const std::string& target, std::uint64_t heads,
                           std::uint64_t plain) {
        CAPTURE(target);
        const Tensor &a = from.at(source), &b = to.at(target);
        REQUIRE(a.shape == b.shape);
        const std::uint64_t cols = a.shape[1], period = plain + latent.rope_dim;
        REQUIRE(a.shape[0] == heads * period);
        for (std::uint64_t row = 0; row < a.shape[0]; ++row) {
            const std::uint64_t in_head = row % period;
            const std::uint64_t place =
                in_head < plain ? row : row - in_head + plain + interleaved_place(in_head - plain, latent.rope_dim);
            CHECK(std::memcmp(&a.values[row * cols], &b.values[place * cols], cols * sizeof(float)) == 0);
        }
    };
    check("model.layers.1.self_attn.q_b_proj.weight", "blk.1.attn_q_b.weight", folder->config.n_heads,
          latent.plain_dim);
    check("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", "blk.1.attn_kv_a_mqa.weight", 1, latent.kv_rank);
}
