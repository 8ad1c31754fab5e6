// hetero-convert: weights in another precision or container.
#include "convert.h"
#include "quant/weights/weight_format.h"

using namespace hetero;
using namespace hetero::tool;

int main(int argc, char** argv) {
    Tool tool("hetero-convert", "Writes a model's weights in another precision, as a GGUF file or a folder.");
    ConvertOptions options;
    OptionTable& table = tool.options();

    table.heading("Models");
    table.positional("IN", &options.input, true, "the model: a .gguf file or a Hugging Face folder");
    table.text("-o,--output", "OUT", &options.output, "the result: a GGUF file where it ends in .gguf, else a folder")
        .completion = Completion::file;

    table.heading("Precision");
    Option& dtype =
        table.text("--dtype", "TYPE", &options.dtype, fmt::format("one of {}", quant::weight_format_names()));
    dtype.setting = true;
    dtype.completion = Completion::choices;
    for (const quant::WeightFormat* format : quant::weight_formats()) dtype.choices.emplace_back(format->name());
    table.texts("--keep", "PATTERN=TYPE", &options.keep, "another type for tensors whose names fit; the last one wins");
    table.size("--max-shard-size", "SIZE", &options.max_shard_bytes, "largest file of a folder's weights").setting =
        true;

    table.heading("Check");
    table.text("--check", "FILE", &options.check, "compare both models on this text: perplexity, logits").completion =
        Completion::file;
    table.choice("--bos", &options.bos, {"auto", "on", "off"}, "begin windows of the text with BOS").setting = true;

    table.heading("Running");
    table.flag("--dry-run", &options.dry_run, "print what would be written and its bytes, and write nothing");
    add_thread_option(table, &options.threads);
    return tool.run(argc, argv, [&]() -> Status {
        if (options.max_shard_bytes == 0) return fail(Errc::usage, "--max-shard-size: a file of 0 bytes holds nothing");
        return run_convert(tool, options);
    });
}
