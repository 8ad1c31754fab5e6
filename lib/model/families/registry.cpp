#include "model/families/family.h"

namespace hetero::model {

// One line per family; each is defined in its own file as NAME_family.
#define HETERO_FAMILIES(X) \
    X(llama)               \
    X(qwen2)               \
    X(qwen3)               \
    X(mistral)             \
    X(gemma2)              \
    X(gemma3)              \
    X(phi3)                \
    X(gpt_neox)            \
    X(mixtral)             \
    X(qwen3_moe)           \
    X(deepseek_v2)         \
    X(deepseek_v3)

#define HETERO_DECLARE(name) extern const Family name##_family;
HETERO_FAMILIES(HETERO_DECLARE)

const std::vector<const Family*>& families() {
#define HETERO_ADDRESS(name) &name##_family,
    static const std::vector<const Family*> table = {HETERO_FAMILIES(HETERO_ADDRESS)};
    return table;
}

Status check_heads(const std::string& file, const Config& config) {
    if (config.n_heads % config.n_kv_heads != 0) {
        return fail(Errc::bad_input, "{}: {} query heads cannot share {} KV heads evenly", file, config.n_heads,
                    config.n_kv_heads);
    }
    if (config.rope.rotary_dim % 2 != 0 || config.rope.rotary_dim > config.head_dim) {
        return fail(Errc::bad_input, "{}: RoPE over {} dimensions does not fit heads of {}", file,
                    config.rope.rotary_dim, config.head_dim);
    }
    if (config.rope.scaling == RopeScalingKind::llama3 && config.rope.high_freq_factor <= config.rope.low_freq_factor) {
        return fail(Errc::bad_input, "{}: RoPE scaling: high_freq_factor {} must be larger than low_freq_factor {}",
                    file, config.rope.high_freq_factor, config.rope.low_freq_factor);
    }
    return {};
}

Status check_experts(const std::string& file, const MoeConfig& moe) {
    const RoutingRule& rule = moe.rule;
    if (rule.top_k > moe.n_experts) {
        return fail(Errc::bad_input, "{}: {} experts for each token, but there are {}", file, rule.top_k,
                    moe.n_experts);
    }
    if (moe.n_experts % rule.n_groups != 0) {
        return fail(Errc::bad_input, "{}: {} experts do not make {} groups of one size", file, moe.n_experts,
                    rule.n_groups);
    }
    const std::uint32_t group = moe.n_experts / rule.n_groups;
    if (rule.top_groups > rule.n_groups || std::uint64_t{rule.top_groups} * group < rule.top_k) {
        return fail(Errc::bad_input, "{}: {} experts for each token cannot come from {} of {} groups of {}", file,
                    rule.top_k, rule.top_groups, rule.n_groups, group);
    }
    if (rule.n_groups > 1 && rule.group_score == RoutingRule::GroupScore::highest_two && group < 2) {
        return fail(Errc::bad_input, "{}: groups of {} expert have no two to be judged by", file, group);
    }
    return {};
}

}  // namespace hetero::model
