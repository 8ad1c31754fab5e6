// kv-quantize: changes how the numbers of a KV state are stored.
#include "common/endpoints.h"
#include "common/models.h"
#include "common/tool.h"
#include "kv/convert.h"
#include "quant/codec.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

struct QuantizeOptions {
    std::string input, output, dtype, axis = "token", scale_dtype = "f16";
    std::uint64_t group = 0;
    bool group_given = false, symmetric = false, asymmetric = false, requantize = false;
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
            if (table.given(name)) return fail(Errc::usage, "--{} has no meaning with --dtype {}", name, options.dtype);
        }
        scheme.source_dtype = codec->value_dtype(scheme.params);
        return scheme;
    }
    if (options.symmetric && options.asymmetric) return fail(Errc::usage, "--sym and --asym exclude each other");
    scheme.params.axis = options.axis == "channel" ? quant::Axis::channel : quant::Axis::token;
    scheme.params.group = static_cast<std::uint32_t>(options.group);
    scheme.params.symmetric = !options.asymmetric;
    scheme.params.scale_dtype = options.scale_dtype == "f32" ? kernels::DType::f32 : kernels::DType::f16;
    return scheme;
}

std::string describe(const kv::Scheme& scheme) {
    if (!quant::find_codec(scheme.codec)->has_scale()) return scheme.codec;
    const quant::Params& params = scheme.params;
    return fmt::format("{} axis={} group={} {} scale={}", scheme.codec,
                       params.axis == quant::Axis::token ? "token" : "channel",
                       params.group == 0 ? "head" : fmt::format("{}", params.group), params.symmetric ? "sym" : "asym",
                       kernels::dtype_info(params.scale_dtype).name);
}

Status quantize(Tool& tool, const QuantizeOptions& options) {
    HETERO_TRY(kv::Scheme scheme, make_scheme(options, tool.options()));
    if (options.output.empty()) return fail(Errc::usage, "no output: give an endpoint with -o");
    HETERO_TRY(const Endpoints endpoints, prepare_endpoints(tool, {options.input}, {options.output}, options.transfer));
    HETERO_TRY(auto source, transport::open_source(endpoints.inputs.front(), options.transfer.transport()));
    const kv::Header& header = source->header();
    for (const std::uint32_t head_dim : {header.identity.head_dim_k, header.identity.head_dim_v}) {
        HETERO_CHECK(quant::find_codec(scheme.codec)->check(scheme.params, head_dim));
    }
    HETERO_TRY(auto sink, transport::open_sink(endpoints.outputs.front(), options.transfer.transport()));
    auto converted =
        kv::convert_state(*source, *sink, scheme, scheme, options.requantize,
                          tool.provenance("quantize " + describe(scheme)), static_cast<int>(options.threads));
    if (!converted) {
        sink->abort(converted.error());
        return tl::unexpected(converted.error());
    }

    const double rate =
        converted->seconds > 0 ? static_cast<double>(converted->bytes_in) / converted->seconds / 1e9 : 0;
    const double ratio = static_cast<double>(converted->bytes_out) / static_cast<double>(converted->bytes_in);
    Json& report = tool.report();
    report["codec"] = scheme.codec;
    report["scheme"] = describe(scheme);
    report["bits_per_value"] = number(converted->bits_per_value);
    report["bytes_in"] = converted->bytes_in;
    report["bytes_out"] = converted->bytes_out;
    report["ratio"] = number(ratio);
    report["max_abs_error"] = number(converted->max_abs_error);
    report["exact"] = converted->exact;
    report["seconds"] = number(converted->seconds);
    report["gb_per_s"] = number(rate);
    tool.note("{}: {} -> {} bytes ({:.3f} x), {:.2f} bits per value, max |error| {:.6g}, {:.3f} GB/s", describe(scheme),
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
    table.heading("Representation");
    Option& dtype = table.text("--dtype", "TYPE", &options.dtype, fmt::format("one of {}", quant::codec_names()));
    dtype.setting = true;
    dtype.completion = Completion::choices;
    for (const quant::Codec* codec : quant::codecs()) dtype.choices.emplace_back(codec->name());
    table.choice("--axis", &options.axis, {"token", "channel"}, "groups lie within a token's head, or along the tokens")
        .setting = true;
    table.integer("--group", "N", &options.group, 1, 1U << 20, "elements that share a scale; else the whole head")
        .setting = true;
    table.flag("--sym", &options.symmetric, "scale only: x = q * s (this is the default)").setting = true;
    table.flag("--asym", &options.asymmetric, "scale and zero: x = q * s + z").setting = true;
    table.choice("--scale-dtype", &options.scale_dtype, {"f16", "f32"}, "type of scales and zeros").setting = true;
    table.flag("--requantize", &options.requantize, "allow quantized to quantized, which adds up errors");
    table.heading("Running");
    add_thread_option(table, &options.threads);
    add_transfer_options(table, options.transfer, true);
    return tool.run(argc, argv, [&] { return quantize(tool, options); });
}
