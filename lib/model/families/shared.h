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
};
Result<Config> read_gguf(Keys& keys, const GgufKeys& family);

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
};
Result<Config> read_folder(Keys& keys, const FolderKeys& family);

// The RoPE keys of a config.json. The base lies under one of `theta_keys`; how it is stretched under `section`, as
// transformers 5 writes it, or else under `old_section`, as it was published ("": nowhere).
struct RopeKeys {
    std::vector<std::string> theta_keys{"rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta"};
    double theta = 10000;  // where the keys are missing
    std::string section = "rope_parameters.";
    std::string old_section = "rope_scaling.";
};
Status read_rope(Keys& keys, RopeConfig& rope, const RopeKeys& names = {});

// The same number under several keys, in [low, high]; nullopt where all are missing. Contradictions are refused.
Result<std::optional<double>> agreed_number(Keys& keys, const std::vector<std::string>& names, double low, double high);

// RoPE over a part of each head: rotary_dim = head_dim * factor.
Status read_partial_rotary(Keys& keys, Config& config, const std::vector<std::string>& names, double factor);

// Which layers see only a window: `layer_types`, or else what `usual` says of a layer. config.window is set by then;
// without a window (0) no layer may be a sliding one.
Status read_sliding_layers(Keys& keys, Config& config, const std::function<bool(std::uint32_t layer)>& usual);

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

struct Decoder {
    const DecoderNames& names;
    float norm_offset = 0;  // added to every norm weight
};

// The program of a decoder with RMSNorm and gated FFN, after `config`. Every tensor must find its place.
Result<Program> build_decoder(Config& config, WeightReader& weights, Container container, const Decoder& decoder);

// What only the tensors of a GGUF tell: the vocabulary, tied embeddings, and how frequencies are divided.
Status complete_from_gguf(Config& config, WeightReader& weights);

// 1 / sqrt(head_dim) unless the configuration has another.
[[nodiscard]] float attention_scale(const Config& config);

}  // namespace hetero::model
