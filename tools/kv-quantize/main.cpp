// kv-quantize: changes how the numbers of a KV state are stored.
#include "common/devices.h"
#include "common/endpoints.h"
#include "common/models.h"
#include "common/schemes.h"
#include "common/sources.h"
#include "common/tool.h"
#include "common/transfers.h"
#include "engine/device/state_converter.h"
#include "inspect.h"
#include "kv/convert.h"

using namespace hetero;
using namespace hetero::tool;

namespace {

struct QuantizeOptions {
    std::string input, output, k, v, preset, plan, dtype, codecs, axis = "token", scale_dtype = "f16";
    std::uint64_t group = 0, sinks = 0, window = 0;
    std::vector<std::string> sequences;
    bool symmetric = false, asymmetric = false, requantize = false, inspect = false;
    std::uint64_t threads = 0;
    DeviceOptions device{"cpu"};
    TransferOptions transfer;
};

// Options that only mean something beside --dtype.
Status refuse_dtype_options(const OptionTable& table, std::string_view reason) {
    for (const char* name : {"axis", "group", "sym", "asym", "scale-dtype"}) {
        if (table.on_command_line(name)) return fail(Errc::usage, "--{} {}", name, reason);
    }
    return {};
}

Result<Specs> specs_of_plan(const QuantizeOptions& options, const OptionTable& table) {
    HETERO_CHECK(refuse_dtype_options(table, "goes with --dtype; a plan says it itself"));
    return read_plan(options.plan);
}

// K and V alike, from --dtype and the options beside it.
Result<Specs> specs_of_dtype(const QuantizeOptions& options, const OptionTable& table) {
    const quant::Codec* codec = quant::find_codec(options.dtype);
    if (codec == nullptr) {
        return fail(Errc::usage, "--dtype: '{}' is not one of {}", options.dtype, quant::codec_names());
    }
    quant::Spec spec{options.dtype, codec->default_params()};
    if (!codec->has_options()) {
        HETERO_CHECK(refuse_dtype_options(table, fmt::format("has no meaning with --dtype {}", options.dtype)));
        return Specs{spec, spec, 0, 0, {}, {}};
    }
    const Origin sym = table.origin("sym"), asym = table.origin("asym");
    if (options.symmetric && options.asymmetric && sym == asym) {
        return fail(Errc::usage, "--sym and --asym exclude each other");
    }
    HETERO_TRY(spec.params.axis, quant::axis_from_name(options.axis));
    spec.params.group = static_cast<std::uint32_t>(options.group);
    spec.params.symmetric = !options.asymmetric || (options.symmetric && sym > asym);
    spec.params.scale_dtype = options.scale_dtype == "f32" ? kernels::DType::f32 : kernels::DType::f16;
    return Specs{spec, spec, 0, 0, {}, {}};
}

// What the options ask for; all that can be known without the state is checked here. Each way to say it excludes the
// others on the command line; a setting of a file or the environment gives way to it.
Result<Specs> make_specs(const QuantizeOptions& options, const OptionTable& table) {
    const auto chosen = [&](const char* name, const std::string& value) {
        return value.empty() ? Origin::fallback : table.origin(name);
    };
    const Origin pair = std::max(chosen("k", options.k), chosen("v", options.v)),
                 preset = chosen("preset", options.preset), dtype = chosen("dtype", options.dtype),
                 plan = chosen("plan", options.plan);
    const Origin best = std::max({pair, preset, dtype, plan});
    if (best == Origin::fallback) {
        return fail(Errc::usage, "no codec: give --k SPEC and --v SPEC, --preset ({}), --plan FILE or --dtype ({})",
                    quant::preset_names(), quant::codec_names());
    }
    if ((pair == best ? 1 : 0) + (preset == best ? 1 : 0) + (dtype == best ? 1 : 0) + (plan == best ? 1 : 0) > 1) {
        return fail(Errc::usage, "--k and --v, --preset, --plan and --dtype exclude each other");
    }
    if (plan == best) return specs_of_plan(options, table);
    if (dtype == best) return specs_of_dtype(options, table);
    HETERO_CHECK(refuse_dtype_options(table, "goes with --dtype; a spec says it itself: int8:channel:g32:asym"));
    if (preset == best) return specs_of_preset(options.preset);
    if (options.k.empty() || options.v.empty()) {
        return fail(Errc::usage, "--{} is missing: give K and V each a codec (f16 keeps 16 bits)",
                    options.k.empty() ? "k" : "v");
    }
    Specs specs;
    HETERO_TRY(specs.k, quant::parse_spec(options.k));
    HETERO_TRY(specs.v, quant::parse_spec(options.v));
    return specs;
}

// A layer is converted in memory: the largest must fit.
Status check_memory(const kv::Header& header, const Schemes& schemes, const QuantizeOptions& options) {
    const kv::ConvertMemory least = kv::convert_memory(header, schemes.k, schemes.v, static_cast<int>(options.threads));
    if (least.bytes <= options.transfer.max_memory_bytes) return {};
    return fail(Errc::resource,
                "--max-memory {}: layer {} of sequence {} needs {} bytes at once; give at least --max-memory {}Ki{}",
                options.transfer.max_memory_bytes, least.layer, header.sequences[least.sequence].id, least.bytes,
                (least.bytes + 1023) / 1024, options.threads == 1 ? "" : ", or fewer --threads");
}

// Which parts the device has converted.
std::string where_text(const std::string& device, const kv::ConvertReport& report) {
    const std::uint64_t parts = report.parts.exact + report.parts.lossy + report.parts.requantized;
    if (report.elsewhere == parts) return fmt::format(", on {}", device);
    return fmt::format(", {} of {} parts on {}, the others on the CPU", report.elsewhere, parts, device);
}

// Null: the CPU converts.
Result<std::unique_ptr<engine::StateConverter>> device_converter(Tool& tool, DeviceOptions& options) {
    HETERO_CHECK(check_device(options));
    if (options.found.ops == nullptr) {
        note_device(tool, options, options.found, options.why_cpu);
        return nullptr;
    }
    auto made = engine::StateConverter::create(options.found);
    if (made) note_device(tool, options, options.found, "");
    if (made || !options.is_auto()) return made;
    note_cpu(tool, made.error().message);
    return nullptr;
}

Status quantize(Tool& tool, QuantizeOptions& options) {
    HETERO_TRY(Specs specs, make_specs(options, tool.options()));
    if (tool.options().given("sinks")) specs.sinks = static_cast<std::uint32_t>(options.sinks);
    if (tool.options().given("window")) specs.window = static_cast<std::uint32_t>(options.window);
    if (!specs.plan && (specs.sinks != 0 || specs.window != 0) && !quant::find_codec(specs.k.codec)->quantized() &&
        !quant::find_codec(specs.v.codec)->quantized()) {
        return fail(Errc::usage, "--sinks and --window have no meaning with {}, which keeps all tokens as they are",
                    quant::to_text(specs.k));
    }
    if (options.output.empty() && !options.transfer.dry_run)
        return fail(Errc::usage, "no output: give an endpoint with -o");
    HETERO_TRY(const auto on_device, device_converter(tool, options.device));
    HETERO_TRY(const Endpoints endpoints,
               prepare_endpoints(tool, {options.input}, {options.output}, options.transfer, {{options.plan}, {}}));
    transport::TransportOptions transfer = options.transfer.transport(tool);
    transfer.confirm_later = true;
    HETERO_TRY(auto opened, open_source(tool, endpoints.inputs.front(), transfer, "quantize"));
    HETERO_TRY(auto source, select_sequences(std::move(opened.source), options.sequences));
    const bool bounded = tool.options().given("max-memory");
    if (!bounded) source = ahead(std::move(source), endpoints.inputs.front(), options.threads);
    const kv::Header& header = source->header();
    const kv::Identity& identity = header.identity;
    HETERO_CHECK(check_specs(tool, specs, identity));
    const Schemes schemes = schemes_of(specs, header);
    if (bounded) HETERO_CHECK(check_memory(header, schemes, options));
    const std::string description = describe(schemes);
    std::unique_ptr<kv::Sink> sink = discarding_sink();
    if (!options.transfer.dry_run) {
        HETERO_TRY(sink, transport::open_sink(endpoints.outputs.front(), transfer));
    }
    auto converted = kv::convert_state(*source, *sink, schemes.k, schemes.v, options.requantize,
                                       tool.provenance("quantize " + description), static_cast<int>(options.threads),
                                       bounded ? kv::Handing::written : kv::Handing::shared, on_device.get());
    if (!converted) {
        sink->abort(converted.error());
        return tl::unexpected(converted.error());
    }
    HETERO_CHECK(transport::confirm(endpoints.inputs.front()));

    trace_transfers(endpoints);
    const double rate =
        converted->seconds > 0 ? static_cast<double>(converted->bytes_in) / converted->seconds / 1e9 : 0;
    const double ratio = static_cast<double>(converted->bytes_out) / static_cast<double>(converted->bytes_in);
    Json& report = tool.report();
    if (options.transfer.dry_run) report["dry_run"] = true;
    report_schemes(report, specs, schemes, identity);
    report["bits_per_value"] = number(converted->bits_per_value);
    report["bytes_in"] = converted->bytes_in;
    report["bytes_out"] = converted->bytes_out;
    report["ratio"] = number(ratio);
    report["max_abs_error"] = number(converted->max_abs_error);
    report["exact"] = converted->exact();
    report["conversion"] = converted->parts.text();
    report["parts"] = {{"kept", converted->parts.kept},
                       {"exact", converted->parts.exact},
                       {"lossy", converted->parts.lossy},
                       {"requantized", converted->parts.requantized}};
    report["device"] = on_device != nullptr ? on_device->name() : "cpu";
    report["parts_on_device"] = converted->elsewhere;
    report["seconds"] = number(converted->seconds);
    report["gb_per_s"] = number(rate);
    tool.note("{}: {} -> {} bytes ({:.3f} x), {:.2f} bits per value, {}, {:.3f} GB/s{}", description,
              converted->bytes_in, converted->bytes_out, ratio, converted->bits_per_value,
              converted->exact()
                  ? "exact"
                  : fmt::format("{}, max |error| {:.6g}", converted->parts.text(), converted->max_abs_error),
              rate, on_device == nullptr ? "" : where_text(on_device->name(), *converted));
    return {};
}

Status inspect(Tool& tool, const QuantizeOptions& options) {
    for (const char* name :
         {"output", "k", "v", "preset", "plan", "dtype", "sinks", "window", "requantize", "device"}) {
        if (tool.options().on_command_line(name))
            return fail(Errc::usage, "--{} has no meaning with --inspect, which writes no state", name);
    }
    HETERO_TRY(const std::vector<quant::Spec> codecs, inspected_codecs(options.codecs));
    HETERO_TRY(const Endpoints endpoints, prepare_endpoints(tool, {options.input}, {}, options.transfer));
    HETERO_TRY(auto opened, open_source(tool, endpoints.inputs.front(), options.transfer.transport(tool), "inspect"));
    HETERO_TRY(const auto source, select_sequences(std::move(opened.source), options.sequences));
    HETERO_TRY(const auto parts, kv::inspect_state(*source, codecs, static_cast<int>(options.threads)));
    tool.report().update(to_json(parts));
    return tool.json() ? Status{} : tool.print(to_text(parts));
}

}  // namespace

