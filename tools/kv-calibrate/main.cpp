// kv-calibrate: measures what storage formats of KV do to a model's predictions, and searches the best per layer.
#include "calibrate.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

Status check_usage(const CalibrateOptions& options) {
    if (options.texts.empty()) return fail(Errc::usage, "no texts: give some with --text");
    if (options.formats.empty() && !options.searching()) {
        return fail(Errc::usage,
                    "nothing to do: give formats to measure with --formats, or a plan to search with -o and --bits or "
                    "--epsilon");
    }
    if (!options.output.empty() && !options.searching()) {
        return fail(Errc::usage, "a plan needs a goal: give --bits or --epsilon");
    }
    if (options.strict && !options.epsilon) return fail(Errc::usage, "--strict goes with --epsilon");
    if (!options.slice.empty() && options.resume.empty()) {
        return fail(Errc::usage, "--slice leaves its results in the folder of --resume: give one");
    }
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("kv-calibrate", "Measures what formats of KV do to predictions, and plans the best for each layer.");
    CalibrateOptions options;
    OptionTable& table = tool.options();
    table.heading("Texts");
    table.texts("--text,--texts", "FILE", &options.texts, "a text to measure on; @FILE: token ids; may be repeated")
        .completion = Completion::file;
    table.texts("--held-out", "FILE", &options.held_out, "a text that no choice is made on; may be repeated")
        .completion = Completion::file;
    table.integer("--prompt-tokens", "N", &options.prompt_tokens, 1, 1U << 24, "tokens whose KV is stored").setting =
        true;
    table.integer("--steps", "N", &options.steps, 1, 1U << 20, "tokens fed after them").setting = true;

    table.heading("Formats");
    table.texts("--formats", "LIST", &options.formats,
                "formats to measure, commas between: presets, specs, K/V specs, with +sN sinks, +wN window");

    table.heading("Search");
    table.text("-o,--output", "PLAN", &options.output, "the plan found").completion = Completion::file;
    table.positive("--bits", "B", &options.bits, "the best plan of at most so many bits per value").setting = true;
    table
        .positive("--epsilon,--eps", "E", &options.epsilon,
                  "bound on E_p and KL; without --bits: the smallest plan that keeps it")
        .setting = true;
    table.flag("--strict", &options.strict, "the bound holds for the largest E_p, not for the 99th percentile")
        .setting = true;
    table.integer("--sinks", "N", &options.sinks, 0, 4096, "first tokens that plans keep as they are").setting = true;
    table.integer("--window", "N", &options.window, 0, 4096, "last tokens that plans keep as they are").setting = true;
    table.text("--k-options", "LIST", &options.k_options, "specs that a layer's K may have; the middle one is the base")
        .setting = true;
    table.text("--v-options", "LIST", &options.v_options, "the same for V").setting = true;
    table.integer("--search-steps", "N", &options.search_steps, 1, 1U << 20, "tokens fed to weigh a layer").setting =
        true;

    table.heading("Results");
    table.text("--csv", "FILE", &options.csv, "the table as comma-separated values").completion = Completion::file;
    table.text("--svg", "FILE", &options.svg, "a plot of KL over bits per value").completion = Completion::file;

    table.heading("Running");
    add_model_options(table, options.model);
    table.text("--resume", "DIR", &options.resume, "keep measurements in this folder, and go on from those in it")
        .completion = Completion::directory;
    table.text("--slice", "I/N", &options.slice, "measure the I-th of N parts of the work into --resume, and stop");
    return tool.run(argc, argv, [&]() -> Status {
        HETERO_CHECK(check_usage(options));
        HETERO_CHECK(check_device(options.model.device));
        if (options.model.device.is_auto()) {
            options.model.device.found = {};
            note_device(tool, options.model.device, {}, "plans are measured on the CPU");
        }
        if (options.model.device.found.ops != nullptr)
            return fail(Errc::usage, "--device {}: plans are measured on the CPU", options.model.device.name);
        return run_calibrate(tool, options);
    });
}
