// hetero-plan: whether to split a model's inference, and how, from what machines were measured to do.
#include "plan.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

// Far beyond any rate, price or goal, and far from where the simulation's clock loses precision.
constexpr double least = 1e-9, most = 1e12;

Option& positive(OptionTable& table, const char* flags, const char* argument, std::optional<double>* value,
                 const char* help, bool of_time = false) {
    return table.positive(flags, argument, value, help, of_time, least, most);
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("hetero-plan", "Plans where prefill and decode run, and in what form KV goes from one to the other.");
    PlanOptions options;
    OptionTable& table = tool.options();
    table.heading("Model and machines");
    table.text("-m,--model", "MODEL", &options.model, "a .gguf file, a folder, or a config.json without weights")
        .completion = Completion::file;
    table.text("--hw", "FILE", &options.hw, "profile of a machine or a fleet, as hw-probe writes it").completion =
        Completion::file;
    table.text("--hw-decode", "FILE", &options.hw_decode, "profile of a second kind of machines").completion =
        Completion::file;
    table.integer("--machines", "N", &options.machines, 1, 4096, "machines of --hw").setting = true;
    table.integer("--machines-decode", "N", &options.machines_decode, 1, 4096, "machines of --hw-decode").setting =
        true;
    table.choice("--device", &options.device, {"auto", "cpu", "gpu"}, "what of the machines runs the model").setting =
        true;
    positive(table, "--link", "GB/S", &options.link_gb_per_s, "rate between machines, instead of the profile's")
        .setting = true;
    table.duration("--link-latency", "TIME", &options.link_latency_s, "its latency").setting = true;
    table.flag("--link-specified", &options.link_specified, "the rate of --link is a data sheet's, not measured")
        .setting = true;
    positive(table, "--price", "USD", &options.price, "of a machine of --hw, an hour").setting = true;
    positive(table, "--price-decode", "USD", &options.price_decode, "of a machine of --hw-decode, an hour").setting =
        true;
    table.texts("--price-of", "NAME=USD", &options.prices, "of that machine and those alike; may be repeated");
    table.text("--stages", "FILE", &options.stages, "stage profile of this model on --hw").completion =
        Completion::file;
    table.text("--stages-decode", "FILE", &options.stages_decode, "stage profile of this model on --hw-decode")
        .completion = Completion::file;

    table.heading("Work");
    table.integer("--prompt", "N", &options.prompt, 0, 1U << 28, "tokens of a prompt").setting = true;
    table.integer("--output", "N", &options.output, 0, 1U << 28, "tokens that are generated").setting = true;
    positive(table, "--rate", "R", &options.rate, "requests a second; without it: how many there can be").setting =
        true;
    table.real("--prefix-hit", "F", &options.prefix_hit, 0, 1, "fraction of a prompt whose KV is there already")
        .setting = true;
    table.integer("--prefixes", "N", &options.prefixes, 1, 1U << 30, "different ones, whose KV is kept").setting = true;
    table.flag("--prefix-at-decoder", &options.prefix_at_decoder, "the decoder has that KV: it is not sent").setting =
        true;
    table.text("--trace", "FILE", &options.trace, "requests: Mooncake JSONL, splitwise CSV or OpenAI-batch JSONL")
        .completion = Completion::file;

    table.heading("Goals");
    positive(table, "--ttft", "TIME", &options.ttft_s, "to the first token, at most", true).setting = true;
    positive(table, "--itl", "TIME", &options.itl_s, "between tokens, at most, in a request's mean", true).setting =
        true;
    table.real("--attainment", "F", &options.attainment, 0.001, 1, "fraction of requests that keep both").setting =
        true;

    table.heading("Choices");
    table.text("--dtype", "LIST", &options.dtype, "types of weights to try; by default as stored").setting = true;
    table.text("--decode-dtype", "LIST", &options.decode_dtype, "the same for --hw-decode").setting = true;
    table.texts("--kv-dtype", "SPEC", &options.kv_dtypes, "a codec of KV to try besides f16; may be repeated");
    table
        .text("--certificate", "FILE", &options.certificate,
              "of kv-verify or kv-calibrate: forms of KV that it does not certify drop out")
        .completion = Completion::file;
    table.choice("--first-token", &options.first_token, {"auto", "prefill", "decode"}, "who emits the first token")
        .setting = true;
    table.integer("--max-sequences", "N", &options.max_sequences, 1, 65536, "of a step of decode").setting = true;
    table.integer("--chunk", "N", &options.chunk, 1, 1U << 20, "tokens of a step of chunked prefill").setting = true;

    table.heading("Running");
    table.integer("--requests", "N", &options.requests, 1, 100'000'000, "requests played for the chosen plan").setting =
        true;
    table.integer("--seed", "N", &options.seed, 0, ~std::uint64_t{0} >> 1, "of the moments of arrival").setting = true;

    table.heading("Results");
    table.text("-o,--output-plan", "PLAN", &options.plan_file, "the plan, for --plan of the other tools").completion =
        Completion::file;
    table.choice("--emit", &options.emit, {"slurm"}, "a batch script that runs the plan").setting = true;
    table.text("--emit-file", "FILE", &options.emit_file, "where it goes; by default stdout").completion =
        Completion::file;
    table.flag("--explain", &options.explain, "say which of nine practices the plan keeps").setting = true;
    table.text("--plot", "SVG", &options.plot, "a plot of what was compared; needs gnuplot").completion =
        Completion::file;
    table.integer("--rows", "N", &options.rows, 1, 1000, "deployments to show").setting = true;
    return tool.run(argc, argv, [&] { return run_plan(tool, options); });
}
