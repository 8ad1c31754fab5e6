#include "kv/precision_plan.h"

#include <algorithm>
#include <cmath>

#include "base/printable.h"
#include "base/toml.h"
#include "base/toml_reader.h"

namespace hetero::kv {
namespace {

constexpr std::size_t max_file_bytes = 4U << 20, max_layers = 4096, max_texts = 4096;
constexpr std::uint64_t max_kept = 4096;  // sinks, window
constexpr std::uint64_t format_version = 1;

using Reader = TomlReader;

Status read_spec(const Reader& table, std::string_view key, quant::Spec& out) {
    std::string text;
    HETERO_CHECK(table.text(key, text));
    auto parsed = quant::parse_spec(text);
    if (!parsed) return table.wrong_value(key, "'{}': {}", key, parsed.error().message);
    out = std::move(*parsed);
    return {};
}

Status read_figures(const Reader& root, std::string_view key, std::optional<DriftFigures>& out) {
    const auto table = root.table(key);
    if (!table) return {};
    HETERO_CHECK(table->only({"positions", "kl_mean", "kl_max", "dp_mean", "dp_p99", "dp_max", "top1"}));
    DriftFigures figures;
    HETERO_CHECK(table->count("positions", figures.positions, 1ULL << 40));
    HETERO_CHECK(table->real("kl_mean", figures.kl_mean));
    HETERO_CHECK(table->real("kl_max", figures.kl_max));
    HETERO_CHECK(table->real("dp_mean", figures.dp_mean, 1));
    HETERO_CHECK(table->real("dp_p99", figures.dp_p99, 1));
    HETERO_CHECK(table->real("dp_max", figures.dp_max, 1));
    HETERO_CHECK(table->real("top1", figures.top1, 1));
    out = figures;
    return {};
}

Status read_gate(const Reader& root, std::optional<PlanGate>& out) {
    const auto table = root.table("gate");
    if (!table) return {};
    HETERO_CHECK(table->only({"epsilon", "strict", "passed"}));
    PlanGate gate;
    HETERO_CHECK(table->real("epsilon", gate.epsilon));
    HETERO_CHECK(table->flag("strict", gate.strict));
    HETERO_CHECK(table->flag("passed", gate.passed));
    out = gate;
    return {};
}

Status read_model(const Reader& root, PrecisionPlan& plan) {
    const auto table = root.table("model");
    HETERO_CHECK(root.need("model"));
    HETERO_CHECK(table->only({"name", "arch_digest", "lineage", "weights_digest"}));
    HETERO_CHECK(table->text("name", plan.model_name));
    HETERO_CHECK(table->digest("arch_digest", plan.arch_digest));
    HETERO_CHECK(table->digest("lineage", plan.lineage));
    return table->digest("weights_digest", plan.weights_digest);
}

Status read_precision(const Reader& root, PrecisionPlan& plan) {
    const auto table = root.table("precision");
    HETERO_CHECK(root.need("precision"));
    HETERO_CHECK(table->only({"sinks", "window", "bits_per_value", "layers"}));
    HETERO_CHECK(table->count("sinks", plan.sinks, max_kept));
    HETERO_CHECK(table->count("window", plan.window, max_kept));
    HETERO_CHECK(table->real("bits_per_value", plan.bits_per_value, 1e6));
    HETERO_TRY(const std::vector<Reader> layers, table->tables("layers", max_layers));
    for (const Reader& layer : layers) {
        HETERO_CHECK(layer.only({"k", "v"}));
        HETERO_CHECK(read_spec(layer, "k", plan.k.emplace_back()));
        HETERO_CHECK(read_spec(layer, "v", plan.v.emplace_back()));
    }
    return {};
}

Status read_texts(const Reader& root, PrecisionPlan& plan) {
    HETERO_TRY(const std::vector<Reader> texts, root.tables("texts", max_texts));
    for (const Reader& entry : texts) {
        HETERO_CHECK(entry.only({"name", "sha256", "prompt_tokens", "steps", "held_out"}));
        PlanText& text = plan.texts.emplace_back();
        HETERO_CHECK(entry.text("name", text.name));
        HETERO_CHECK(entry.digest("sha256", text.sha256));
        HETERO_CHECK(entry.count("prompt_tokens", text.prompt_tokens, 1ULL << 40));
        HETERO_CHECK(entry.count("steps", text.steps, 1ULL << 40));
        HETERO_CHECK(entry.flag("held_out", text.held_out));
    }
    return {};
}

void append_figures(std::string& out, std::string_view name, const std::optional<DriftFigures>& figures) {
    if (!figures) return;
    out += fmt::format(
        "\n[{}]\npositions = {}\nkl_mean = {}\nkl_max = {}\ndp_mean = {}\ndp_p99 = {}\ndp_max = {}\ntop1 = {}\n", name,
        figures->positions, toml_real(figures->kl_mean), toml_real(figures->kl_max), toml_real(figures->dp_mean),
        toml_real(figures->dp_p99), toml_real(figures->dp_max), toml_real(figures->top1));
}

}  // namespace

Result<PrecisionPlan> parse_precision_plan(std::string_view text, const std::string& name) try {
    HETERO_TRY(const TomlNode document, parse_toml(text, name));
    const Reader root(document, name, "a precision plan");
    HETERO_CHECK(root.version("precision_plan", format_version));
    HETERO_CHECK(root.only(
        {"precision_plan", "tool", "model", "precision", "texts", "calibration", "held_out", "floor", "gate"}));
    PrecisionPlan plan;
    HETERO_CHECK(root.text("tool", plan.tool));
    HETERO_CHECK(read_model(root, plan));
    HETERO_CHECK(read_precision(root, plan));
    HETERO_CHECK(read_texts(root, plan));
    HETERO_CHECK(read_figures(root, "calibration", plan.calibration));
    HETERO_CHECK(read_figures(root, "held_out", plan.held_out));
    HETERO_CHECK(read_figures(root, "floor", plan.floor));
    HETERO_CHECK(read_gate(root, plan.gate));
    return plan;
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "{}: not enough memory to read it", name);
}

