#include "convert.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "common/progress.h"
#include "convert/writer.h"
#include "io/atomic_folder.h"
#include "kernels/api/ops.h"

namespace hetero::tool {
namespace {

namespace fs = std::filesystem;
using convert::Target;

constexpr std::uint64_t mib = 1U << 20;

Result<const quant::WeightFormat*> find_type(const std::string& name) {
    if (name.empty()) return fail(Errc::usage, "no type: give one with --dtype ({})", quant::weight_format_names());
    const quant::WeightFormat* format = quant::find_weight_format(name);
    if (format == nullptr) {
        return fail(Errc::usage, "--dtype: '{}' is not one of {}", name, quant::weight_format_names());
    }
    return format;
}

// Without an output, as in a dry run: the container of the input.
Target target_of(const ConvertOptions& options) {
    if (!options.output.empty()) return options.output.ends_with(".gguf") ? Target::gguf : Target::folder;
    std::error_code error;
    return fs::is_directory(options.input, error) ? Target::folder : Target::gguf;
}

Status check_output(const Tool& tool, const ConvertOptions& options, Target target) {
    if (options.output.empty()) return {};
    if (options.output == "-") return fail(Errc::usage, "-o: a model cannot be written to stdout; name a file");
    if (fs::path(options.output).extension() == ".safetensors") {
        return fail(Errc::usage, "-o: {} is one file of a model; name the folder to write", options.output);
    }
    std::error_code error;
    if (fs::equivalent(options.input, options.output, error)) {
        return fail(Errc::usage, "{}: is the input {} itself; write to another place", options.output, options.input);
    }
    HETERO_CHECK(tool.check_files({{options.input, options.check}, {options.output}}));
    if (options.dry_run) return {};
    return target == Target::gguf ? io::check_output_path(options.output, tool.overwrite())
                                  : io::check_output_folder(options.output, tool.overwrite());
}

std::string tensor_line(const convert::TensorReport& tensor, bool measured) {
    std::string line = fmt::format("{} [{}]: {} -> {}, {} -> {} bytes", tensor.name, fmt::join(tensor.shape, ", "),
                                   tensor.from, tensor.to, tensor.bytes_in, tensor.bytes_out);
    if (measured) {
        line += tensor.exact
                    ? ", copied"
                    : fmt::format(", max |error| {:.6g}, relative L2 {:.6g}", tensor.max_abs_error, tensor.relative_l2);
    }
    return tensor.reason.empty() ? line : fmt::format("{} ({})", line, tensor.reason);
}

void report_conversion(Tool& tool, const ConvertOptions& options, Target target, const convert::Report& result) {
    Json& report = tool.report();
    if (options.dry_run) report["dry_run"] = true;
    report["input"] = options.input;
    report["output"] = options.output;
    report["container"] = target == Target::gguf ? "gguf" : "folder";
    report["dtype"] = options.dtype;
    report["lineage"] = to_hex(result.lineage);
    report["bytes_in"] = result.bytes_in;
    report["bytes_out"] = result.bytes_out;
    report["ratio"] = number(static_cast<double>(result.bytes_out) / static_cast<double>(result.bytes_in));
    if (!options.dry_run) {
        report["seconds"] = number(result.seconds);
        report["mb_per_s"] = number(static_cast<double>(result.bytes_in) / result.seconds / 1e6);
    }
    Json& tensors = report["tensors"] = Json::array();
    for (const convert::TensorReport& tensor : result.tensors) {
        Json one = {{"name", tensor.name}, {"shape", tensor.shape},       {"from", tensor.from},
                    {"to", tensor.to},     {"bytes_in", tensor.bytes_in}, {"bytes_out", tensor.bytes_out}};
        if (!options.dry_run) {
            one["exact"] = tensor.exact;
            one["max_abs_error"] = number(tensor.max_abs_error);
            one["relative_l2"] = number(tensor.relative_l2);
        }
        if (!tensor.reason.empty()) one["reason"] = tensor.reason;
        tensors.push_back(std::move(one));
    }
}

// What a person should know without reading every line.
void note_result(Tool& tool, const convert::Report& result, const std::string& dtype) {
    double worst = 0;
    const convert::TensorReport* worst_tensor = nullptr;
    std::uint64_t instead = 0, requantized = 0;
    for (const convert::TensorReport& tensor : result.tensors) {
        if (tool.verbose()) tool.note("{}", tensor_line(tensor, true));
        if (tensor.relative_l2 > worst) {
            worst = tensor.relative_l2;
            worst_tensor = &tensor;
        }
        if (tensor.reason.starts_with("rows of")) ++instead;
        const quant::WeightFormat* to = quant::find_weight_format(tensor.to);
        const auto from = kernels::dtype_from_name(tensor.from);
        if (!tensor.exact && to != nullptr && to->quantized() &&
            (!from || kernels::dtype_info(*from).block_elems > 1)) {
            ++requantized;
        }
    }
    tool.note("{} tensors, {} -> {} bytes ({:.3f} x) in {:.1f} s, {:.0f} MB/s", result.tensors.size(), result.bytes_in,
              result.bytes_out, static_cast<double>(result.bytes_out) / static_cast<double>(result.bytes_in),
              result.seconds, static_cast<double>(result.bytes_in) / result.seconds / 1e6);
    if (worst_tensor != nullptr) {
        tool.note("largest relative error {:.3g}, of {} as {}", worst, worst_tensor->name, worst_tensor->to);
    }
    if (instead > 0) {
        tool.note("{} tensors have rows that are not whole {} blocks and are stored otherwise; -v names them", instead,
                  dtype);
    }
    if (requantized > 0) {
        tool.note("{} tensors were quantized before: the errors of both quantizations add up", requantized);
    }
}

}  // namespace

Status run_convert(Tool& tool, const ConvertOptions& options) {
    if (const char* reason = kernels::backend_error()) return fail(Errc::resource, "{}", reason);
    HETERO_TRY(const quant::WeightFormat* format, find_type(options.dtype));
    if (options.output.empty() && !options.dry_run) return fail(Errc::usage, "no output: give one with -o");
    if (options.dry_run && !options.check.empty()) {
        return fail(Errc::usage, "--check needs a result: it cannot be used with --dry-run");
    }
    std::vector<convert::Keep> keep;
    for (const std::string& text : options.keep) {
        auto parsed = convert::parse_keep(text);
        if (!parsed) return fail_with(parsed.error(), "--keep");
        keep.push_back(std::move(*parsed));
    }
    const Target target = target_of(options);
    HETERO_CHECK(convert::check_type(*format, target));
    HETERO_CHECK(check_output(tool, options, target));

    std::optional<ConversionCheck> check;
    if (!options.check.empty()) {
        HETERO_TRY(check, ConversionCheck::prepare(options));
    }
    convert::Report result;
    {
        HETERO_TRY(const auto model, model::Model::load(options.input));
        HETERO_TRY(const convert::Plan plan, convert::make_plan(*model, target));
        for (const std::string& warning : plan.warnings) tool.note("{}", warning);
        if (!plan.warnings.empty()) tool.report()["warnings"] = plan.warnings;
        HETERO_TRY(const auto choices, convert::choose_types(plan, *model->weights, target, *format, keep));
        HETERO_TRY(result, convert::preview(*model, plan, choices));
        if (!options.dry_run) {
            std::optional<Progress> progress;
            progress.emplace(tool, "convert", result.bytes_in / mib, "MiB");
            convert::Options how;
            how.threads = static_cast<int>(options.threads);
            how.max_shard_bytes = options.max_shard_bytes;
            how.overwrite = tool.overwrite();
            how.on_progress = [&](std::uint64_t bytes) { progress->update(bytes / mib); };
            if (check) {
                how.before_publish = [&](const std::string& path) {
                    progress.reset();
                    return check->run(tool, options, path);
                };
            }
            HETERO_TRY(result, convert::write_model(*model, plan, choices, target, options.output, how));
        }
    }
    report_conversion(tool, options, target, result);
    if (options.dry_run) {
        if (tool.json()) return {};
        std::string text;
        for (const convert::TensorReport& tensor : result.tensors) text += tensor_line(tensor, false) + "\n";
        return tool.print(text + fmt::format("{} tensors, {} -> {} bytes\n", result.tensors.size(), result.bytes_in,
                                             result.bytes_out));
    }
    note_result(tool, result, options.dtype);
    return check ? check->report(tool, options) : Status{};
}

}  // namespace hetero::tool
