#include "io/gguf_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <type_traits>

#include "io/gguf_types.h"

namespace hetero::io {
namespace {

constexpr std::uint32_t format_version = 3;
constexpr std::size_t max_dims = 4;

// Numbers of the value types in the format.
template <class T>
constexpr std::uint32_t type_number() {
    if constexpr (std::is_same_v<T, std::uint32_t>) return 4;
    if constexpr (std::is_same_v<T, std::int32_t>) return 5;
    if constexpr (std::is_same_v<T, float>) return 6;
    if constexpr (std::is_same_v<T, bool>) return 7;
    if constexpr (std::is_same_v<T, std::string>) return 8;
    if constexpr (std::is_same_v<T, std::uint64_t>) return 10;
    if constexpr (std::is_same_v<T, std::int64_t>) return 11;
    if constexpr (std::is_same_v<T, double>) return 12;
}
constexpr std::uint32_t array_type = 9;

class Bytes {
public:
    std::vector<std::byte> bytes;

    template <class T>
    void put(const T& value) {
        if constexpr (std::is_same_v<T, std::string>) {
            text(value);
        } else {
            static_assert(std::is_arithmetic_v<T> && (!std::is_same_v<T, bool> || sizeof(bool) == 1));
            std::array<std::byte, sizeof(T)> raw;
            std::memcpy(raw.data(), &value, sizeof(T));
            bytes.insert(bytes.end(), raw.begin(), raw.end());
        }
    }
    void text(std::string_view value) {
        put(std::uint64_t{value.size()});
        const auto raw = std::as_bytes(std::span(value));
        bytes.insert(bytes.end(), raw.begin(), raw.end());
    }
    template <class T>
    void value(const T& scalar) {
        put(type_number<T>());
        put(scalar);
    }
    template <class T>
    void value(const std::vector<T>& array) {
        put(array_type);
        put(type_number<T>());
        put(std::uint64_t{array.size()});
        for (const auto& element : array) put<T>(element);
    }
    void align(std::uint64_t alignment) { bytes.resize((bytes.size() + alignment - 1) / alignment * alignment); }
};

Result<std::uint32_t> ggml_number(const TensorSpec& tensor) {
    const GgmlType* type = ggml_type(tensor.dtype);
    if (type == nullptr) {
        return fail(Errc::bad_input, "tensor '{}': GGUF has no type {}", tensor.name,
                    kernels::dtype_info(tensor.dtype).name);
    }
    return type->id;
}

}  // namespace

void GgufHeader::add(std::string_view key, const GgufMetaValue& value) {
    Bytes out;
    std::visit([&out](const auto& one) { out.value(one); }, value);
    keys_.emplace_back(key, std::move(out.bytes));
}

void GgufHeader::add(const GgufRawKey& key) {
    keys_.emplace_back(key.key, std::vector<std::byte>(key.value.begin(), key.value.end()));
}

Result<std::unique_ptr<GgufWriter>> GgufWriter::begin(AtomicFile& file, const GgufHeader& header,
                                                      const std::vector<TensorSpec>& tensors,
                                                      std::uint64_t alignment_bytes) {
    std::unique_ptr<GgufWriter> writer(new GgufWriter(file));
    writer->alignment_bytes_ = alignment_bytes;
    Bytes out;
    out.bytes.reserve(1U << 20);
    for (const char c : {'G', 'G', 'U', 'F'}) out.put(c);
    out.put(format_version);
    out.put(std::uint64_t{tensors.size()});
    out.put(std::uint64_t{header.keys().size()});
    std::set<std::string_view> seen;
    for (const auto& [key, value] : header.keys()) {
        if (!seen.insert(key).second) return fail(Errc::bad_input, "metadata '{}' would be there twice", key);
        out.text(key);
        writer->places_.push_back({key, out.bytes.size(), value});
        out.bytes.insert(out.bytes.end(), value.begin(), value.end());
    }
    seen.clear();
    std::uint64_t offset = 0;
    for (const TensorSpec& tensor : tensors) {
        if (tensor.name.empty() || !seen.insert(tensor.name).second) {
            return fail(Errc::bad_input, "tensor '{}' has no name, or would be there twice", tensor.name);
        }
        if (tensor.shape.size() > max_dims) {
            return fail(Errc::bad_input, "tensor '{}' has {} dimensions, GGUF has at most {}", tensor.name,
                        tensor.shape.size(), max_dims);
        }
        HETERO_TRY(const std::uint64_t bytes, tensor.bytes());
        HETERO_TRY(const std::uint32_t type, ggml_number(tensor));
        out.text(tensor.name);
        out.put(static_cast<std::uint32_t>(tensor.shape.size()));
        for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) out.put(*size);  // innermost first
        out.put(type);
        out.put(offset);
        writer->sizes_.push_back(bytes);
        if (__builtin_add_overflow(offset, bytes, &offset) || offset > UINT64_MAX - alignment_bytes) {
            return fail(Errc::bad_input, "the tensors have more bytes than can be counted, '{}' included", tensor.name);
        }
        offset = (offset + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
    }
    out.align(alignment_bytes);
    HETERO_CHECK(file.write(out.bytes));
    return writer;
}

Status GgufWriter::pad() {
    const std::uint64_t over = sizes_[current_] % alignment_bytes_;
    if (over == 0) return {};
    return file_.write(std::vector<std::byte>(alignment_bytes_ - over));
}

Status GgufWriter::write(std::span<const std::byte> data) {
    while (current_ < sizes_.size() && sizes_[current_] == 0) ++current_;
    if (current_ == sizes_.size() || data.size() > sizes_[current_] - in_current_) {
        return fail(Errc::internal, "GGUF writer: {} bytes more than tensor {} has", data.size(), current_);
    }
    HETERO_CHECK(file_.write(data));
    in_current_ += data.size();
    if (in_current_ < sizes_[current_]) return {};
    HETERO_CHECK(pad());
    ++current_;
    in_current_ = 0;
    return {};
}

Status GgufWriter::finish() {
    while (current_ < sizes_.size() && sizes_[current_] == 0) ++current_;
    if (current_ != sizes_.size()) return fail(Errc::internal, "GGUF writer: tensor {} is not complete", current_);
    return {};
}

Status GgufWriter::replace_text(std::string_view key, std::string_view text) {
    const auto place = std::find_if(places_.begin(), places_.end(), [&](const Place& one) { return one.key == key; });
    Bytes out;
    out.put(type_number<std::string>());
    out.text(text);
    if (place == places_.end() || place->value.size() != out.bytes.size() ||
        !std::equal(out.bytes.begin(), out.bytes.begin() + 12, place->value.begin())) {
        return fail(Errc::internal, "GGUF writer: '{}' is no text of {} bytes", key, text.size());
    }
    return file_.write_at(place->offset, out.bytes);
}

}  // namespace hetero::io
