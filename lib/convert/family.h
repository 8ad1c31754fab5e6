// What a conversion needs to know of a family beyond the names of its tensors (model/families): the keys of its GGUF
// metadata and of its config.json that it has of its own. One file per family, one line each in registry.cpp.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/plan.h"
#include "model/families/shared.h"

namespace hetero::convert {

using Json = nlohmann::ordered_json;

// Metadata of a GGUF under "<architecture>.".
class ArchKeys {
public:
    ArchKeys(std::string_view architecture, Plan& plan) : prefix_(std::string(architecture) + "."), plan_(plan) {}
    void count(std::string_view key, std::uint32_t value) { add(key, value); }
    void number(std::string_view key, double value) { add(key, static_cast<float>(value)); }
    void flag(std::string_view key, bool value) { add(key, value); }
    void text(std::string_view key, std::string value) { add(key, std::move(value)); }
    void warn(std::string text) { plan_.warnings.push_back(std::move(text)); }

private:
    void add(std::string_view key, io::GgufMetaValue value) {
        plan_.metadata.emplace_back(prefix_ + std::string(key), std::move(value));
    }
    std::string prefix_;
    Plan& plan_;
};

struct Conversion {
    std::string_view arch;  // model::Config::arch
    // Adds what describe_gguf() does not: keys that only some families have. What there is no key for is refused.
    Status (*to_gguf)(const model::Config& config, ArchKeys& keys);
    // The whole of config.json, but for the ids of tokens.
    Result<Json> (*to_config)(const model::Config& config);
    bool interleaved = false;    // rows of Q and K in GGUF
    bool rope_divisors = false;  // llama.cpp reads rope_freqs.weight
    std::string_view norm_eps_key = "attention.layer_norm_rms_epsilon";
    // Tensors of a GGUF made of a folder's, where they are not one for one as decoder_tensors() has them.
    std::vector<TensorPlan> (*tensors)(const model::Config& config, const model::Family& family) = nullptr;
};

[[nodiscard]] const std::vector<const Conversion*>& conversions();

// ---- what families share

// The keys that all families have.
Status describe_gguf(const model::Config& config, const Conversion& conversion, ArchKeys& keys);

struct ConfigKeys {
    std::string_view class_name, model_type;
    std::string_view norm_eps = "rms_norm_eps", activation_key = "hidden_act", activation = "silu";
    bool head_dim = false;  // where it is not always hidden size / heads
};
// The keys of config.json that nearly all families have, RoPE in the published spelling.
Result<Json> describe_config(const model::Config& config, const ConfigKeys& keys);

// A number as short as reads back as this float.
[[nodiscard]] double shortest(float value);

// The window of layers that all slide; 0 where none does. Layers of both kinds are refused.
Result<std::uint32_t> window_of_all(const model::Config& config);
[[nodiscard]] bool any_slides(const model::Config& config);
// The window of a mistral or mixtral.
Status describe_llama_window(const model::Config& config, ArchKeys& keys);
[[nodiscard]] std::vector<std::string> layer_types(const model::Config& config);

// query_pre_attn_scalar, whose inverse root scales attention scores.
[[nodiscard]] Json attention_scalar(const model::Config& config);
// attention.scale, which llama.cpp does not read: it knows the scale by the size of the model, the one with
// `large_layers` layers being scaled by hidden size / heads instead of by the head size.
void describe_attention_scale(const model::Config& config, std::uint32_t large_layers, ArchKeys& keys);

}  // namespace hetero::convert
