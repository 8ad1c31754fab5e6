// kv-verify: checks that a KV state is whole, or that two are near enough to each other.
#include "base/units.h"
#include "common/sources.h"
#include "verify.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

Status assign_epsilon(std::optional<double>& epsilon, std::string_view text) {
    HETERO_TRY(const double value, parse_finite(text));
    if (value < 0) return fail(Errc::usage, "{} is negative", text);
    epsilon = value;
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

// The command line says which check is meant; settings from elsewhere that do not belong to it are ignored.
Status check_usage(VerifyOptions& options, const OptionTable& table) {
    bool asks_for_drift = false;
    for (const char* name : {"model", "steps", "text", "floor"}) asks_for_drift |= table.on_command_line(name);
    if (options.b.empty()) {
        if (asks_for_drift || table.on_command_line("strict") || table.on_command_line("metric") ||
            table.on_command_line("gate") || table.on_command_line("epsilon")) {
            return fail(Errc::usage, "comparing needs two states: give B");
        }
        options.model.path.clear();
        return {};
    }
    if (!options.epsilon) return fail(Errc::usage, "no bound: give one with --epsilon");
    asks_for_drift |= options.metric == "prob";
    if (!asks_for_drift) options.model.path.clear();
    if (asks_for_drift && options.model.path.empty()) {
        return fail(Errc::usage, "probabilities need a model: give one with -m");
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
    table.positional("A", &options.a, true, "the state, or the reference: a file, - (stdin) or mpi:RANK");
    table.positional("B", &options.b, false, "the state to compare with it");

    add_sequence_option(table, options.sequences, "check");

    table.heading("Bound");
    table
        .custom(
            "--epsilon,--eps", "E", [&](std::string_view text) { return assign_epsilon(options.epsilon, text); },
            [&] { return options.epsilon ? fmt::format("{}", *options.epsilon) : ""; },
            "largest difference that passes")
        .setting = true;
    table
        .choice("--metric", &options.metric, {"elem", "prob"},
                "of values, or of probabilities (needs -m, and is its default)")
        .setting = true;
    table.choice("--gate", &options.gate, {"p99", "max"}, "what is held against E [prob: p99, elem: max]").setting =
        true;
    table.flag("--strict", &options.strict, "the same as --gate max").setting = true;
    table.flag("--allow-equal-nan", &options.allow_equal_nan, "NaN at the same place in both passes").setting = true;

    table.heading("Drift while decoding");
    add_model_options(table, options.model);
    // What 8-bit activations round differently after the least change would hide what the states differ in.
    bool fast = false;
    table.flag("--fast", &fast, "products as hetero-decode has them without --precise; its noise is counted too")
        .setting = true;
    table.integer("--steps", "N", &options.steps, 1, 1U << 20, "tokens fed after both states: A's greedy continuation")
        .setting = true;
    table.text("--text", "FILE", &options.text, "feed the tokens of this text instead").completion = Completion::file;
    table
        .custom(
            "--floor", "off|auto|X", [&](std::string_view text) { return assign_floor(options.floor, text); },
            [&] { return options.floor; }, "noise of fp16 KV; auto: measured here")
        .setting = true;

    table.heading("Running");
    add_transfer_options(table, options.transfer);
    return tool.run(argc, argv, [&]() -> Status {
        options.model.precise = !fast;
        HETERO_CHECK(check_usage(options, table));
        if (!options.model.path.empty()) HETERO_CHECK(check_device(tool, options.model));
        return run_verify(tool, options);
    });
}
