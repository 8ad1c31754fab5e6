// Mistral (https://arxiv.org/abs/2310.06825): a Llama whose layers all see a sliding window of the last tokens, or the
// whole context where sliding_window is null. In GGUF such models are called llama.
#include "model/families/shared.h"

namespace hetero::model {
namespace {

Result<Config> read_config(Keys& keys, Container) {
    HETERO_TRY(Config config,
               read_folder(keys, {.class_name = "MistralForCausalLM", .model_type = "mistral", .n_kv_heads = 8}));
    config.arch = "llama";  // the arithmetic is a Llama's, so a state may cross to a GGUF, which calls it so
    HETERO_CHECK(read_rope(keys, config.rope, {.yarn_context = config.context_length}));
    HETERO_CHECK(keys.only_text("hidden_act", "silu"));
    HETERO_TRY(config.window, read_window(keys, 4096));
    HETERO_CHECK(read_sliding_layers(keys, config, [](std::uint32_t) { return true; }));
    HETERO_CHECK(keys.refuse_unread(""));
    HETERO_CHECK(check_heads(keys.file(), config));
    return config;
}

Decoder decoder(Container container) { return {container == Container::gguf ? gguf_names : folder_names}; }

}  // namespace

extern const Family mistral_family{"mistral", "", "mistral", &read_config, &decoder};

}  // namespace hetero::model
