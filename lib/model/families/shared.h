// What families have in common: keys of the configuration that are read the same way everywhere, and the decoder that
// most of them are (norm, attention, norm, gated FFN) with the parts that one has and another has not.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/family.h"

namespace hetero::model {

// ---- configuration

// Keys of GGUF metadata (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) under "<arch>.". What is particular
// to the family is read by the family, which then calls keys.refuse_unread("<arch>.").
struct GgufKeys {
    std::string_view arch;
    kernels::RopePairing pairing = kernels::RopePairing::half_split;
    std::string_view norm_eps = "attention.layer_norm_rms_epsilon";
    double theta = 10000;  // where the key is missing
    bool yarn = false;     // RoPE may be stretched by YaRN
    bool experts = false;  // the family reads the keys of experts
    bool latent = false;   // the family reads the keys of heads, and then calls read_gguf_rope
};
Result<Config> read_gguf(Keys& keys, const GgufKeys& family);
Status read_gguf_rope(Keys& keys, const GgufKeys& family, Config& config);
// The experts of config.n_layers layers. What a file does not say of weights and groups stays at a RoutingRule's
// defaults; `normalize` is what a missing key means.
Result<MoeConfig> read_gguf_experts(Keys& keys, std::string_view arch, const Config& config, bool normalize);

// A mistral's window, or a mixtral's, in a GGUF of llama. llama.cpp does not look at it, nor does its converter write
// it.
Status read_llama_window(Keys& keys, Config& config);

// GGUF knows Mixtral as a Llama that has experts.
[[nodiscard]] bool has_llama_experts(Keys& keys);

// Keys of a config.json; the defaults are those of the published configuration class. Nothing here is read that only
// some families have: the family does that, and then calls keys.refuse_unread("").
struct FolderKeys {
    std::string_view class_name;  // in `architectures`
    std::string_view model_type;
    std::optional<std::uint32_t> head_dim = {};    // nullopt: hidden size / heads
    std::optional<std::uint32_t> n_kv_heads = {};  // nullopt: as many as heads
    std::string_view norm_eps_key = "rms_norm_eps";
    double norm_eps = 1e-6;
    bool tied_embeddings = false;
    bool latent = false;  // the family reads the keys of heads
};
Result<Config> read_folder(Keys& keys, const FolderKeys& family);

// The RoPE keys of a config.json. The base lies under one of `theta_keys`; how it is stretched under `section`, as
// transformers 5 writes it, or else under `old_section`, as it was published ("": nowhere).
struct RopeKeys {
    std::vector<std::string> theta_keys{"rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta"};
    double theta = 10000;  // where the keys are missing
    std::string section = "rope_parameters.";
    std::string old_section = "rope_scaling.";
    std::uint32_t yarn_context = 0;  // original context where YaRN does not say; 0: YaRN is not implemented
};
Status read_rope(Keys& keys, RopeConfig& rope, const RopeKeys& names = {});

// The same number under several keys, in [low, high]; nullopt where all are missing. Contradictions are refused.
Result<std::optional<double>> agreed_number(Keys& keys, const std::vector<std::string>& names, double low, double high);

// RoPE over a part of each head: rotary_dim = head_dim * factor.
Status read_partial_rotary(Keys& keys, Config& config, const std::vector<std::string>& names, double factor);

// Which layers see only a window: `layer_types`, or else what `usual` says of a layer. config.window is set by then;
// without a window (0) no layer may be a sliding one.
Status read_sliding_layers(Keys& keys, Config& config, const std::function<bool(std::uint32_t layer)>& usual);

// Qwen's: without layer_types, layers from max_window_layers on slide, if use_sliding_window says so.
Status read_upper_sliding_layers(Keys& keys, Config& config);

// "sliding_window": missing gives `fallback`, null none (0).
Result<std::uint32_t> read_window(Keys& keys, std::uint32_t fallback);

// ---- program

// Names of tensors; empty where the family has none. `layer` takes the layer's number.
struct DecoderNames {
    std::string_view embedding, final_norm, head, layer;
    std::string_view attn_norm, q, k, v, o, ffn_norm, gate, up, down;
    std::string_view qkv = {}, gate_up = {};                   // fused, instead of q, k, v and gate, up
    std::string_view q_norm = {}, k_norm = {};                 // over each head
    std::string_view attn_post_norm = {}, ffn_post_norm = {};  // of what attention and FFN add
    std::string_view q_bias = {}, k_bias = {}, v_bias = {};
};
extern const DecoderNames gguf_names, folder_names;  // of a Llama

// Norms after attention and FFN, as Gemma has them since its second version.
void name_post_norms(DecoderNames& names, Container container);
// Norms over each head of Q and K.
void name_head_norms(DecoderNames& names, Container container);

// Of multi-head latent attention, instead of q, k and v. A file has either kv_b, or k_b (transposed) and v_b.
struct LatentNames {
    std::string_view q, q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b;
    std::string_view k_b = {}, v_b = {};
};
extern const LatentNames gguf_latent_names, folder_latent_names;

// Of a mixture of experts, instead of gate, up and down. "{}" is the expert's number; `stacked_*` has all in one
// tensor.
struct ExpertNames {
    std::string_view router, selection_bias, gate, up, down;
    std::string_view stacked_gate = {}, stacked_up = {}, stacked_down = {};
    std::string_view shared_gate = {}, shared_up = {}, shared_down = {};
};
extern const ExpertNames gguf_expert_names, folder_expert_names;

struct Decoder {
    DecoderNames names;
    float norm_offset = 0;                    // added to every norm weight
    const LatentNames* latent = nullptr;      // where config.latent is set
    const ExpertNames* experts = nullptr;     // where config.moe is set
    std::vector<std::string> elsewhere = {};  // beginnings of tensors of other models in the same file
};

// The program of a decoder with RMSNorm and gated FFN, after `config`. Every tensor must find its place.
// A GGUF whose config.moe->layers is empty tells by its tensors which layers have experts.
Result<Program> build_decoder(Config& config, WeightReader& weights, Container container, const Decoder& decoder);

// What only the tensors of a GGUF tell: the vocabulary, tied embeddings, and how frequencies are divided.
Status complete_from_gguf(Config& config, WeightReader& weights);

// 1 / sqrt(head_dim) unless the configuration has another.
[[nodiscard]] float attention_scale(const Config& config);

}  // namespace hetero::model
