#include "io/safetensors_writer.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "io/safetensors_file.h"
#include "io/safetensors_types.h"

namespace hetero::io {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::begin(AtomicFolder& folder,
                                                                    const std::vector<TensorSpec>& tensors,
                                                                    std::uint64_t max_shard_bytes) {
    if (tensors.empty()) return fail(Errc::bad_input, "there is no tensor to write");
    std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(folder));
    std::set<std::string_view> seen;
    std::uint64_t in_shard = 0, total = 0;
    std::size_t shard = 0;
    for (const TensorSpec& spec : tensors) {
        if (!seen.insert(spec.name).second) {
            return fail(Errc::bad_input, "tensor '{}' would be there twice", spec.name);
        }
        if (!safetensors_name(spec.dtype)) {
            return fail(Errc::bad_input, "tensor '{}': safetensors has no type {}", spec.name,
                        kernels::dtype_info(spec.dtype).name);
        }
        HETERO_TRY(const std::uint64_t bytes, spec.bytes());
        if (__builtin_add_overflow(total, bytes, &total)) {
            return fail(Errc::bad_input, "the tensors have more bytes than can be counted, '{}' included", spec.name);
        }
        if (in_shard > 0 && (bytes > max_shard_bytes || in_shard > max_shard_bytes - bytes)) {
            ++shard;
            in_shard = 0;
        }
        in_shard += bytes;
        writer->tensors_.push_back({spec, bytes, shard});
    }
    writer->n_shards_ = shard + 1;
    HETERO_CHECK(writer->open_shard());
    return writer;
}

std::string SafetensorsWriter::shard_name(std::size_t shard) const {
    if (n_shards_ == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, n_shards_);
}

Status SafetensorsWriter::open_shard() {
    const std::size_t shard = tensors_[current_].shard;
    std::vector<TensorSpec> specs;
    for (std::size_t i = current_; i < tensors_.size() && tensors_[i].shard == shard; ++i)
        specs.push_back(tensors_[i].spec);
    HETERO_TRY(const std::string header, safetensors_header(specs));
    HETERO_TRY(file_, folder_.create_file(shard_name(shard)));
    return file_->write(std::as_bytes(std::span(header)));
}

Status SafetensorsWriter::close_shard() {
    HETERO_CHECK(file_->publish());
    file_.reset();
    return {};
}

Status SafetensorsWriter::next_tensor() {
    const std::size_t shard = tensors_[current_].shard;
    ++current_;
    in_current_ = 0;
    if (current_ < tensors_.size() && tensors_[current_].shard == shard) return {};
    HETERO_CHECK(close_shard());
    return current_ < tensors_.size() ? open_shard() : Status{};
}

Status SafetensorsWriter::write(std::span<const std::byte> data) {
    while (current_ < tensors_.size() && tensors_[current_].bytes == 0) HETERO_CHECK(next_tensor());
    if (current_ == tensors_.size() || data.size() > tensors_[current_].bytes - in_current_) {
        return fail(Errc::internal, "safetensors writer: {} bytes more than tensor {} has", data.size(), current_);
    }
    HETERO_CHECK(file_->write(data));
    in_current_ += data.size();
    return in_current_ < tensors_[current_].bytes ? Status{} : next_tensor();
}

Status SafetensorsWriter::finish() {
    while (current_ < tensors_.size() && tensors_[current_].bytes == 0) HETERO_CHECK(next_tensor());
    if (current_ != tensors_.size()) {
        return fail(Errc::internal, "safetensors writer: tensor '{}' is not complete", tensors_[current_].spec.name);
    }
    if (n_shards_ == 1) return {};
    Json index;
    std::uint64_t total = 0;
    for (const Tensor& tensor : tensors_) total += tensor.bytes;
    index["metadata"] = {{"total_size", total}};
    for (const Tensor& tensor : tensors_) index["weight_map"][tensor.spec.name] = shard_name(tensor.shard);
    return folder_.write_file("model.safetensors.index.json", dump(index, 2) + "\n");
}

}  // namespace hetero::io
