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

}  // namespace hetero::model