int main(int argc, char** argv) {
    Tool tool("kv-quantize", "Changes how the numbers of a KV state are stored: quantizes, and back.");
    QuantizeOptions options;
    OptionTable& table = tool.options();
    table.heading("States");
    table.positional("IN", &options.input, true, "the state: a file, - (stdin), mpi:RANK or mpi-port:FILE");
    table.text("-o,--output", "OUT", &options.output, "the result: a file, - (stdout), mpi:RANK or mpi-port:FILE")
        .completion = Completion::file;
    add_sequence_option(table, options.sequences, "keep");
    table.heading("Representation");
    table.text("--k", "SPEC", &options.k, "how K is stored, say int8:channel:g32:asym").setting = true;
    table.text("--v", "SPEC", &options.v, "how V is stored, say had:int8:token").setting = true;
    Option& preset =
        table.text("--preset", "NAME", &options.preset, fmt::format("both at once: {}", quant::preset_names()));
    preset.setting = true;
    preset.completion = Completion::choices;
    for (const quant::Preset& one : quant::presets()) preset.choices.emplace_back(one.name);
    Option& plan = table.text("--plan", "FILE", &options.plan, "as a plan of kv-calibrate says, layer by layer");
    plan.setting = true;
    plan.completion = Completion::file;
    Option& dtype =
        table.text("--dtype", "TYPE", &options.dtype, fmt::format("K and V alike: one of {}", quant::codec_names()));
    dtype.setting = true;
    dtype.completion = Completion::choices;
    for (const quant::Codec* codec : quant::codecs()) dtype.choices.emplace_back(codec->name());
    table
        .choice("--axis", &options.axis, {"token", "channel", "head", "tensor"},
                "what shares a scale: of a token's head, of a channel's tokens, a head, all heads")
        .setting = true;
    Option& group = table.integer("--group", "N", &options.group, 1, 1U << 20,
                                  "dimensions (token axis) or tokens that share a scale; else all");
    group.setting = true;
    group.show = [&] { return options.group == 0 ? std::string() : fmt::format("{}", options.group); };
    group.default_text.clear();
    table.flag("--sym", &options.symmetric, "scale only: x = q * s (this is the default)").setting = true;
    table.flag("--asym", &options.asymmetric, "scale and zero: x = q * s + z").setting = true;
    table.choice("--scale-dtype", &options.scale_dtype, {"f16", "f32"}, "type of scales and zeros").setting = true;
    table.integer("--sinks", "N", &options.sinks, 0, 4096, "first tokens kept as they are (presets have their own)")
        .setting = true;
    table.integer("--window", "N", &options.window, 0, 4096, "last tokens kept as they are").setting = true;
    table.flag("--requantize", &options.requantize, "allow quantized to quantized, which adds up errors");
    table.heading("Inspection");
    table.flag("--inspect", &options.inspect,
               "write no state: report ranges, outlier channels, what codecs would lose");
    table.text("--codecs", "SPECS", &options.codecs, "those to try, with commas between them");
    table.heading("Running");
    add_dry_run_option(table, options.transfer, "convert and report, but write nothing");
    add_device_options(table, options.device);
    add_thread_option(table, &options.threads);
    add_transfer_options(table, options.transfer);
    tool.add_trace_option();
    return tool.run(argc, argv, [&]() -> Status {
        if (options.inspect) return inspect(tool, options);
        if (table.on_command_line("codecs")) return fail(Errc::usage, "--codecs goes with --inspect");
        return quantize(tool, options);
    });
}
