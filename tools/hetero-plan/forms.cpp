// Forms of KV that are planned with: what hetero-decode can keep, what goes over a link alone, and what a certificate
// of quality allows.
#include <algorithm>

#include "base/hash.h"
#include "base/printable.h"
#include "base/toml.h"
#include "engine/kv_format.h"
#include "io/json_text.h"
#include "kv/precision_plan.h"
#include "plan.h"

namespace hetero::tool {
namespace {

constexpr std::size_t max_certificate_bytes = 64U << 20;
constexpr const char* resident_forms[] = {"int8", "int4", "fp8_e4m3fn"};  // of hetero-decode --kv-dtype, K and V alike

// The unquantized form, and of the others that of the name, which is certified.
void keep(Tool& tool, const std::string& path, const std::string& certified, plan::Problem& problem) {
    std::vector<plan::KvFormat> kept;
    for (plan::KvFormat& format : problem.formats) {
        format.certified = format.certified || format.name == certified;
        if (format.quantized && !format.certified) {
            tool.note("KV as {} is not what {} certifies: left out", format.name, path);
        } else {
            kept.push_back(std::move(format));
        }
    }
    problem.formats = std::move(kept);
}

// The plan itself as a form, for the link.
Status add_precision_plan(Tool& tool, const plan::DescribedModel& model, const std::string& text,
                          const std::string& path, plan::Problem& problem) {
    HETERO_TRY(const kv::PrecisionPlan precision, kv::parse_precision_plan(text, path));
    if (model.model != nullptr) {
        kv::Identity identity;
        identity.arch_digest = model.model->arch_digest;
        identity.lineage = model.model->lineage;
        identity.weights_digest = model.model->weights_digest;
        identity.n_layers = model.shape.n_layers;
        identity.head_dim_k = model.shape.head_dim_k;
        identity.head_dim_v = model.shape.head_dim_v;
        HETERO_CHECK(kv::check_plan(precision, path, identity));
        if (!kv::same_weights(precision, identity))
            tool.note("{}: calibrated with other weights of the same source; its figures are theirs", path);
    } else if (precision.k.size() != model.shape.n_layers) {
        return fail(Errc::bad_input, "{}: the plan has {} layers, the model {}", path, precision.k.size(),
                    model.shape.n_layers);
    }
    const bool passed = precision.gate && precision.gate->passed && precision.held_out;
    if (!passed)
        return fail(Errc::bad_input, "{}: is no certificate: it {}; calibrate with --epsilon and --held-out", path,
                    !precision.gate           ? "holds no gate"
                    : !precision.gate->passed ? "did not pass its gate"
                                              : "was checked on no held-out text");
    const bool uniform = std::all_of(precision.k.begin(), precision.k.end(),
                                     [&](const auto& spec) { return spec == precision.k.front(); }) &&
                         precision.v == precision.k && precision.sinks == 0 && precision.window == 0;
    keep(tool, path, uniform ? quant::to_text(precision.k.front()) : std::string(), problem);
    plan::KvFormat format;
    format.name = "plan";
    format.quantized = format.certified = format.wire_only = true;
    format.codec = quant::to_text(precision.k.front());
    // Sinks and window are counted in the figure, as of the states that were measured.
    format.bytes_per_token = precision.bits_per_value / 8 * model.shape.n_layers * model.shape.n_kv_heads *
                             (double{1} * model.shape.head_dim_k + model.shape.head_dim_v);
    problem.formats.push_back(std::move(format));
    return {};
}

// The form of the second of two states.
Status add_verify_report(Tool& tool, const plan::DescribedModel& model, const std::string& text,
                         const std::string& path, plan::Problem& problem) {
    HETERO_TRY(const auto report, io::parse_json(text, path));
    const auto lacks = [&](std::string_view what) {
        return fail(Errc::bad_input,
                    "{}: is no certificate: {}; compare an unquantized state with a quantized one: "
                    "kv-verify A B -m MODEL --epsilon E --report FILE",
                    path, what);
    };
    const auto string_of = [&](const char* table, const char* key) -> std::string {
        const auto found = report.find(table);
        if (found == report.end() || !found->is_object() || !found->contains(key) || !found->at(key).is_string())
            return {};
        return found->at(key).template get<std::string>();
    };
    const auto is = [&](const char* key, const nlohmann::json& value) {
        return report.contains(key) && report.at(key) == value;
    };
    if (!is("tool", "kv-verify") || !report.contains("format_b")) return lacks("no report of kv-verify on two states");
    if (!is("metric", "prob")) return lacks("predictions were not compared");
    if (!is("pass", true) || !report.contains("epsilon") || !report.at("epsilon").is_number())
        return lacks("the states did not pass a bound");
    const std::string k = string_of("format_b", "k"), v = string_of("format_b", "v");
    const auto spec = quant::parse_spec(k), reference = quant::parse_spec(string_of("format_a", "k"));
    if (!spec || k != v) return lacks("K and V of all layers do not have one form");
    if (!reference || quant::find_codec(reference->codec)->quantized()) return lacks("the first state was quantized");
    if (model.model != nullptr) {
        for (const auto& [key, digest] :
             {std::pair{"arch_digest", &model.model->arch_digest}, {"lineage", &model.model->lineage}}) {
            const std::string own = to_hex(*digest), theirs = string_of("identity", key);
            if (own == theirs) continue;
            return fail(Errc::bad_input, "{}: is of another model: {} {}, expected {}", path, key,
                        printable(theirs, 64), own);
        }
        if (to_hex(model.model->weights_digest) != string_of("identity", "weights_digest"))
            tool.note("{}: verified with other weights of the same source; its figures are theirs", path);
    }
    HETERO_TRY(plan::KvFormat format, format_of(model.shape, quant::to_text(*spec)));
    const std::string name = format.name;
    const auto& formats = problem.formats;
    if (std::none_of(formats.begin(), formats.end(), [&](const auto& one) { return one.name == name; }))
        problem.formats.push_back(std::move(format));
    keep(tool, path, name, problem);
    return {};
}

}  // namespace

Result<plan::KvFormat> format_of(const plan::ModelShape& shape, const std::string& text) {
    HETERO_TRY(quant::Spec spec, quant::parse_spec(text));
    plan::KvFormat format;
    format.quantized = quant::find_codec(spec.codec)->quantized();
    format.wire_only = format.quantized;
    for (const char* name : resident_forms) {
        HETERO_TRY(const engine::KvCodecs kept, engine::resident_codecs(name));
        if (text == name) spec = kept.k;
        if (spec == kept.k) format.wire_only = false;
    }
    format.name = format.codec = quant::to_text(spec);
    format.attention_dtype = format.quantized ? spec.codec : "f16";
    format.certified = !format.quantized;
    HETERO_TRY(format.bytes_per_token, plan::kv_bytes_per_token(shape, spec, spec));
    return format;
}

Status add_certificate(Tool& tool, const plan::DescribedModel& model, const std::string& path, plan::Problem& problem) {
    HETERO_TRY(const std::string text, read_text_file(path, max_certificate_bytes, "certificate"));
    if (model.model == nullptr) tool.note("{}: without weights it cannot be told whether it is of this model", path);
    const bool is_json = text.starts_with('{');
    return is_json ? add_verify_report(tool, model, text, path, problem)
                   : add_precision_plan(tool, model, text, path, problem);
}

}  // namespace hetero::tool
