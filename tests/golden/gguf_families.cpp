// Families whose GGUF is laid out otherwise than the Hugging Face folder, read from both. The GGUF is written here from
// the folder by the conventions of llama.cpp's converter: its names, 1 added to Gemma's norm weights, GPT-NeoX's Q, K
// and V of all heads put together. Both must describe the same model and give the reference's logits.
#include <algorithm>
#include <cmath>
#include <map>

#include "golden/runs.h"
#include "io/tensor_source.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/io/gguf_bytes.h"

namespace {

using namespace hetero;
using namespace hetero::test;

constexpr double logit_tolerance = 1e-3;  // as for the folders

struct Family {
    std::string folder, arch;
    std::map<std::string, std::string> names;  // of the folder, to those of a GGUF; "L." stands for the layer
    std::map<std::string, std::uint32_t> counts;
    std::map<std::string, float> numbers;
    bool norms_plus_one = false, splits_heads = false;
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
};

std::string gguf_name(const Family& family, std::string name) {
    std::string layer;
    for (const std::string_view prefix : {"model.layers.", "gpt_neox.layers."}) {
        if (!name.starts_with(prefix)) continue;
        const std::size_t dot = name.find('.', prefix.size());
        layer = fmt::format("blk.{}", name.substr(prefix.size(), dot - prefix.size()));
        name = fmt::format("L{}", name.substr(dot));
    }
    const auto found = family.names.find(name);
    REQUIRE_MESSAGE(found != family.names.end(), name);
    return layer + found->second.substr(layer.empty() ? 0 : 1);
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

std::string gguf_of(const Family& family, const model::Model& model) {
    const model::Config& config = model.config;
    GgufBytes out;
    const auto count = [&](const std::string& name, std::uint32_t value) {
        out.key(family.arch + "." + name, GgufBytes::u32, raw(value));
    };
    out.key("general.architecture", GgufBytes::string, GgufBytes::text(family.arch));
    count("block_count", config.n_layers);
    count("embedding_length", config.hidden);
    count("feed_forward_length", config.ffn);
    count("context_length", config.context_length);
    count("attention.head_count", config.n_heads);
    count("attention.head_count_kv", config.n_kv_heads);
    for (const auto& [name, value] : family.counts) count(name, value);
    for (const auto& [name, value] : family.numbers) {
        out.key(family.arch + "." + name, GgufBytes::f32, raw(value));
    }
    if (family.numbers.contains("rope.scaling.factor")) {
        out.key(family.arch + ".rope.scaling.type", GgufBytes::string, GgufBytes::text("linear"));
    }
    for (const std::string& name : model.weights->names()) {
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
        out.data.resize((out.data.size() + out.alignment - 1) / out.alignment * out.alignment, '\0');
        if (view.shape.size() == 2) {
            out.tensor(target, {view.shape[1], view.shape[0]}, 0, out.data.size());
        } else {
            out.tensor(target, {view.shape[0]}, 0, out.data.size());
        }
        out.data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    return out.bytes();
}

}  // namespace

TEST_CASE("a GGUF gives the logits of the folder it was made of, and is the same architecture") {
    for (const Family& family : families) {
        CAPTURE(family.folder);
        const std::string relative = "golden/tiny/" + family.folder + "/bf16";
        const auto folder = must(model::Model::load(testdata(relative)));
        const TempDir dir;
        const auto gguf = must(model::Model::load(dir.write("model.gguf", gguf_of(family, *folder))));
        CHECK(gguf->config.arch == folder->config.arch);
        CHECK(gguf->arch_digest == folder->arch_digest);
        const Golden golden(relative + "/golden.safetensors");
        const auto prompt = golden.get<std::int32_t>("p129.input_ids");
        const auto expected = golden.get<float>("p129.logits");
        const auto session = make_session(gguf, DType::f32, prompt.size());
        const auto got = prefill_all(*session, prompt);
        REQUIRE(got.size() == expected.size());
        double worst = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
            const double difference = std::fabs(static_cast<double>(got[i]) - expected[i]);
            if (!(difference <= worst)) worst = difference;
        }
        CHECK(worst <= logit_tolerance);
        MESSAGE(family.folder, " as GGUF: max |d logit| ", worst);
    }
}
