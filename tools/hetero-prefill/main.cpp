// hetero-prefill: computes the KV state of prompts.
#include "prefill.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

Status check_no_state(const OptionTable& table, std::string_view what) {
    for (const char* name : {"plan", "wire-dtype"})
        if (table.on_command_line(name)) return fail(Errc::usage, "{} writes no state, which --{} is for", what, name);
    return {};
}

Status check_usage(const OptionTable& table, const PrefillOptions& options) {
    if (options.model.path.empty()) return fail(Errc::usage, "no model: give one with -m");
    if (!options.score.empty()) {
        if (!options.output.empty() || !options.prefix.empty() || has_prompt(options.prompt) ||
            !options.logits_out.empty()) {
            return fail(Errc::usage, "--score takes no prompt and writes no state");
        }
        return check_no_state(table, "--score");
    }
    if (options.first_token == "prefill" && options.logits == "none" && table.on_command_line("logits")) {
        return fail(Errc::usage, "--first-token prefill takes logits: not --logits none");
    }
    if (options.warms_only()) return check_no_state(table, "--warm without a prompt");
    HETERO_CHECK(check_prompt_options(options.prompt, options.prefix == "-"));
    if (!has_prompt(options.prompt)) {
        return fail(Errc::usage, "no prompt: give one of --prompt, --file, --tokens, --jsonl");
    }
    if (options.output.empty() && !options.transfer.dry_run)
        return fail(Errc::usage, "no output: give an endpoint with -o");
    if ((options.logits == "all") != !options.logits_out.empty()) {
        return fail(Errc::usage, "--logits all and --logits-out FILE belong together");
    }
    if (options.logits == "all" && !options.prefix.empty()) {
        return fail(Errc::usage, "--logits all needs every position computed: it cannot be used with --prefix");
    }
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("hetero-prefill", "Computes the KV state of prompts and writes it to a file, a pipe or an MPI rank.");
    PrefillOptions options;
    OptionTable& table = tool.options();

    table.heading("Prompt");
    add_prompt_options(table, options.prompt, PromptForms::all);
    table
        .choice("--truncate", &options.truncate, {"off", "start", "end"},
                "cut prompts that do not fit into the context, at this side")
        .setting = true;
    table.text("--prefix", "KV", &options.prefix, "begin from this state; only new tokens are computed").completion =
        Completion::file;

    table.heading("Model");
    add_model_options(table, options.model);
    add_precise_option(table, options.model);
    add_warm_options(table, options.model);
    add_exec_option(table, options.model);
    add_tier_option(table, options.model);
    table.choice("--kv-dtype", &options.kv_dtype, resident_types, "type of K and V; auto: f16, or that of the prefix")
        .setting = true;
    table.integer("--chunk", "N", &options.chunk_tokens, 1, 65536, "tokens computed at once").setting = true;
    add_tp_options(table, options.transfer);

    table.heading("Output");
    table
        .text("-o,--output", "KV", &options.output,
              "the state: a file, - (stdout), mpi:RANK, with --shards mpi:FIRST-LAST, or mpi-port:FILE")
        .completion = Completion::file;
    add_delivery_options(table, options.delivery);
    table.flag("--staged", &options.staged, "send from the host's memory, even where MPI sends from a GPU's").setting =
        true;
    table.choice("--logits", &options.logits, {"none", "last", "all"},
                 "keep logits: of the last position in the state, of all in --logits-out");
    table.text("--logits-out", "FILE", &options.logits_out, "with --logits all: a NumPy file, float32 [token][vocab]")
        .completion = Completion::file;
    table
        .choice("--first-token", &options.first_token, {"decode", "prefill"},
                "which side chooses the first token; prefill: greedily, printed here, and the state comes with it")
        .setting = true;
    table.text("--score", "FILE", &options.score, "print the perplexity of a text instead").completion =
        Completion::file;
    add_dry_run_option(table, options.transfer, "check everything, report sizes, compute nothing");
    add_transfer_options(table, options.transfer);
    tool.add_trace_option();

    return tool.run(argc, argv, [&]() -> Status {
        HETERO_CHECK(check_warm(table, options.model));
        HETERO_CHECK(check_usage(table, options));
        HETERO_CHECK(check_device(options.model.device));
        if (options.warms_only()) return run_warm(tool, options);
        return options.score.empty() ? run_prefill(tool, options) : run_score(tool, options);
    });
}
