// Families whose GGUF is laid out otherwise than the Hugging Face folder, read from both. The GGUF is written here from
// the folder by the conventions of llama.cpp's converter: its names, 1 added to Gemma's norm weights, GPT-NeoX's Q, K
// and V of all heads put together, experts stacked, what expands DeepSeek's latents whole or split into K (transposed)
// and V. Both must describe the same model and give the reference's logits.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "golden/tiny.h"
#include "io/tensor_source.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/io/gguf_bytes.h"
#include "unit/model/support.h"

namespace {

using namespace hetero;
using namespace hetero::test;

// How what expands latents is stored: kv_b whole, as Q8_0, or as f32 of the values that Q8_0 has; or k_b and v_b.
enum class Latents { none, whole, whole_q8_0, whole_rounded, split };

struct Family {
    std::string folder, arch;
    std::map<std::string, std::string> names;  // of the folder, to those of a GGUF; "L." stands for the layer
    std::map<std::string, std::uint32_t> counts;
    std::map<std::string, float> numbers;
    bool norms_plus_one = false, splits_heads = false;
    Latents latents = Latents::none;
};

// What the families with Llama-like names share.
std::map<std::string, std::string> with_usual(std::map<std::string, std::string> names) {
    names.insert({{"model.embed_tokens.weight", "token_embd.weight"},
                  {"model.norm.weight", "output_norm.weight"},
                  {"lm_head.weight", "output.weight"},
                  {"L.input_layernorm.weight", "L.attn_norm.weight"},
                  {"L.self_attn.q_proj.weight", "L.attn_q.weight"},
                  {"L.self_attn.k_proj.weight", "L.attn_k.weight"},
                  {"L.self_attn.v_proj.weight", "L.attn_v.weight"},
                  {"L.self_attn.o_proj.weight", "L.attn_output.weight"},
                  {"L.post_attention_layernorm.weight", "L.ffn_norm.weight"},
                  {"L.mlp.gate_proj.weight", "L.ffn_gate.weight"},
                  {"L.mlp.up_proj.weight", "L.ffn_up.weight"},
                  {"L.mlp.down_proj.weight", "L.ffn_down.weight"}});
    return names;
}

const std::map<std::string, std::string> gemma_names = {
    {"L.post_attention_layernorm.weight", "L.post_attention_norm.weight"},
    {"L.pre_feedforward_layernorm.weight", "L.ffn_norm.weight"},
    {"L.post_feedforward_layernorm.weight", "L.post_ffw_norm.weight"},
    {"L.self_attn.q_norm.weight", "L.attn_q_norm.weight"},
    {"L.self_attn.k_norm.weight", "L.attn_k_norm.weight"}};

const std::map<std::string, std::string> expert_names = {
    {"L.mlp.gate.weight", "L.ffn_gate_inp.weight"},
    {"L.mlp.gate.e_score_correction_bias", "L.exp_probs_b.bias"},
    {"L.mlp.experts.*.gate_proj.weight", "L.ffn_gate_exps.weight"},  // stacked
    {"L.mlp.experts.*.up_proj.weight", "L.ffn_up_exps.weight"},
    {"L.mlp.experts.*.down_proj.weight", "L.ffn_down_exps.weight"},
    {"L.mlp.shared_experts.gate_proj.weight", "L.ffn_gate_shexp.weight"},
    {"L.mlp.shared_experts.up_proj.weight", "L.ffn_up_shexp.weight"},
    {"L.mlp.shared_experts.down_proj.weight", "L.ffn_down_shexp.weight"}};

std::map<std::string, std::string> with_latents(std::map<std::string, std::string> names) {
    names.insert({{"L.self_attn.q_a_proj.weight", "L.attn_q_a.weight"},
                  {"L.self_attn.q_a_layernorm.weight", "L.attn_q_a_norm.weight"},
                  {"L.self_attn.q_b_proj.weight", "L.attn_q_b.weight"},
                  {"L.self_attn.kv_a_proj_with_mqa.weight", "L.attn_kv_a_mqa.weight"},
                  {"L.self_attn.kv_a_layernorm.weight", "L.attn_kv_a_norm.weight"},
                  {"L.self_attn.kv_b_proj.weight", "L.attn_kv_b.weight"}});
    return names;
}

const std::map<std::string, std::string> deepseek_names = with_usual(with_latents(expert_names));

const Family families[] = {
    {"gemma2",
     "gemma2",
     with_usual(gemma_names),
     {{"attention.sliding_window", 16}, {"attention.key_length", 24}, {"attention.value_length", 24}},
     {{"attn_logit_softcapping", 4},
      {"final_logit_softcapping", 20},
      {"attention.layer_norm_rms_epsilon", 1e-6F},
      {"attention.scale", 0.25F}},
     true},
    {"gemma3_text",
     "gemma3",
     with_usual(gemma_names),
     {{"attention.sliding_window", 16},
      {"attention.sliding_window_pattern", 3},
      {"attention.key_length", 32},
      {"attention.value_length", 32}},
     {{"attention.layer_norm_rms_epsilon", 1e-6F},
      {"attention.scale", 0.20412414523193154F},
      {"rope.freq_base", 1e6F},
      {"rope.scaling.factor", 8}},
     true},
    {"phi3",
     "phi3",
     with_usual(
         {{"L.self_attn.qkv_proj.weight", "L.attn_qkv.weight"}, {"L.mlp.gate_up_proj.weight", "L.ffn_up.weight"}}),
     {{"rope.dimension_count", 8}},
     {{"attention.layer_norm_rms_epsilon", 1e-5F}}},
    {"gpt_neox",
     "gptneox",
     {{"gpt_neox.embed_in.weight", "token_embd.weight"},
      {"gpt_neox.final_layer_norm.weight", "output_norm.weight"},
      {"gpt_neox.final_layer_norm.bias", "output_norm.bias"},
      {"embed_out.weight", "output.weight"},
      {"L.input_layernorm.weight", "L.attn_norm.weight"},
      {"L.input_layernorm.bias", "L.attn_norm.bias"},
      {"L.post_attention_layernorm.weight", "L.ffn_norm.weight"},
      {"L.post_attention_layernorm.bias", "L.ffn_norm.bias"},
      {"L.attention.query_key_value.weight", "L.attn_qkv.weight"},
      {"L.attention.query_key_value.bias", "L.attn_qkv.bias"},
      {"L.attention.dense.weight", "L.attn_output.weight"},
      {"L.attention.dense.bias", "L.attn_output.bias"},
      {"L.mlp.dense_h_to_4h.weight", "L.ffn_up.weight"},
      {"L.mlp.dense_h_to_4h.bias", "L.ffn_up.bias"},
      {"L.mlp.dense_4h_to_h.weight", "L.ffn_down.weight"},
      {"L.mlp.dense_4h_to_h.bias", "L.ffn_down.bias"}},
     {{"rope.dimension_count", 4}},
     {{"attention.layer_norm_epsilon", 1e-5F}},
     false,
     true},
    {"qwen3_moe",
     "qwen3moe",
     with_usual([] {
         auto names = expert_names;
         names.insert({{"L.self_attn.q_norm.weight", "L.attn_q_norm.weight"},
                       {"L.self_attn.k_norm.weight", "L.attn_k_norm.weight"}});
         return names;
     }()),
     {{"expert_count", 8}, {"expert_used_count", 2}, {"expert_feed_forward_length", 32}, {"attention.key_length", 16}},
     {{"attention.layer_norm_rms_epsilon", 1e-6F}, {"rope.freq_base", 1e6F}}},
    {"deepseek_v2",
     "deepseek2",
     deepseek_names,
     {{"expert_count", 8},
      {"expert_used_count", 3},
      {"expert_feed_forward_length", 32},
      {"expert_shared_count", 1},
      {"expert_group_count", 4},
      {"expert_group_used_count", 2},
      {"leading_dense_block_count", 1},
      {"attention.head_count_kv", 4},
      {"attention.kv_lora_rank", 32},
      {"attention.key_length", 24},
      {"attention.value_length", 16},
      {"rope.dimension_count", 8}},
     {{"attention.layer_norm_rms_epsilon", 1e-6F}, {"expert_weights_scale", 1.5F}},
     false,
     false,
     Latents::whole},
    {"deepseek_v3",
     "deepseek2",
     deepseek_names,
     {{"expert_count", 8},
      {"expert_used_count", 2},
      {"expert_feed_forward_length", 32},
      {"expert_shared_count", 1},
      {"expert_group_count", 4},
      {"expert_group_used_count", 2},
      {"expert_gating_func", 2},
      {"expert_weights_norm", 1},
      {"leading_dense_block_count", 1},
      {"attention.head_count_kv", 1},
      {"attention.q_lora_rank", 24},
      {"attention.kv_lora_rank", 32},
      {"attention.key_length", 40},
      {"attention.value_length", 32},
      {"attention.key_length_mla", 24},
      {"attention.value_length_mla", 16},
      {"rope.dimension_count", 8},
      {"rope.scaling.original_context_length", 128}},
     {{"attention.layer_norm_rms_epsilon", 1e-6F},
      {"expert_weights_scale", 2.5F},
      {"rope.scaling.factor", 4},
      {"rope.scaling.yarn_log_multiplier", 0.0707F}},
     false,
     false,
     Latents::split},
};

std::string gguf_name(const Family& family, std::string name) {
    std::string layer;
    for (const std::string_view prefix : {"model.layers.", "gpt_neox.layers."}) {
        if (!name.starts_with(prefix)) continue;
        const std::size_t dot = name.find('.', prefix.size());
        layer = fmt::format("blk.{}", name.substr(prefix.size(), dot - prefix.size()));
        name = fmt::format("L{}", name.substr(dot));
    }
    constexpr std::string_view experts = "L.mlp.experts.";
    std::string expert;
    if (name.starts_with(experts)) {
        const std::size_t dot = name.find('.', experts.size());
        expert = name.substr(experts.size(), dot - experts.size());
        name = fmt::format("{}*{}", experts, name.substr(dot));
    }
    const auto found = family.names.find(name);
    REQUIRE_MESSAGE(found != family.names.end(), name);
    std::string target = layer + found->second.substr(layer.empty() ? 0 : 1);
    if (const std::size_t star = target.find('*'); star != std::string::npos) {
        target = fmt::format("{}{}{}", target.substr(0, star), expert, target.substr(star + 1));
    }
    return target;
}

std::vector<float> values_of(const io::TensorView& view) {
    std::vector<float> values(view.bytes.size() / kernels::dtype_bytes(view.dtype, 1));
    kernels::ops().dequantize(view.dtype, view.bytes.data(), values.data(), values.size());
    return values;
}

// [head][Q, K, V][dim] becomes [Q, K, V][head][dim]; `row` elements each.
std::vector<float> without_interleaving(const std::vector<float>& values, std::size_t heads, std::size_t dim,
                                        std::size_t row) {
    std::vector<float> out(values.size());
    for (std::size_t head = 0; head < heads; ++head) {
        for (std::size_t part = 0; part < 3; ++part) {
            std::copy_n(&values[(head * 3 + part) * dim * row], dim * row, &out[(part * heads + head) * dim * row]);
        }
    }
    return out;
}

// Rows [first, first + rows) of each head's `period` rows of `row` elements; transposed: [head][row][rows].
std::vector<float> rows_of_heads(const std::vector<float>& values, std::size_t row, std::size_t period,
                                 std::size_t first, std::size_t rows, bool transposed) {
    std::vector<float> out;
    for (std::size_t head = 0; head < values.size(); head += period * row) {
        for (std::size_t i = 0; i < rows * row; ++i) {
            const std::size_t r = transposed ? i % rows : i / row, c = transposed ? i / rows : i % row;
            out.push_back(values[head + (first + r) * row + c]);
        }
    }
    return out;
}

using Shape = std::vector<std::uint64_t>;  // outermost first

// Blocks of 32 values: a scale in f16 and codes of 8 bits.
std::string q8_0(const std::vector<float>& values) {
    std::string bytes;
    for (std::size_t at = 0; at < values.size(); at += 32) {
        float largest = 0;
        for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[at + i]));
        const float scale = largest / 127;
        std::uint16_t half = 0;
        kernels::ops().f32_to_f16(&scale, &half, 1);
        bytes += raw(half);
        for (std::size_t i = 0; i < 32; ++i) {
            bytes += static_cast<char>(std::clamp(std::lround(values[at + i] / scale), -127L, 127L));
        }
    }
    return bytes;
}

