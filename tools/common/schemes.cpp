#include "common/schemes.h"

#include <algorithm>
#include <filesystem>

#include "base/toml.h"
#include "kv/canonical.h"
#include "plan/deploy.h"

namespace hetero::tool {
namespace {

// Of all layers where they are alike, else of each with the layers that have it.
std::string describe_layers(const std::vector<kv::Scheme>& schemes) {
    std::vector<std::pair<std::string, std::string>> texts;  // and the layers
    for (std::size_t layer = 0; layer < schemes.size(); ++layer) {
        const std::string text = kv::describe(schemes[layer]);
        auto found = std::find_if(texts.begin(), texts.end(), [&](const auto& entry) { return entry.first == text; });
        if (found == texts.end()) found = texts.insert(found, {text, {}});
        found->second += fmt::format("{}{}", found->second.empty() ? "" : " ", layer);
    }
    if (texts.size() == 1) return texts.front().first;
    std::string all;
    for (const auto& [text, layers] : texts)
        all += fmt::format("{}layers {}: {}", all.empty() ? "" : "; ", layers, text);
    return all;
}

// "int8:token", or "plan" where layers differ.
std::string spec_text(const std::vector<kv::Scheme>& schemes) {
    const quant::Spec first{schemes.front().codec, schemes.front().params};
    for (const kv::Scheme& scheme : schemes) {
        if (quant::Spec{scheme.codec, scheme.params} != first) return "plan";
    }
    return quant::to_text(first);
}

Specs specs_of_plan(kv::PrecisionPlan plan, const std::string& path) {
    Specs specs;
    specs.plan = std::move(plan);
    specs.sinks = specs.plan->sinks;
    specs.window = specs.plan->window;
    specs.plan_path = path;
    return specs;
}

}  // namespace

Result<Specs> read_plan(const std::string& path) {
    constexpr std::size_t max_plan_bytes = 4U << 20;
    HETERO_TRY(const std::string text, read_text_file(path, max_plan_bytes, "plan"));
    HETERO_TRY(const TomlNode document, parse_toml(text, path));
    if (document.find("deployment_plan") != nullptr) {
        HETERO_TRY(const plan::DeploymentPlan deployment, plan::parse_deployment_plan(text, path));
        if (deployment.precision_plan.empty()) return specs_of_name(deployment.wire);
        // operator/ keeps an absolute one as it is.
        const std::string beside = (std::filesystem::path(path).parent_path() / deployment.precision_plan).string();
        HETERO_TRY(kv::PrecisionPlan precision, kv::read_precision_plan(beside));
        return specs_of_plan(std::move(precision), beside);
    }
    HETERO_TRY(kv::PrecisionPlan precision, kv::parse_precision_plan(text, path));
    return specs_of_plan(std::move(precision), path);
}

Result<Specs> specs_of_preset(std::string_view name) {
    HETERO_TRY(const quant::Preset preset, quant::find_preset(name));
    Specs specs;
    HETERO_TRY(specs.k, quant::parse_spec(preset.k));
    HETERO_TRY(specs.v, quant::parse_spec(preset.v));
    specs.sinks = preset.sinks;
    return specs;
}

Result<Specs> specs_of_name(std::string_view text) {
    if (quant::find_preset(text)) return specs_of_preset(text);
    Specs specs;
    HETERO_TRY(specs.k, quant::parse_spec(text));
    specs.v = specs.k;
    return specs;
}

Status check_specs(Tool& tool, const Specs& specs, const kv::Identity& identity) {
    if (!specs.plan) {
        HETERO_CHECK(quant::find_codec(specs.k.codec)->check(specs.k.params, identity.head_dim_k));
        return quant::find_codec(specs.v.codec)->check(specs.v.params, identity.head_dim_v);
    }
    HETERO_CHECK(kv::check_plan(*specs.plan, specs.plan_path, identity));
    if (specs.plan->gate && !specs.plan->gate->passed) {
        tool.note("{}: it did not pass its own gate of epsilon {}", specs.plan_path, specs.plan->gate->epsilon);
    }
    if (!kv::same_weights(*specs.plan, identity)) {
        tool.note("{}: calibrated with other weights of the same source; its figures are theirs", specs.plan_path);
    }
    return {};
}

Schemes schemes_of(const Specs& specs, const kv::Header& header) {
    Schemes schemes;
    for (const kv::PartId part : {kv::PartId::k, kv::PartId::v}) {
        std::vector<kv::Scheme>& layers = part == kv::PartId::k ? schemes.k : schemes.v;
        for (std::size_t layer = 0; layer < header.schemes(part).size(); ++layer) {
            const quant::Spec& spec = specs.plan              ? specs.plan->specs(part)[layer]
                                      : part == kv::PartId::k ? specs.k
                                                              : specs.v;
            layers.push_back(
                kv::scheme_from_spec(spec, specs.sinks, specs.window, header.scheme(layer, part).source_dtype));
        }
    }
    return schemes;
}

Schemes schemes_of(const kv::Header& header) { return {header.k_schemes, header.v_schemes}; }

kv::Header with_schemes(kv::Header header, const Schemes& schemes) {
    header.k_schemes = schemes.k;
    header.v_schemes = schemes.v;
    return header;
}

bool is_quantized(const kv::Header& header) {
    const auto quantized = [](const kv::Scheme& scheme) {
        const quant::Codec* codec = quant::find_codec(scheme.codec);
        return codec == nullptr || codec->quantized();
    };
    return std::any_of(header.k_schemes.begin(), header.k_schemes.end(), quantized) ||
           std::any_of(header.v_schemes.begin(), header.v_schemes.end(), quantized);
}

double bits_per_value(const kv::Header& header) {
    double values = 0;
    const double row = static_cast<double>(header.stored_heads()) *
                       static_cast<double>(header.identity.head_dim_k + header.identity.head_dim_v);
    for (std::size_t sequence = 0; sequence < header.sequences.size(); ++sequence) {
        for (std::size_t layer = 0; layer < header.k_schemes.size(); ++layer)
            values += static_cast<double>(header.stored_tokens(sequence, layer)) * row;
    }
    return values == 0 ? 0 : 8 * static_cast<double>(header.payload_bytes()) / values;
}

std::string describe(const Schemes& schemes) {
    return schemes.k == schemes.v ? describe_layers(schemes.k)
                                  : fmt::format("K {}; V {}", describe_layers(schemes.k), describe_layers(schemes.v));
}

void report_schemes(Json& report, const Specs& specs, const Schemes& schemes, const kv::Identity& identity) {
    if (specs.plan) {
        report["plan"] = specs.plan_path;
        report["same_weights"] = kv::same_weights(*specs.plan, identity);
    }
    const std::string k = spec_text(schemes.k), v = spec_text(schemes.v);
    const std::string &k_codec = schemes.k.front().codec, &v_codec = schemes.v.front().codec;
    report["codec"] = k == "plan" || v == "plan" ? "plan"
                      : k_codec == v_codec       ? k_codec
                                                 : fmt::format("{}, {}", k_codec, v_codec);
    report["k"] = k;
    report["v"] = v;
    report["sinks"] = specs.sinks;
    report["window"] = specs.window;
    report["scheme"] = describe(schemes);
}

}  // namespace hetero::tool