Result<PrecisionPlan> read_precision_plan(const std::string& path) {
    HETERO_TRY(const std::string text, read_text_file(path, max_file_bytes, "precision plan"));
    return parse_precision_plan(text, path);
}

std::string to_toml(const PrecisionPlan& plan) {
    // Keys of the document itself stand before its tables.
    std::string out =
        fmt::format("precision_plan = {}\ntool = {}\ntexts = [\n", format_version, toml_string(plan.tool));
    for (const PlanText& text : plan.texts) {
        out += fmt::format("  {{name = {}, sha256 = \"{}\", prompt_tokens = {}, steps = {}, held_out = {}}},\n",
                           toml_string(text.name), to_hex(text.sha256), text.prompt_tokens, text.steps, text.held_out);
    }
    out += fmt::format("]\n\n[model]\nname = {}\narch_digest = \"{}\"\nlineage = \"{}\"\nweights_digest = \"{}\"\n",
                       toml_string(plan.model_name), to_hex(plan.arch_digest), to_hex(plan.lineage),
                       to_hex(plan.weights_digest));
    append_figures(out, "calibration", plan.calibration);
    append_figures(out, "held_out", plan.held_out);
    append_figures(out, "floor", plan.floor);
    if (plan.gate) {
        out += fmt::format("\n[gate]\nepsilon = {}\nstrict = {}\npassed = {}\n", toml_real(plan.gate->epsilon),
                           plan.gate->strict, plan.gate->passed);
    }
    out += fmt::format("\n[precision]\nsinks = {}\nwindow = {}\nbits_per_value = {}\nlayers = [\n", plan.sinks,
                       plan.window, toml_real(plan.bits_per_value));
    for (std::size_t layer = 0; layer < plan.k.size(); ++layer) {
        out += fmt::format("  {{k = \"{}\", v = \"{}\"}},  # {}\n", quant::to_text(plan.k[layer]),
                           quant::to_text(plan.v[layer]), layer);
    }
    return out + "]\n";
}

Status check_plan(const PrecisionPlan& plan, const std::string& plan_name, const Identity& identity) {
    const auto differs = [&](std::string_view what, const Digest& there, const Digest& here) -> Status {
        if (there == here) return {};
        return fail(Errc::bad_input,
                    "{}: the plan is of another model ({}): {} is {}..., the state has {}...; calibrate this model",
                    plan_name, printable(plan.model_name), what, to_hex(there).substr(0, 12),
                    to_hex(here).substr(0, 12));
    };
    HETERO_CHECK(differs("arch_digest", plan.arch_digest, identity.arch_digest));
    HETERO_CHECK(differs("lineage", plan.lineage, identity.lineage));
    if (plan.k.size() != identity.n_layers) {
        return fail(Errc::bad_input, "{}: the plan has {} layers, the state {}", plan_name, plan.k.size(),
                    identity.n_layers);
    }
    for (const PartId part : {PartId::k, PartId::v}) {
        for (std::size_t layer = 0; layer < plan.k.size(); ++layer) {
            const quant::Spec& spec = plan.specs(part)[layer];
            if (auto fits = quant::find_codec(spec.codec)->check(spec.params, identity.head_dim(part)); !fits) {
                return fail(Errc::bad_input, "{}: layer {}, {}: {}", plan_name, layer, part_name(part),
                            fits.error().message);
            }
        }
    }
    return {};
}

bool same_weights(const PrecisionPlan& plan, const Identity& identity) noexcept {
    return plan.weights_digest == identity.weights_digest;
}

Scheme scheme_from_spec(const quant::Spec& spec, std::uint32_t sinks, std::uint32_t window, DType source_dtype) {
    const quant::Codec& codec = *quant::find_codec(spec.codec);
    if (!codec.quantized()) return {spec.codec, spec.params, codec.value_dtype(spec.params)};
    return {spec.codec, spec.params, source_dtype, sinks, window};
}

}  // namespace hetero::kv
