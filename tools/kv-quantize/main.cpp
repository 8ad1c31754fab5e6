// kv-quantize: changes how the numbers of a KV state are stored.
#include "common/endpoints.h"
#include "common/models.h"
#include "common/sources.h"
#include "common/tool.h"
#include "kv/canonical.h"
#include "kv/convert.h"
#include "quant/codec.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

struct QuantizeOptions {
    std::string input, output, dtype, axis = "token", scale_dtype = "f16";
    std::uint64_t group = 0;
    std::vector<std::string> sequences;
    bool symmetric = false, asymmetric = false, requantize = false;
    std::uint64_t threads = 0;
    TransferOptions transfer;
};

// The scheme that the options ask for; all that can be known without the state is checked here.
Result<kv::Scheme> make_scheme(const QuantizeOptions& options, const OptionTable& table) {
    if (options.dtype.empty()) return fail(Errc::usage, "no type: give one with --dtype ({})", quant::codec_names());
    const quant::Codec* codec = quant::find_codec(options.dtype);
    if (codec == nullptr) {
        return fail(Errc::usage, "--dtype: '{}' is not one of {}", options.dtype, quant::codec_names());
    }
    kv::Scheme scheme;
    scheme.codec = options.dtype;
    if (!codec->has_scale()) {
        for (const char* name : {"axis", "group", "sym", "asym", "scale-dtype"}) {
            if (table.on_command_line(name))
                return fail(Errc::usage, "--{} has no meaning with --dtype {}", name, options.dtype);
        }
        scheme.source_dtype = codec->value_dtype(scheme.params);
        return scheme;
    }
    const Origin sym = table.origin("sym"), asym = table.origin("asym");
    if (options.symmetric && options.asymmetric && sym == asym) {
        return fail(Errc::usage, "--sym and --asym exclude each other");
    }
    scheme.params.axis = options.axis == "channel" ? quant::Axis::channel : quant::Axis::token;
    scheme.params.group = static_cast<std::uint32_t>(options.group);
    scheme.params.symmetric = !options.asymmetric || (options.symmetric && sym > asym);
    scheme.params.scale_dtype = options.scale_dtype == "f32" ? kernels::DType::f32 : kernels::DType::f16;
    return scheme;
}

Status quantize(Tool& tool, const QuantizeOptions& options) {
    HETERO_TRY(kv::Scheme scheme, make_scheme(options, tool.options()));
    if (options.output.empty() && !options.transfer.dry_run)
        return fail(Errc::usage, "no output: give an endpoint with -o");
    HETERO_TRY(const Endpoints endpoints, prepare_endpoints(tool, {options.input}, {options.output}, options.transfer));
    HETERO_TRY(auto opened, open_source(tool, endpoints.inputs.front(), options.transfer.transport(tool), "quantize"));
    HETERO_TRY(const auto source, select_sequences(std::move(opened.source), options.sequences));
    const kv::Header& header = source->header();
    for (const std::uint32_t head_dim : {header.identity.head_dim_k, header.identity.head_dim_v}) {
        HETERO_CHECK(quant::find_codec(scheme.codec)->check(scheme.params, head_dim));
    }
    if (quant::find_codec(scheme.codec)->has_scale()) scheme.source_dtype = header.k_schemes.front().source_dtype;
    const std::string description = kv::describe(scheme);
    std::unique_ptr<kv::Sink> sink = discarding_sink();
    if (!options.transfer.dry_run) {
        HETERO_TRY(sink, transport::open_sink(endpoints.outputs.front(), options.transfer.transport(tool)));
    }
    auto converted = kv::convert_state(*source, *sink, scheme, scheme, options.requantize,
                                       tool.provenance("quantize " + description), static_cast<int>(options.threads));
    if (!converted) {
        sink->abort(converted.error());
        return tl::unexpected(converted.error());
    }

    const double rate =
        converted->seconds > 0 ? static_cast<double>(converted->bytes_in) / converted->seconds / 1e9 : 0;
    const double ratio = static_cast<double>(converted->bytes_out) / static_cast<double>(converted->bytes_in);
    Json& report = tool.report();
    if (options.transfer.dry_run) report["dry_run"] = true;
    report["codec"] = scheme.codec;
    report["scheme"] = description;
    report["bits_per_value"] = number(converted->bits_per_value);
    report["bytes_in"] = converted->bytes_in;
    report["bytes_out"] = converted->bytes_out;
    report["ratio"] = number(ratio);
    report["max_abs_error"] = number(converted->max_abs_error);
    report["exact"] = converted->exact;
    report["seconds"] = number(converted->seconds);
    report["gb_per_s"] = number(rate);
    tool.note("{}: {} -> {} bytes ({:.3f} x), {:.2f} bits per value, max |error| {:.6g}, {:.3f} GB/s", description,
              converted->bytes_in, converted->bytes_out, ratio, converted->bits_per_value, converted->max_abs_error,
              rate);
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("kv-quantize", "Changes how the numbers of a KV state are stored: quantizes, and back.");
    QuantizeOptions options;
    OptionTable& table = tool.options();
    table.heading("States");
    table.positional("IN", &options.input, true, "the state: a file, - (stdin) or mpi:RANK");
    table.text("-o,--output", "OUT", &options.output, "the result: a file, - (stdout) or mpi:RANK").completion =
        Completion::file;
    add_sequence_option(table, options.sequences, "keep");
    table.heading("Representation");
    Option& dtype = table.text("--dtype", "TYPE", &options.dtype, fmt::format("one of {}", quant::codec_names()));
    dtype.setting = true;
    dtype.completion = Completion::choices;
    for (const quant::Codec* codec : quant::codecs()) dtype.choices.emplace_back(codec->name());
    table.choice("--axis", &options.axis, {"token", "channel"}, "groups lie within a token's head, or along the tokens")
        .setting = true;
    Option& group =
        table.integer("--group", "N", &options.group, 1, 1U << 20, "elements that share a scale; else the whole head");
    group.setting = true;
    group.show = [&] { return options.group == 0 ? std::string() : fmt::format("{}", options.group); };
    group.default_text.clear();
    table.flag("--sym", &options.symmetric, "scale only: x = q * s (this is the default)").setting = true;
    table.flag("--asym", &options.asymmetric, "scale and zero: x = q * s + z").setting = true;
    table.choice("--scale-dtype", &options.scale_dtype, {"f16", "f32"}, "type of scales and zeros").setting = true;
    table.flag("--requantize", &options.requantize, "allow quantized to quantized, which adds up errors");
    table.heading("Running");
    add_dry_run_option(table, options.transfer, "convert and report, but write nothing");
    add_thread_option(table, &options.threads);
    add_transfer_options(table, options.transfer);
    return tool.run(argc, argv, [&] { return quantize(tool, options); });
}
