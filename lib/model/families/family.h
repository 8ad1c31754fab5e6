// What a model family is: how its configuration is read, and the program it builds. One file per family, one line each
// in registry.cpp.
#pragma once
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/keys.h"
#include "model/model.h"
#include "model/weights.h"

namespace hetero::model {

enum class Container { gguf, folder };
struct Decoder;  // shared.h

struct Family {
    std::string_view name;               // Config::arch, and what states carry
    std::string_view gguf_architecture;  // general.architecture; empty: none
    std::string_view model_type;         // of config.json; empty: none
    // Every key that changes the arithmetic is read here; values that are not implemented are refused by name.
    Result<Config> (*read_config)(Keys& keys, Container container);
    // What the tensors are called in either container: build_decoder() takes them by it, `convert` maps by it.
    Decoder (*decoder)(Container container);
    // Where families share a gguf_architecture: whether the file means this one. Exactly one of them says so.
    bool (*means)(Keys& gguf) = nullptr;
    // Where the program is not that of build_decoder(): takes the tensors and checks them against the configuration;
    // may complete what only the tensors tell.
    Result<Program> (*build)(Config& config, WeightReader& weights, Container container) = nullptr;
};

[[nodiscard]] const std::vector<const Family*>& families();

// Bounds that no real model reaches and that keep every product of two of them far from overflow.
namespace limits {
inline constexpr std::uint32_t layers = 4096, heads = 4096, head_dim = 4096, hidden = 1U << 20, ffn = 1U << 22,
                               vocab = 1U << 24, context = 1U << 30, experts = 1U << 14;
}

// Heads against each other and against the head size: common to all families with grouped-query attention.
Status check_heads(const std::string& file, const Config& config);
// Experts, groups and choices against each other.
Status check_experts(const std::string& file, const MoeConfig& moe);

}  // namespace hetero::model
