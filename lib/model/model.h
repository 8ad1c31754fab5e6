// A model from a GGUF file or a Hugging Face folder: what it computes (config, program) and its weights, which stay in
// their file's format in memory.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "io/tensor_source.h"
#include "model/program.h"
#include "model/rope.h"

namespace hetero::io {
class GgufFile;
}

namespace hetero::model {

// Multi-head latent attention (https://arxiv.org/abs/2405.04434). Config::head_dim is that of queries, plain and
// rotated.
struct LatentConfig {
    std::uint32_t q_rank = 0;  // of the compressed queries; 0: they are not compressed
    std::uint32_t kv_rank = 0;
    std::uint32_t plain_dim = 0, rope_dim = 0;  // of each head's queries and keys
    std::uint32_t v_dim = 0;                    // of each head's values
    float norm_eps = 1e-6F;                     // of the norms over the compressed vectors
};

// Layers whose FFN is a mixture of experts.
struct MoeConfig {
    std::vector<bool> layers;  // [layer]
    std::uint32_t n_experts = 0, expert_ffn = 0;
    std::uint32_t n_shared = 0;  // experts that every token has; one FFN of n_shared * expert_ffn
    bool selection_bias = false;
    RoutingRule rule;
};

struct Config {
    std::string arch;  // the family's name: "llama"
    std::string name;  // for people
    std::uint32_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
    std::uint32_t hidden = 0, ffn = 0, vocab_size = 0, context_length = 0;
    float norm_eps = 1e-5F;
    bool tied_embeddings = false;
    RopeConfig rope;

    // What only some families have; the defaults are a Llama's.
    std::vector<bool> sliding;               // [layer] sees only the last `window` tokens; empty: no layer does
    std::uint32_t window = 0;                // its own token included
    std::optional<RopeConfig> sliding_rope;  // of the sliding layers, where they have their own
    float attention_scale = 0;               // 0: 1 / sqrt(head_dim)
    float attention_softcap = 0, logit_softcap = 0;
    float embedding_scale = 1;
    Activation activation = Activation::silu;
    bool attention_bias = false;     // where the family leaves it to the configuration
    bool parallel_residual = false;  // likewise
    std::optional<LatentConfig> latent;
    std::optional<MoeConfig> moe;
    std::uint32_t n_other_layers = 0;  // stored after the last one, for predicting further tokens: not computed
};

class Model {
public:
    // `path`: a .gguf file or a folder with config.json. An unknown family, a config key that changes the arithmetic
    // and is not implemented, a missing tensor, and a tensor of another shape or type are refused by name before any
    // compute.
    static Result<std::shared_ptr<const Model>> load(const std::string& path);

    Config config;
    Program program;  // the list of ops one forward pass runs; see program.h
    std::shared_ptr<const io::TensorSource> weights;
    std::shared_ptr<const io::GgufFile> gguf;  // null for a folder; the tokenizer reads it
    std::string path;
    std::uint64_t weight_bytes = 0;
    Digest arch_digest{};     // SHA-256 of the canonical text of every value that changes the arithmetic
    Digest lineage{};         // over tensor names, shapes, types and sampled blocks, or carried on by hetero-convert
    Digest weights_digest{};  // likewise, of these very weights
    [[nodiscard]] std::string rope_scaling_text() const;  // canonical JSON, or "none"
};

// The configuration alone, of the same files or of a config.json without weights, with the same refusals; nothing is
// said of the weights. Some families leave to the tensors what they add to it (attention_bias, tied_embeddings).
Result<Config> read_config(const std::string& path);

}  // namespace hetero::model
