// kv-verify: checks that a KV state is whole, or that two are near enough to each other.
#include <algorithm>

#include "base/units.h"
#include "common/sources.h"
#include "verify.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

Status assign_bound(std::optional<double>& bound, std::string_view text) {
    HETERO_TRY(const double value, parse_finite(text));
    if (value < 0) return fail(Errc::usage, "{} is negative", text);
    bound = value;
    return {};
}

Status assign_fraction(std::optional<double>& bound, std::string_view text) {
    const bool percent = text.ends_with('%');
    HETERO_TRY(const double value, parse_finite(percent ? text.substr(0, text.size() - 1) : text));
    if (value < 0 || value > (percent ? 100 : 1)) {
        return fail(Errc::usage, "'{}' is no fraction: give 0.998 or 99.8%", text);
    }
    bound = percent ? value / 100 : value;
    return {};
}

Status assign_floor(std::string& floor, std::string_view text) {
    if (text != "off" && text != "auto") {
        const auto value = parse_finite(text);
        if (!value || *value < 0) return fail(Errc::usage, "'{}' is not off, auto or a number >= 0", text);
    }
    floor = text;
    return {};
}

using Assign = Status (*)(std::optional<double>&, std::string_view);
void add_bound(OptionTable& table, std::string flags, std::string argument, std::optional<double>& bound,
               std::string help, Assign assign = assign_bound) {
    table
        .custom(
            std::move(flags), std::move(argument),
            [&bound, assign](std::string_view text) { return assign(bound, text); },
            [&bound] { return bound ? fmt::format("{}", *bound) : ""; }, std::move(help))
        .setting = true;
}

void add_bounds(OptionTable& table, VerifyOptions& options) {
    verify::Bounds& bounds = options.bounds;
    table.heading("Bounds");
    add_bound(table, "--epsilon,--eps", "E", bounds.epsilon, "largest difference that passes, see --metric and --gate");
    table
        .choice("--metric", &options.metric, {"elem", "prob"},
                "of values, or of probabilities (needs -m, and is its default)")
        .setting = true;
    table.choice("--gate", &options.gate, {"p99", "max"}, "what is held against E [prob: p99, elem: max]").setting =
        true;
    table.flag("--strict", &options.strict, "the same as --gate max").setting = true;
    add_bound(table, "--elem", "X", bounds.elem, "largest difference of a stored value");
    add_bound(table, "--rms", "X", bounds.rms, "largest relative RMS error of K or V in a layer");
    add_bound(table, "--attention", "X", bounds.attention, "largest relative error of a layer's attention output");
    add_bound(table, "--kl", "X", bounds.kl, "largest mean of the KL divergence, nats");
    add_bound(table, "--kl-max", "X", bounds.kl_max, "largest KL divergence of a step [E, with --metric prob]");
    add_bound(table, "--top1", "F", bounds.top1, "least fraction of steps with the same first choice: 0.998, 99.8%",
              assign_fraction);
    add_bound(table, "--logit", "X", bounds.logit, "largest difference of a logit");
    add_bound(table, "--perplexity", "X", bounds.perplexity, "largest relative change of the perplexity");
    table.flag("--allow-equal-nan", &options.allow_equal_nan, "NaN at the same place in both passes").setting = true;
}

// The command line says which check is meant; settings from elsewhere that do not belong to it are ignored.
Status check_usage(VerifyOptions& options, const OptionTable& table) {
    const auto any_given = [&](std::initializer_list<const char*> names) {
        return std::any_of(names.begin(), names.end(), [&](const char* name) { return table.on_command_line(name); });
    };
    const bool bounds_decoding = any_given({"kl", "kl-max", "top1", "logit", "perplexity", "attention"});
    bool asks_for_drift = bounds_decoding || any_given({"model", "kv-dtype", "steps", "text", "floor", "seed"});
    if (options.b.empty()) {
        if (asks_for_drift || any_given({"strict", "metric", "gate", "epsilon", "elem", "rms", "csv", "junit"})) {
            return fail(Errc::usage, "comparing needs two states: give B");
        }
        options.model.path.clear();
        return {};
    }
    asks_for_drift |= options.metric == "prob";
    if (!asks_for_drift) options.model.path.clear();
    if (asks_for_drift && options.model.path.empty()) {
        return fail(Errc::usage, "probabilities need a model: give one with -m");
    }
    if (!asks_for_drift) {  // bounds that only the settings have
        for (auto* bound : {&options.bounds.kl, &options.bounds.kl_max, &options.bounds.top1, &options.bounds.logit,
                            &options.bounds.perplexity, &options.bounds.attention}) {
            bound->reset();
        }
    }
    if (!options.bounds.any()) {
        return fail(Errc::usage, "no bound: give one with --epsilon, or another of --help's \"Bounds\"");
    }
    if (options.strict && options.gate == "p99") {
        const Origin strict = table.origin("strict"), gate = table.origin("gate");
        if (strict == gate) return fail(Errc::usage, "--strict gates on the maximum, not on p99");
        options.strict = strict > gate;
    }
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("kv-verify", "Checks that a KV state is whole, or that two states are within epsilon of each other.");
    VerifyOptions options;
    OptionTable& table = tool.options();
    table.heading("States");
    table.positional("A", &options.a, true,
                     "the state, or the reference: a file, - (stdin), mpi:RANK or mpi-port:FILE");
    table.positional("B", &options.b, false, "the state to compare with it");
    add_sequence_option(table, options.sequences, "check");
    add_bounds(table, options);

    table.heading("Drift while decoding");
    add_model_options(table, options.model);
    // What 8-bit activations round differently after the least change would hide what the states differ in.
    bool fast = false;
    table.flag("--fast", &fast, "products as hetero-decode has them without --precise; its noise is counted too")
        .setting = true;
    table
        .choice("--kv-dtype", &options.kv_dtype, resident_types,
                "keep K and V of B so while decoding; auto: in the type that it came from")
        .setting = true;
    table.integer("--steps", "N", &options.steps, 1, 1U << 20, "tokens fed after both states: A's greedy continuation")
        .setting = true;
    table.text("--text", "FILE", &options.text, "feed the tokens of this text instead").completion = Completion::file;
    table
        .custom(
            "--floor", "off|auto|X", [&](std::string_view text) { return assign_floor(options.floor, text); },
            [&] { return options.floor; }, "noise of fp16 KV; auto: every figure of it is measured here")
        .setting = true;
    table.integer("--seed", "N", &options.seed, 0, 1U << 30, "of the draws that intervals come from").setting = true;

    table.heading("Reports");
    table.text("--csv", "FILE", &options.csv, "write layers, heads and steps as a table").completion = Completion::file;
    table.text("--junit", "FILE", &options.junit, "write the checks as JUnit XML").completion = Completion::file;

    table.heading("Running");
    add_transfer_options(table, options.transfer);
    return tool.run(argc, argv, [&]() -> Status {
        options.model.precise = !fast;
        HETERO_CHECK(check_usage(options, table));
        if (!options.model.path.empty()) HETERO_CHECK(check_device(options.model.device));
        return run_verify(tool, options);
    });
}
