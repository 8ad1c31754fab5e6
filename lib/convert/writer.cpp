#include "convert/writer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <new>

#include "base/clock.h"
#include "base/printable.h"
#include "convert/config_json.h"
#include "convert/encoder.h"
#include "convert/rows.h"
#include "io/atomic_folder.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "model/digest.h"
#include "model/quantization.h"

namespace hetero::convert {
namespace {

using kernels::DType;

constexpr std::uint32_t quantization_version = 2;  // GGML_QNT_VERSION (https://github.com/ggml-org/ggml, ggml.h)

// llama_ftype (https://github.com/ggml-org/llama.cpp, llama.h): "mostly" the type of most bytes.
std::uint32_t file_type(const std::vector<TensorReport>& tensors) {
    struct Type {
        std::string_view name;
        std::uint32_t number;
    };
    static constexpr std::array types = {Type{"f32", 0},  Type{"f16", 1},   Type{"q4_0", 2}, Type{"q4_1", 3},
                                         Type{"q8_0", 7}, Type{"q4_k", 14}, Type{"bf16", 32}};
    std::map<std::string_view, double> elements;
    for (const TensorReport& tensor : tensors) {
        double count = tensor.shape.size() > 1 ? 1 : 0;
        for (const std::uint64_t size : tensor.shape) count *= static_cast<double>(size);
        elements[tensor.to] += count;
    }
    const Type* most = types.data();
    for (const Type& type : types) {
        if (elements[type.name] > elements[most->name]) most = &type;
    }
    return most->number;
}

struct Job {
    const model::Model& model;
    const Plan& plan;
    const std::vector<Choice>& choices;
    const Options& options;
    Report report;
};

// What is written: int8 matrices are followed by their scales.
std::vector<io::TensorSpec> specs_of(const Plan& plan, const std::vector<Choice>& choices) {
    std::vector<io::TensorSpec> specs;
    for (std::size_t i = 0; i < choices.size(); ++i) {
        const TensorPlan& tensor = plan.tensors[i];
        specs.push_back({tensor.name, choices[i].format->dtype(), tensor.shape});
        if (choices[i].format->has_row_scale()) {
            specs.push_back({model::row_scale_name(tensor.name), DType::f32, {tensor.shape.front(), 1}});
        }
    }
    return specs;
}

Status write_tensors(Job& job, io::TensorWriter& writer) {
    ThreadPool pool(job.options.threads);
    Encoder encoder(pool);
    std::uint64_t bytes_read = 0;
    for (std::size_t i = 0; i < job.choices.size(); ++i) {
        const TensorPlan& tensor = job.plan.tensors[i];
        HETERO_TRY(const Rows rows, Rows::open(*job.model.weights, tensor));
        std::vector<float> row_scale;
        auto loss = encoder.encode(rows, tensor.name, *job.choices[i].format, row_scale,
                                   [&](std::span<const std::byte> bytes) { return writer.write(bytes); });
        if (!loss) {
            if (loss.error().code != Errc::bad_input) return tl::unexpected(loss.error());
            return fail_with(loss.error(), job.model.path);
        }
        if (!row_scale.empty()) HETERO_CHECK(writer.write(std::as_bytes(std::span(row_scale))));
        rows.forget();
        TensorReport& report = job.report.tensors[i];
        report.exact = loss->exact;
        report.max_abs_error = loss->max_abs;
        report.relative_l2 = loss->relative_l2();
        bytes_read += rows.source_bytes();
        if (job.options.on_progress) job.options.on_progress(bytes_read);
    }
    return writer.finish();
}

io::GgufHeader header_of(const Job& job) {
    io::GgufHeader header;
    constexpr std::array<std::string_view, 4> replaced = {"general.file_type", "general.quantization_version",
                                                          model::gguf_lineage_key, model::gguf_tensors_key};
    if (job.plan.copy_metadata && job.model.gguf) {
        for (const io::GgufRawKey& key : job.model.gguf->raw_metadata()) {
            if (std::find(replaced.begin(), replaced.end(), key.key) == replaced.end()) header.add(key);
        }
    }
    for (const auto& [key, value] : job.plan.metadata) {
        if (std::find(replaced.begin(), replaced.end(), key) == replaced.end()) header.add(key, value);
    }
    header.add("general.file_type", file_type(job.report.tensors));
    header.add("general.quantization_version", quantization_version);
    header.add(model::gguf_lineage_key, to_hex(job.report.lineage));
    header.add(model::gguf_tensors_key, to_hex(Digest{}));  // known at the end
    return header;
}

Status write_gguf(Job& job, const std::string& path) {
    const std::uint64_t alignment =
        job.plan.copy_metadata && job.model.gguf ? job.model.gguf->alignment_bytes() : std::uint64_t{32};
    HETERO_TRY(io::AtomicFile file, io::AtomicFile::create(path, job.options.overwrite, io::shared_file));
    HETERO_TRY(const auto writer,
               io::GgufWriter::begin(file, header_of(job), specs_of(job.plan, job.choices), alignment));
    HETERO_CHECK(write_tensors(job, *writer));
    // Read as any reader would, before anyone can.
    HETERO_TRY(const auto written, io::GgufFile::open(file.temporary_path()));
    HETERO_CHECK(writer->replace_text(model::gguf_tensors_key, to_hex(model::lineage_digest(*written))));
    if (job.options.before_publish) HETERO_CHECK(job.options.before_publish(file.temporary_path()));
    return file.publish();
}

Status write_folder(Job& job, const std::string& path) {
    HETERO_TRY(io::AtomicFolder folder, io::AtomicFolder::create(path, job.options.overwrite));
    for (const auto& [name, text] : job.plan.files) {
        if (name != "config.json") {
            HETERO_CHECK(folder.write_file(name, text));
            continue;
        }
        HETERO_TRY(const std::string config, converted_config(text, job.plan, job.choices));
        HETERO_CHECK(folder.write_file(name, config));
    }
    HETERO_TRY(const auto writer,
               io::SafetensorsWriter::begin(folder, specs_of(job.plan, job.choices), job.options.max_shard_bytes));
    HETERO_CHECK(write_tensors(job, *writer));
    HETERO_TRY(const auto written, io::open_safetensors_folder(folder.temporary_path()));
    HETERO_CHECK(folder.write_file(std::string(model::lineage_file),
                                   model::lineage_text(job.report.lineage, model::lineage_digest(*written))));
    if (job.options.before_publish) HETERO_CHECK(job.options.before_publish(folder.temporary_path()));
    return folder.publish();
}

}  // namespace

Result<Report> preview(const model::Model& model, const Plan& plan, const std::vector<Choice>& choices) {
    Report report;
    report.lineage = model.lineage;
    if (choices.size() != plan.tensors.size()) {
        return fail(Errc::internal, "{} types for {} tensors", choices.size(), plan.tensors.size());
    }
    for (std::size_t i = 0; i < choices.size(); ++i) {
        const TensorPlan& tensor = plan.tensors[i];
        TensorReport one;
        one.name = tensor.name;
        one.shape = tensor.shape;
        one.to = choices[i].format->name();
        one.reason = choices[i].reason;
        if (tensor.pieces.empty()) one.from = "none";  // made of the configuration
        for (const Piece& piece : tensor.pieces) {
            const io::TensorView* view = model.weights->find(piece.source);
            if (view == nullptr) return fail(Errc::bad_input, "{}", model.weights->why(piece.source));
            if (one.from.empty()) {
                one.from = view->dtype == DType::i8 ? "int8-channel" : kernels::dtype_info(view->dtype).name;
            }
            one.bytes_in += kernels::dtype_bytes(view->dtype, piece.rows * piece.cols);
            if (view->dtype == DType::i8) one.bytes_in += sizeof(float) * piece.rows;  // their scales
        }
        const io::TensorSpec spec{tensor.name, choices[i].format->dtype(), tensor.shape};
        HETERO_TRY(one.bytes_out, spec.bytes());
        if (choices[i].format->has_row_scale()) one.bytes_out += sizeof(float) * tensor.shape.front();
        report.bytes_in += one.bytes_in;
        report.bytes_out += one.bytes_out;
        report.tensors.push_back(std::move(one));
    }
    return report;
}

Result<Report> write_model(const model::Model& model, const Plan& plan, const std::vector<Choice>& choices,
                           Target target, const std::string& path, const Options& options) {
    const auto start = std::chrono::steady_clock::now();
    try {
        HETERO_TRY(Report report, preview(model, plan, choices));
        Job job{model, plan, choices, options, std::move(report)};
        HETERO_CHECK(target == Target::gguf ? write_gguf(job, path) : write_folder(job, path));
        job.report.seconds = seconds_since(start);
        return std::move(job.report);
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory while converting", model.path);
    }
}

}  // namespace hetero::convert