void append_tensor(GgufBytes& out, const std::string& name, const Shape& shape, const std::vector<float>& values,
                   Latents latents) {
    constexpr std::uint32_t type_q8_0 = 8;
    const bool latent = name.ends_with("attn_kv_b.weight");
    out.data.resize((out.data.size() + out.alignment - 1) / out.alignment * out.alignment, '\0');
    if (latent && latents == Latents::whole_q8_0) {
        out.tensor(name, {shape[1], shape[0]}, type_q8_0, out.data.size());
        out.data += q8_0(values);
        return;
    }
    if (latent && latents == Latents::whole_rounded) {
        const std::string blocks = q8_0(values);
        std::vector<float> rounded(values.size());
        kernels::ops().dequantize(DType::q8_0, blocks.data(), rounded.data(), rounded.size());
        return append_tensor(out, name, shape, rounded, Latents::whole);
    }
    switch (shape.size()) {
        case 1:
            out.tensor(name, {shape[0]}, 0, out.data.size());
            break;
        case 2:
            out.tensor(name, {shape[1], shape[0]}, 0, out.data.size());
            break;
        default:
            out.tensor(name, {shape[2], shape[1], shape[0]}, 0, out.data.size());
            break;
    }
    out.data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

void append_keys(GgufBytes& out, const Family& family, const model::Config& config) {
    std::map<std::string, std::uint32_t> counts = {
        {"block_count", config.n_layers},         {"embedding_length", config.hidden},
        {"feed_forward_length", config.ffn},      {"context_length", config.context_length},
        {"attention.head_count", config.n_heads}, {"attention.head_count_kv", config.n_kv_heads}};
    for (const auto& [name, value] : family.counts) counts[name] = value;
    out.key("general.architecture", GgufBytes::string, GgufBytes::text(family.arch));
    for (const auto& [name, value] : counts) {
        if (name == "expert_weights_norm") {
            out.key(family.arch + "." + name, GgufBytes::boolean, raw(static_cast<std::uint8_t>(value)));
        } else {
            out.key(family.arch + "." + name, GgufBytes::u32, raw(value));
        }
    }
    for (const auto& [name, value] : family.numbers) {
        out.key(family.arch + "." + name, GgufBytes::f32, raw(value));
    }
    if (family.numbers.contains("rope.scaling.factor")) {
        const bool yarn = family.counts.contains("rope.scaling.original_context_length");
        out.key(family.arch + ".rope.scaling.type", GgufBytes::string, GgufBytes::text(yarn ? "yarn" : "linear"));
    }
}

// Tensors of one name and their values; those of experts are joined.
struct Joined {
    Shape shape;
    std::vector<float> values;
};

std::string gguf_of(const Family& family, const model::Model& model) {
    const model::Config& config = model.config;
    GgufBytes out;
    append_keys(out, family, config);
    std::map<std::string, Joined> tensors;
    std::vector<std::string> names = model.weights->names();  // of up to 10 experts: in their order
    for (const std::string& name : names) {
        const io::TensorView& view = *model.weights->find(name);
        std::vector<float> values = values_of(view);
        const std::string target = gguf_name(family, name);
        if (family.norms_plus_one && target.ends_with("norm.weight")) {
            for (float& value : values) value += 1;
        }
        if (family.splits_heads && target.find("attn_qkv") != std::string::npos) {
            values = without_interleaving(values, config.n_heads, config.head_dim,
                                          view.shape.size() == 2 ? view.shape[1] : 1);
        }
        if (family.latents == Latents::split && target.ends_with("attn_kv_b.weight")) {
            const model::LatentConfig& latent = *config.latent;
            const std::size_t period = latent.plain_dim + latent.v_dim;
            const std::string layer = target.substr(0, target.find("attn_kv_b"));
            tensors[layer + "attn_k_b.weight"] = {
                {config.n_heads, latent.kv_rank, latent.plain_dim},
                rows_of_heads(values, latent.kv_rank, period, 0, latent.plain_dim, true)};
            tensors[layer + "attn_v_b.weight"] = {
                {config.n_heads, latent.v_dim, latent.kv_rank},
                rows_of_heads(values, latent.kv_rank, period, latent.plain_dim, latent.v_dim, false)};
            continue;
        }
        Joined& joined = tensors[target];
        if (target.find("_exps.") != std::string::npos) {
            if (joined.shape.empty()) joined.shape = {0, view.shape[0], view.shape[1]};
            ++joined.shape[0];
        } else {
            joined.shape = view.shape;
        }
        joined.values.insert(joined.values.end(), values.begin(), values.end());
    }
    for (const auto& [name, tensor] : tensors) append_tensor(out, name, tensor.shape, tensor.values, family.latents);
    return out.bytes();
}

const Family& family_of(const std::string& folder) {
    const auto* found =
        std::find_if(std::begin(families), std::end(families), [&](const Family& one) { return one.folder == folder; });
    REQUIRE(found != std::end(families));
    return *found;
}

}  // namespace

