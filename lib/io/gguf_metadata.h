// The metadata of a GGUF file, and the cursor that reads its header.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "io/gguf.h"
#include "io/mapped_file.h"

namespace hetero::io {

// Reads the file front to back. Every read checks what is left first; errors name the file and the offset.
class GgufCursor {
public:
    explicit GgufCursor(const MappedFile& file, std::uint64_t position = 0) : file_(file), position_(position) {}

    [[nodiscard]] std::uint64_t position() const { return position_; }
    [[nodiscard]] std::span<const std::byte> since(std::uint64_t begin) const {
        return file_.bytes().subspan(begin, position_ - begin);
    }
    [[nodiscard]] std::uint64_t left() const { return file_.bytes().size() - position_; }
    [[nodiscard]] const std::string& path() const { return file_.path(); }

    template <class T>
    Result<T> read() {
        static_assert(std::is_trivially_copyable_v<T>);
        if (left() < sizeof(T)) return too_short(sizeof(T));
        T value;
        std::memcpy(&value, file_.bytes().data() + position_, sizeof(T));
        position_ += sizeof(T);
        return value;
    }

    Result<std::string_view> read_string() {
        HETERO_TRY(const std::uint64_t length, read<std::uint64_t>());
        if (length > left()) return too_short(length);
        const auto* text = reinterpret_cast<const char*>(file_.bytes().data() + position_);
        position_ += length;
        return std::string_view(text, length);
    }

    [[nodiscard]] tl::unexpected<Error> too_short(std::uint64_t wanted) const {
        return fail(Errc::bad_input,
                    "{}: GGUF file is too short or damaged: at byte {} its header needs {} more bytes, but the "
                    "file ends at {}; fetch it again",
                    path(), position_, wanted, file_.bytes().size());
    }

private:
    const MappedFile& file_;
    std::uint64_t position_;  // within the file
};

struct GgufMetadata {
    std::map<std::string, GgufValue, std::less<>> values;
    std::vector<GgufRawKey> raw;  // in the order of the file
};

// Reads `count` keys with their values. Strings are views into the file.
Result<GgufMetadata> read_gguf_metadata(GgufCursor& in, std::uint64_t count);

// The elements of an array of this file. T: std::int64_t, double or std::string_view, as its kind is.
template <class T>
Result<std::vector<T>> read_gguf_array(const MappedFile& file, const GgufArray& array);

// "an array of strings", for messages.
[[nodiscard]] std::string_view gguf_kind_name(const GgufValue& value);

}  // namespace hetero::io
