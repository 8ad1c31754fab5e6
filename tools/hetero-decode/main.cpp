// hetero-decode: continues the sequences of a KV state.
#include <limits>

#include "common/sources.h"
#include "decode.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

Status check_usage(DecodeOptions& options) {
    if (options.model.path.empty()) return fail(Errc::usage, "no model: give one with -m");
    HETERO_CHECK(check_prompt_options(options.prompt, options.input == "-"));
    for (const std::string& stop : options.generate.stop) {
        if (stop.empty()) return fail(Errc::usage, "--stop: the text is empty");
    }
    options.generate.sampling.top_k = static_cast<std::uint32_t>(options.top_k);
    return engine::check(options.generate.sampling);
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("hetero-decode", "Continues the sequences of a KV state and prints their text.");
    DecodeOptions options;
    options.generate.max_tokens = 128;
    OptionTable& table = tool.options();
    engine::SamplingOptions& sampling = options.generate.sampling;

    table.heading("States");
    table.positional("KV", &options.input, true, "the state: a file, - (stdin), mpi:RANK or mpi-port:FILE");
    table
        .text("-o,--output", "KV", &options.output,
              "write the continued state: a file, - (then no text), mpi:RANK or mpi-port:FILE")
        .completion = Completion::file;
    add_sequence_option(table, options.sequences, "continue");

    table.heading("Prompt that the state must belong to");
    add_prompt_options(table, options.prompt, PromptForms::text_and_tokens);

    table.heading("Model");
    add_model_options(table, options.model);
    add_precise_option(table, options.model);
    add_warm_options(table, options.model);
    add_exec_option(table, options.model);
    add_tier_option(table, options.model);
    table
        .choice("--kv-dtype", &options.kv_dtype, resident_types,
                "type of K and V in memory; auto: what the state was made in")
        .setting = true;
    table.integer("--chunk", "N", &options.chunk_tokens, 1, 65536, "tokens of a longer prompt computed at once")
        .setting = true;
    add_tp_options(table, options.transfer);

    table.integer("--batch", "N", &options.batch, 0, 65536, "decode so many sequences together; 0: all that fit")
        .setting = true;

    table.heading("Generation");
    table
        .integer("-n,--n-tokens", "N", &options.generate.max_tokens, 0, std::uint64_t{1} << 30,
                 "at most so many tokens")
        .setting = true;
    table.texts("--stop", "TEXT", &options.generate.stop, "end before this text; may be repeated");
    table.flag("--ignore-eos", &options.generate.ignore_eos, "go on after a token that ends the text").setting = true;
    table.flag("--show-special", &options.generate.show_special, "print special tokens as text").setting = true;
    table.real("--temperature", "T", &sampling.temperature, 0, 100, "0: greedy").setting = true;
    table.integer("--top-k", "K", &options.top_k, 0, std::numeric_limits<std::uint32_t>::max(), "0: off").setting =
        true;
    table.real("--top-p", "P", &sampling.top_p, 0, 1, "1: off").setting = true;
    table.real("--min-p", "P", &sampling.min_p, 0, 1, "0: off").setting = true;
    table.real("--repetition-penalty", "R", &sampling.repetition_penalty, 0, 100, "1: off").setting = true;
    table
        .integer("--seed", "N", &sampling.seed, 0, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
                 "of the sampler")
        .setting = true;

    table.heading("Running");
    add_turn_option(table, options.turns);
    add_dry_run_option(table, options.transfer, "check everything, read the state, generate nothing");
    add_transfer_options(table, options.transfer);
    tool.add_trace_option();

    return tool.run(argc, argv, [&]() -> Status {
        HETERO_CHECK(check_usage(options));
        HETERO_CHECK(check_warm(table, options.model));
        HETERO_CHECK(check_device(options.model.device));
        return options.turns.in_turn() ? decode_in_turn(tool, options) : run_decode(tool, options);
    });
}