TEST_CASE("a GGUF gives the logits of the folder it was made of, and is the same architecture") {
    for (const Family& family : families) {
        CAPTURE(family.folder);
        const std::string relative = "golden/tiny/" + family.folder + "/bf16";
        // GGUF has no mscale apart from mscale_all_dim.
        const bool same_scales = family.numbers.contains("rope.scaling.yarn_log_multiplier");
        const TempDir dir, edited;
        copy_folder(edited, relative, [&](nlohmann::json& config) {
            if (same_scales) config["rope_scaling"]["mscale"] = config["rope_scaling"]["mscale_all_dim"];
        });
        const auto folder = must(model::Model::load(edited.path()));
        const auto gguf = must(model::Model::load(dir.write("model.gguf", gguf_of(family, *folder))));
        CHECK(gguf->config.arch == folder->config.arch);
        CHECK(gguf->arch_digest == folder->arch_digest);
        const Golden golden(relative + "/golden.safetensors");
        const auto prompt = golden.get<std::int32_t>("p129.input_ids");
        const auto got = prefill_all(*make_session(gguf, DType::f32, prompt.size()), prompt);
        const double worst =
            same_scales ? max_difference(got, prefill_all(*make_session(folder, DType::f32, prompt.size()), prompt))
                        : logit_error(golden, 129, got);
        CHECK(worst <= logit_tolerance);
        MESSAGE(family.folder, " as GGUF: max |d logit| ", worst);
    }
}

