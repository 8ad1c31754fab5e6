// What of a model decides how long it takes and how much memory it needs: counts of its matrices and of its KV.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/model.h"
#include "quant/spec.h"
#include "sched/worker.h"

namespace hetero::plan {

struct ModelShape {
    std::string name;
    std::uint32_t context_tokens = 0;  // prompt and output of a request, at most; 0: not known
    std::uint32_t n_layers = 0, hidden = 0, n_heads = 0, n_kv_heads = 0;
    std::uint32_t head_dim_k = 0, head_dim_v = 0;  // as stored; of latent attention: latent, RoPE key, for all heads
    // Of one query head and one key: dims that are multiplied, scores and values together, in either stage. Latent
    // attention expands its latents for prompts and not for single tokens.
    std::uint32_t prefill_pair_dims = 0, decode_pair_dims = 0;
    bool latent = false;
    std::uint32_t sliding_layers = 0, window = 0;  // layers that see and keep the last `window` tokens

    double dense_params = 0;   // in matrices that every token is multiplied with, the head apart
    double head_params = 0;    // of the output, once per prompt and once per token that is generated
    double stored_params = 0;  // all there are, embeddings included; a tied head counts once
    struct Experts {
        std::uint32_t layers = 0, count = 0, per_token = 0;
        double params = 0;  // of one expert of one layer
    } experts;

    double stored_bytes = 0;   // of the weights as the file has them; 0: not known
    std::string stored_dtype;  // "int4", "int8", "f16", "bf16", "f32": what most weights have; empty: not known

    // N_lin: parameters in the products of one token.
    [[nodiscard]] double token_params() const noexcept {
        return dense_params + double{1} * experts.layers * experts.per_token * experts.params;
    }
    // Parameters that a step for `batch` tokens reads. Of E experts, k of them by chance for each token,
    // E (1 - (1 - k/E)^batch) are touched.
    [[nodiscard]] double read_params(double batch) const noexcept;
};

[[nodiscard]] ModelShape shape_of(const model::Config& config);

// From a .gguf file, a folder with weights, or a configuration alone (a folder without weights, or config.json). Errors
// are those of model::Model::load and model::read_config.
struct DescribedModel {
    ModelShape shape;
    std::shared_ptr<const model::Model> model;  // null: no weights
};
Result<DescribedModel> describe_model(const std::string& path);

// Bytes of KV per token of all layers, one copy, scales and zeros included (kappa). K and V of latent attention are the
// latent and the RoPE key. usage: a codec that does not fit the heads.
Result<double> kv_bytes_per_token(const ModelShape& shape, const quant::Spec& k, const quant::Spec& v);
// Copies that a group of `tp` devices holds: KV heads divide no further than to one on each; a latent is on all.
[[nodiscard]] double kv_replication(const ModelShape& shape, std::uint32_t tp) noexcept;
[[nodiscard]] sched::KvSize kv_size(const ModelShape& shape, double bytes_per_token, double copies) noexcept;

}  // namespace hetero::plan
