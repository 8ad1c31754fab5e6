#include "model/quantization.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/printable.h"
#include "io/json_text.h"

namespace hetero::model {
namespace {

using Json = nlohmann::json;

// One object of the configuration, whose every key must be known.
class Section {
public:
    Section(const std::string& file, std::string name, const Json& object)
        : file_(file), name_(std::move(name)), object_(object) {}

    // The key, if it is there, has this value.
    Section& only(std::string_view key, const Json& implemented, bool required = true) {
        known_.push_back(key);
        const auto found = object_.find(key);
        if (found == object_.end() ? required : *found != implemented) {
            const std::string shown = found == object_.end() ? "missing" : found->dump();
            problem(fmt::format("{}.{} is {}, only {} is implemented", name_, key, shown, implemented.dump()));
        }
        return *this;
    }
    Section& harmless(std::initializer_list<std::string_view> keys) {
        known_.insert(known_.end(), keys);
        return *this;
    }
    // Any other key is switched off.
    [[nodiscard]] Status finish() {
        for (const auto& [key, value] : object_.items()) {
            const bool off = value.is_null() || value.empty() || (value.is_boolean() && !value.get<bool>());
            if (!off && std::find(known_.begin(), known_.end(), key) == known_.end()) {
                problem(fmt::format("{}.{} is {}, which is not implemented", name_, key, value.dump()));
            }
        }
        if (!problem_) return {};
        return fail(Errc::bad_input,
                    "{}: {}; quantized weights are read from compressed-tensors with format int-quantized: int8, "
                    "symmetric, one scale per channel",
                    file_, printable(*problem_, 200));
    }
    [[nodiscard]] const Json* object(std::string_view key) {
        known_.push_back(key);
        const auto found = object_.find(key);
        return found == object_.end() || !found->is_object() ? nullptr : &*found;
    }

private:
    void problem(std::string text) {
        if (!problem_) problem_ = std::move(text);
    }
    const std::string& file_;
    std::string name_;
    const Json& object_;
    std::vector<std::string_view> known_;
    std::optional<std::string> problem_;
};

Status check_weights(const std::string& file, const std::string& group, const Json& weights) {
    return Section(file, group + ".weights", weights)
        .only("num_bits", 8)
        .only("type", "int")
        .only("symmetric", true)
        .only("strategy", "channel")
        .only("dynamic", false, false)
        .harmless({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"})
        .finish();
}

Status check_activations(const std::string& file, const std::string& group, const Json& activations) {
    return Section(file, group + ".input_activations", activations)
        .only("num_bits", 8)
        .only("type", "int")
        .only("strategy", "token")
        .only("dynamic", true)  // others come with tensors of their own
        .harmless({"symmetric", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"})
        .finish();
}

Status check_group(const std::string& file, const std::string& name, const Json& group) {
    Section section(file, name, group);
    section.only("format", "int-quantized", group.contains("format") && !group["format"].is_null());
    section.harmless({"targets"});  // the type of a tensor tells
    const Json* weights = section.object("weights");
    const Json* activations = section.object("input_activations");
    HETERO_CHECK(section.finish());
    if (weights == nullptr) {
        return fail(Errc::bad_input, "{}: {} has no weights, which is not implemented", file, name);
    }
    HETERO_CHECK(check_weights(file, name, *weights));
    return activations == nullptr ? Status{} : check_activations(file, name, *activations);
}

}  // namespace

Result<bool> read_quantization(const std::string& file, std::string_view config_text) {
    HETERO_TRY(const Json config, io::parse_json(config_text, file));
    const auto found = config.is_object() ? config.find("quantization_config") : config.end();
    if (found == config.end() || found->is_null()) return false;
    if (!found->is_object()) return fail(Errc::bad_input, "{}: quantization_config must be an object", file);
    Section section(file, "quantization_config", *found);
    section.only("quant_method", "compressed-tensors").only("format", "int-quantized");
    section.harmless({"ignore", "quantization_status", "global_compression_ratio", "version"});
    const Json* groups = section.object("config_groups");
    HETERO_CHECK(section.finish());
    if (groups == nullptr) {
        return fail(Errc::bad_input, "{}: quantization_config has no config_groups, which is not implemented", file);
    }
    for (const auto& item : groups->items()) {
        const std::string name = "quantization_config.config_groups." + printable(item.key(), 60);
        if (!item.value().is_object()) return fail(Errc::bad_input, "{}: {} must be an object", file, name);
        HETERO_CHECK(check_group(file, name, item.value()));
    }
    return true;
}

}  // namespace hetero::model
