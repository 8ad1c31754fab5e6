#include "io/safetensors_file.h"

#include <nlohmann/json.hpp>

#include "io/safetensors_types.h"

namespace hetero::io {

using Json = nlohmann::ordered_json;

Result<std::string> safetensors_header(const std::vector<TensorSpec>& tensors) {
    Json header;
    header["__metadata__"] = {{"format", "pt"}};  // transformers asks for it
    std::uint64_t offset = 0;
    for (const TensorSpec& tensor : tensors) {
        HETERO_TRY(const std::uint64_t bytes, tensor.bytes());
        const auto type = safetensors_name(tensor.dtype);
        if (!type)
            return fail(Errc::bad_input, "tensor '{}': safetensors has no type {}", tensor.name,
                        kernels::dtype_info(tensor.dtype).name);
        header[tensor.name] = {{"dtype", *type}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
        offset += bytes;
    }
    std::string json = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    json.resize((json.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = json.size();
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + json;
}

Result<SafetensorsFile> SafetensorsFile::begin(const std::string& path, Overwrite overwrite,
                                               const std::vector<TensorSpec>& tensors) {
    HETERO_TRY(const std::string header, safetensors_header(tensors));
    std::uint64_t bytes = 0;
    for (const TensorSpec& tensor : tensors) {
        HETERO_TRY(const std::uint64_t one, tensor.bytes());
        bytes += one;
    }
    HETERO_TRY(AtomicFile file, AtomicFile::create(path, overwrite));
    HETERO_CHECK(file.write(std::as_bytes(std::span(header))));
    return SafetensorsFile(std::move(file), bytes);
}

Status SafetensorsFile::write(std::span<const std::byte> data) {
    if (data.size() > left_) return fail(Errc::internal, "{} bytes more than the tensors have", data.size() - left_);
    left_ -= data.size();
    return file_.write(data);
}

Status SafetensorsFile::publish() {
    if (left_ != 0) return fail(Errc::internal, "{} bytes of the tensors were not written", left_);
    return file_.publish();
}

}  // namespace hetero::io