TEST_CASE("YaRN of a GGUF is that of the folder") {
    Family family = family_of("qwen3_moe");
    family.counts["rope.scaling.original_context_length"] = 128;
    family.numbers["rope.scaling.factor"] = 4;
    const TempDir dir, edited;
    copy_folder(edited, "golden/tiny/qwen3_moe/bf16", [](nlohmann::json& config) {
        config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
    });
    const auto folder = must(model::Model::load(edited.path()));
    const auto gguf = must(model::Model::load(dir.write("model.gguf", gguf_of(family, *folder))));
    CHECK(gguf->config.rope.attention_factor == folder->config.rope.attention_factor);
    CHECK(gguf->arch_digest == folder->arch_digest);
    const auto prompt = Golden("golden/tiny/qwen3_moe/bf16/golden.safetensors").get<std::int32_t>("p129.input_ids");
    CHECK(max_difference(prefill_all(*make_session(gguf, DType::f32, prompt.size()), prompt),
                         prefill_all(*make_session(folder, DType::f32, prompt.size()), prompt)) <= logit_tolerance);
}

TEST_CASE("experts of files from before they were stacked") {
    Family family = family_of("qwen3_moe");
    for (const std::string part : {"gate", "up", "down"}) {
        family.names[fmt::format("L.mlp.experts.*.{}_proj.weight", part)] = fmt::format("L.ffn_{}.*.weight", part);
    }
    const auto folder = load("golden/tiny/qwen3_moe/bf16");
    const TempDir dir;
    const auto gguf = must(model::Model::load(dir.write("model.gguf", gguf_of(family, *folder))));
    CHECK(gguf->weights->find("blk.2.ffn_up.7.weight") != nullptr);
    CHECK(prompt_error(gguf, Golden("golden/tiny/qwen3_moe/bf16/golden.safetensors"), 129) <= logit_tolerance);
}

