// What DeepSeek-V2 and DeepSeek-V3 have in common: multi-head latent attention, leading dense layers, shared experts,
// and one GGUF architecture.
#pragma once
#include "model/families/shared.h"

namespace hetero::model {

// Keys of a config.json; what chooses the experts is read by the version. Calls neither check nor refuse_unread.
struct DeepseekKeys {
    std::string_view class_name, model_type;
    std::uint32_t dense_layers = 0;  // where first_k_dense_replace is missing
};
Result<Config> read_deepseek_folder(Keys& keys, const DeepseekKeys& version);
// All keys of a GGUF.
Result<Config> read_deepseek_gguf(Keys& keys);
// Whether a GGUF's router uses a sigmoid, as version 3 does.
[[nodiscard]] bool routes_by_sigmoid(Keys& gguf);

// Heads, experts and RoPE against each other.
Status check_deepseek(const std::string& file, const Config& config);

Decoder deepseek_decoder(Container container);
Result<Program> build_deepseek(Config& config, WeightReader& weights, Container container,
                               std::uint32_t n_other_layers = 0);

}  // namespace hetero::model
