// The keys of rotary position embedding, in a GGUF and in a config.json.
#include <cmath>
#include <functional>

#include "model/families/shared.h"

namespace hetero::model {
namespace {

constexpr double max_factor = 1e6;
constexpr double max_theta = 1e12;

Status check_yarn(const std::string& file, const RopeConfig& rope) {
    if (rope.beta_fast <= rope.beta_slow) {
        return fail(Errc::bad_input, "{}: RoPE scaling: beta_fast {} must be larger than beta_slow {}", file,
                    rope.beta_fast, rope.beta_slow);
    }
    if (rope.theta <= 1) return fail(Errc::bad_input, "{}: YaRN needs a RoPE base above 1, found {}", file, rope.theta);
    return {};
}

// The keys and defaults of transformers (modeling_rope_utils).
Status folder_yarn(Keys& keys, const std::string& section, std::uint32_t context, RopeConfig& rope) {
    rope.scaling = RopeScalingKind::yarn;
    HETERO_TRY(rope.original_context,
               keys.count(section + "original_max_position_embeddings", limits::context, context));
    HETERO_TRY(const auto fast, keys.number(section + "beta_fast", 0, max_factor));
    HETERO_TRY(const auto slow, keys.number(section + "beta_slow", 0, max_factor));
    rope.beta_fast = fast.value_or(0) != 0 ? *fast : 32;
    rope.beta_slow = slow.value_or(0) != 0 ? *slow : 1;
    HETERO_TRY(const auto whole, keys.boolean(section + "truncate"));
    rope.whole_dims = whole.value_or(true);
    HETERO_TRY(const auto given, keys.number(section + "attention_factor", 1e-6, max_factor));
    HETERO_TRY(const auto scale, keys.number(section + "mscale", 0, max_factor));
    HETERO_TRY(const auto all_dims, keys.number(section + "mscale_all_dim", 0, max_factor));
    const bool both = scale.value_or(0) != 0 && all_dims.value_or(0) != 0;
    const double growth =
        both ? yarn_growth(rope.factor, *scale) / yarn_growth(rope.factor, *all_dims) : yarn_growth(rope.factor);
    rope.attention_factor = given.value_or(growth);
    return check_yarn(keys.file(), rope);
}

// YaRN as llama.cpp stores it: attention grows with the factor alone.
Status gguf_yarn(Keys& keys, const std::function<std::string(std::string_view)>& key, RopeConfig& rope) {
    HETERO_TRY(rope.original_context, keys.count(key("scaling.original_context_length"), limits::context));
    HETERO_TRY(const auto fast, keys.number(key("scaling.yarn_beta_fast"), 1e-6, max_factor));
    HETERO_TRY(const auto slow, keys.number(key("scaling.yarn_beta_slow"), 1e-6, max_factor));
    rope.beta_fast = fast.value_or(32);
    rope.beta_slow = slow.value_or(1);
    HETERO_CHECK(keys.only_number(key("scaling.yarn_ext_factor"), 1.0));
    HETERO_CHECK(keys.only_number(key("scaling.yarn_attn_factor"), 1.0));
    rope.scaling = RopeScalingKind::yarn;
    rope.attention_factor = yarn_growth(rope.factor);
    return check_yarn(keys.file(), rope);
}

}  // namespace

Status read_gguf_rope(Keys& keys, const GgufKeys& family, Config& config) {
    const auto key = [&family](std::string_view name) { return fmt::format("{}.rope.{}", family.arch, name); };
    RopeConfig& rope = config.rope;
    rope.pairing = family.pairing;
    HETERO_TRY(rope.rotary_dim, keys.count(key("dimension_count"), limits::head_dim, config.head_dim));
    HETERO_TRY(const auto theta, keys.number(key("freq_base"), 1, max_theta));
    rope.theta = static_cast<float>(theta.value_or(family.theta));
    HETERO_TRY(const auto kind, keys.text(key("scaling.type")));
    const bool yarn = family.yarn && kind.value_or("") == "yarn";
    if (kind && *kind != "none" && *kind != "linear" && !yarn) {
        return fail(Errc::bad_input, "{}: {} is \"{}\"; {} are implemented", keys.file(), key("scaling.type"), *kind,
                    family.yarn ? "\"none\", \"linear\" and \"yarn\"" : "\"none\" and \"linear\"");
    }
    HETERO_TRY(const auto factor, keys.number(key("scaling.factor"), 0, max_factor));
    HETERO_TRY(const auto old_factor, keys.number(key("scale_linear"), 0, max_factor));
    const double stretch = factor.value_or(old_factor.value_or(1));
    HETERO_CHECK(keys.only_number(key("scaling.attn_factor"), 1.0));
    if (kind.value_or("linear") != "none" && stretch != 0 && stretch != 1) {  // 0 stands for "not set"
        rope.scaling = RopeScalingKind::linear;
        rope.factor = static_cast<float>(stretch);
        if (yarn) HETERO_CHECK(gguf_yarn(keys, key, rope));
    }
    HETERO_TRY(const auto original_context, keys.integer(key("scaling.original_context_length"), 0, limits::context));
    if (!yarn) rope.original_context = static_cast<std::uint32_t>(original_context.value_or(0));
    keys.harmless({key("scaling.finetuned")});
    return {};
}

Status read_rope(Keys& keys, RopeConfig& rope, const RopeKeys& names) {
    HETERO_TRY(const auto theta, agreed_number(keys, names.theta_keys, 1, max_theta));
    rope.theta = static_cast<float>(theta.value_or(names.theta));  // as a GGUF holds it
    HETERO_TRY(const auto new_kind, keys.text(names.section + "rope_type"));
    std::optional<std::string> published;
    if (!names.old_section.empty()) {
        HETERO_TRY(const auto old_kind, keys.text(names.old_section + "rope_type"));
        HETERO_TRY(const auto oldest_kind, keys.text(names.old_section + "type"));
        published = old_kind ? old_kind : oldest_kind;
    }
    const bool is_new = new_kind.has_value();
    if (is_new && published && *published != *new_kind) {
        return fail(Errc::bad_input, "{}: rope_parameters and rope_scaling contradict each other: \"{}\" and \"{}\"",
                    keys.file(), *new_kind, *published);
    }
    const std::string& outer = is_new ? names.section : names.old_section;
    const std::string kind = is_new ? *new_kind : published.value_or("default");
    if (kind == "default") return {};
    const bool yarn = kind == "yarn" && names.yarn_context != 0;
    if (kind != "linear" && kind != "llama3" && !yarn) {
        return fail(Errc::bad_input,
                    "{}: {}rope_type is \"{}\"; \"default\", \"linear\"{} and \"llama3\" are implemented", keys.file(),
                    outer, kind, names.yarn_context != 0 ? ", \"yarn\"" : "");
    }
    HETERO_TRY(const auto factor, keys.number(outer + "factor", 1e-6, max_factor));
    if (!factor) return fail(Errc::bad_input, "{}: {}factor is missing", keys.file(), outer);
    rope.factor = static_cast<float>(*factor);
    rope.scaling = RopeScalingKind::linear;
    if (yarn) return folder_yarn(keys, outer, names.yarn_context, rope);
    if (kind == "llama3") {
        rope.scaling = RopeScalingKind::llama3;
        HETERO_TRY(const auto low, keys.number(outer + "low_freq_factor", 1e-6, max_factor));
        HETERO_TRY(const auto high, keys.number(outer + "high_freq_factor", 1e-6, max_factor));
        if (!low || !high) {
            return fail(Errc::bad_input, "{}: {}low_freq_factor and high_freq_factor are needed", keys.file(), outer);
        }
        rope.low_freq_factor = *low;
        rope.high_freq_factor = *high;
        HETERO_TRY(rope.original_context, keys.count(outer + "original_max_position_embeddings", limits::context));
    }
    return {};
}

Status read_partial_rotary(Keys& keys, Config& config, const std::vector<std::string>& names, double factor) {
    HETERO_TRY(const auto given, agreed_number(keys, names, 0, 1));
    const double dims = std::floor(static_cast<double>(config.head_dim) * given.value_or(factor));
    config.rope.rotary_dim = static_cast<std::uint32_t>(dims);
    if (config.rope.rotary_dim == 0) {
        return fail(Errc::bad_input, "{}: {} leaves no dimension of heads of {} to rotate", keys.file(), names.front(),
                    config.head_dim);
    }
    return {};
}

}  // namespace hetero::model