TEST_CASE("what expands latents may be quantized") {
    Family family = family_of("deepseek_v2");
    const auto folder = load("golden/tiny/deepseek_v2/bf16");
    const TempDir dir;
    const auto logits = [&](Latents latents) {
        family.latents = latents;
        const auto model = must(model::Model::load(dir.write("model.gguf", gguf_of(family, *folder))));
        const auto prompt =
            Golden("golden/tiny/deepseek_v2/bf16/golden.safetensors").get<std::int32_t>("p129.input_ids");
        return prefill_all(*make_session(model, DType::f32, prompt.size()), prompt);
    };
    const auto quantized = logits(Latents::whole_q8_0), rounded = logits(Latents::whole_rounded);
    CHECK(max_difference(quantized, rounded) <= logit_tolerance);
    CHECK(max_difference(quantized, logits(Latents::whole)) > logit_tolerance);
}

TEST_CASE("keys of a DeepSeek's GGUF that are missing, contradict or are not implemented are refused by name") {
    struct Change {
        std::string folder, key;
        std::optional<std::uint32_t> value;  // nullopt: the key is removed
        std::string message;
    };
    const Change changes[] = {
        {"deepseek_v2", "expert_group_count", std::nullopt, "expert_group_count and deepseek2.expert_group_used_count"},
        {"deepseek_v2", "expert_group_used_count", 5, "5 of 4 groups"},
        {"deepseek_v2", "expert_gating_func", 3, "expert_gating_func is 3"},
        {"deepseek_v2", "expert_gating_func", 2, "exp_probs_b.bias"},  // a version 3 without its bias
        {"deepseek_v2", "expert_weights_norm", 1, "expert_weights_norm is true"},
        {"deepseek_v2", "expert_count", 16, "blk.1.ffn_gate_inp.weight"},
        {"deepseek_v2", "expert_shared_count", 0, "no place"},
        {"deepseek_v2", "expert_used_count", std::nullopt, "expert_used_count is missing"},
        {"deepseek_v2", "leading_dense_block_count", 0, "blk.0.ffn_gate_inp.weight"},
        {"deepseek_v2", "attention.head_count_kv", 2, "head_count_kv is 2; 1 and 4"},
        {"deepseek_v2", "attention.key_length", 8, "keys of 8 with 8 dimensions of RoPE"},
        {"deepseek_v2", "attention.kv_lora_rank", std::nullopt, "kv_lora_rank is missing"},
        {"deepseek_v2", "attention.q_lora_rank", 24, "blk.0.attn_q_a.weight"},
        {"deepseek_v2", "nextn_predict_layers", 1, "nextn_predict_layers is 1"},
        {"deepseek_v2", "attention.indexer.top_k", 2048, "indexer.top_k"},
        {"deepseek_v3", "attention.key_length", 24, "key_length is 24; only 40"},
        {"deepseek_v3", "attention.key_length_mla", std::nullopt, "one of key_length_mla and value_length_mla"},
        {"deepseek_v3", "attention.value_length_mla", 8, "blk.0.attn_v_b.weight"},
        {"deepseek_v3", "expert_gating_func", std::nullopt, "expert_weights_norm"},  // read as version 2
        {"deepseek_v3", "rope.scaling.yarn_log_multiplier", std::nullopt, "yarn_log_multiplier"},
        {"deepseek_v3", "rope.scaling.original_context_length", 0, "original_context_length"},
        {"deepseek_v3", "rope.scaling.yarn_beta_fast", 0, "yarn_beta_fast"},
    };
    for (const Change& change : changes) {
        CAPTURE(change.folder);
        CAPTURE(change.key);
        Family family = family_of(change.folder);
        family.numbers.erase(change.key);
        family.counts.erase(change.key);
        if (change.value) family.counts[change.key] = *change.value;
        const auto folder = load("golden/tiny/" + change.folder + "/bf16");
        const TempDir dir;
        const std::string message = load_error(dir.write("model.gguf", gguf_of(family, *folder)));
        CAPTURE(message);
        CHECK(message.find(change.message) != std::string::npos);
    }
}
