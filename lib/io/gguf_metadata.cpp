#include "io/gguf_metadata.h"

#include <utility>
#include <vector>

#include "base/printable.h"

namespace hetero::io {
namespace {

// Far above what any model has; bounds the memory that an array of single bytes takes when it is widened.
constexpr std::uint64_t max_array_elements = 1U << 24;
constexpr std::uint64_t max_key_bytes = 65535;  // the format's own limit

enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64, count_ };

// Bytes of a value, at least: a string is its length and that many bytes.
constexpr std::uint64_t min_value_bytes(ValueType type) {
    switch (type) {
        case ValueType::u8:
        case ValueType::i8:
        case ValueType::boolean:
            return 1;
        case ValueType::u16:
        case ValueType::i16:
            return 2;
        case ValueType::u32:
        case ValueType::i32:
        case ValueType::f32:
            return 4;
        case ValueType::array:
            return 12;
        default:
            return 8;
    }
}

Result<bool> read_bool(GgufCursor& in) {
    HETERO_TRY(const std::uint8_t byte, in.read<std::uint8_t>());
    if (byte > 1)
        return fail(Errc::bad_input, "{}: boolean at byte {} is {}, neither 0 nor 1", in.path(), in.position() - 1,
                    byte);
    return byte == 1;
}

template <class Stored>
Result<std::int64_t> read_element(GgufCursor& in, std::uint64_t index) {
    HETERO_TRY(const Stored value, in.read<Stored>());
    if (!std::in_range<std::int64_t>(value)) {
        return fail(Errc::bad_input, "{}: array element {} before byte {} is {}, too large for a signed 64-bit integer",
                    in.path(), index, in.position(), value);
    }
    return static_cast<std::int64_t>(value);
}

// `read` gives one element, `take` gets it.
template <class Read, class Take>
Status for_elements(std::uint64_t count, const Read& read, const Take& take) {
    for (std::uint64_t i = 0; i < count; ++i) {
        HETERO_TRY(const auto value, read(i));
        take(value);
    }
    return {};
}

template <class Take>
Status for_elements(GgufCursor& in, const GgufArray& array, const Take& take) {
    const auto integers = [&]<class Stored>(Stored) {
        return for_elements(
            array.size, [&](std::uint64_t i) { return read_element<Stored>(in, i); }, take);
    };
    const auto floats = [&]<class Stored>(Stored) {
        const auto read = [&](std::uint64_t) -> Result<double> { return in.read<Stored>(); };
        return for_elements(array.size, read, take);
    };
    switch (static_cast<ValueType>(array.type)) {
        case ValueType::u8:
            return integers(std::uint8_t{});
        case ValueType::i8:
            return integers(std::int8_t{});
        case ValueType::u16:
            return integers(std::uint16_t{});
        case ValueType::i16:
            return integers(std::int16_t{});
        case ValueType::u32:
            return integers(std::uint32_t{});
        case ValueType::i32:
            return integers(std::int32_t{});
        case ValueType::u64:
            return integers(std::uint64_t{});
        case ValueType::i64:
            return integers(std::int64_t{});
        case ValueType::f32:
            return floats(float{});
        case ValueType::f64:
            return floats(double{});
        case ValueType::boolean:
            return for_elements(
                array.size, [&](std::uint64_t) { return read_bool(in); }, take);
        default:
            return for_elements(
                array.size, [&](std::uint64_t) { return in.read_string(); }, take);
    }
}

GgufArray::Kind kind_of(ValueType type) {
    switch (type) {
        case ValueType::f32:
        case ValueType::f64:
            return GgufArray::Kind::floats;
        case ValueType::string:
            return GgufArray::Kind::strings;
        case ValueType::boolean:
            return GgufArray::Kind::booleans;
        default:
            return GgufArray::Kind::integers;
    }
}

Status read_array(GgufCursor& in, std::string_view key, GgufArray& array) {
    HETERO_TRY(const std::uint32_t type_number, in.read<std::uint32_t>());
    HETERO_TRY(const std::uint64_t count, in.read<std::uint64_t>());
    if (type_number >= static_cast<std::uint32_t>(ValueType::count_)) {
        return fail(Errc::bad_input, "{}: metadata '{}' is an array of unknown type {}", in.path(), printable(key),
                    type_number);
    }
    const auto type = static_cast<ValueType>(type_number);
    if (type == ValueType::array) {
        return fail(Errc::bad_input, "{}: metadata '{}' is an array of arrays, which is not supported", in.path(),
                    printable(key));
    }
    if (count > in.left() / min_value_bytes(type)) {
        return fail(Errc::bad_input,
                    "{}: GGUF file is too short or damaged: metadata '{}' announces {} elements at byte {}, but the "
                    "file ends at {}; fetch it again",
                    in.path(), printable(key), count, in.position(), in.position() + in.left());
    }
    if (count > max_array_elements) {
        return fail(Errc::bad_input, "{}: metadata '{}' has {} elements, more than the {} supported", in.path(),
                    printable(key), count, max_array_elements);
    }
    array = {kind_of(type), type_number, count, in.position()};
    return for_elements(in, array, [](const auto&) {});
}

template <class Stored>
Status read_integer(GgufCursor& in, GgufValue& value) {
    HETERO_TRY(const Stored stored, in.read<Stored>());
    if (std::in_range<std::int64_t>(stored)) {
        value = static_cast<std::int64_t>(stored);
    } else {
        value = static_cast<std::uint64_t>(stored);
    }
    return {};
}

template <class Stored>
Status read_float(GgufCursor& in, GgufValue& value) {
    HETERO_TRY(const Stored stored, in.read<Stored>());
    value = static_cast<double>(stored);
    return {};
}

Status read_value(GgufCursor& in, std::string_view key, GgufValue& value) {
    HETERO_TRY(const std::uint32_t type_number, in.read<std::uint32_t>());
    switch (static_cast<ValueType>(type_number)) {
        case ValueType::u8:
            return read_integer<std::uint8_t>(in, value);
        case ValueType::i8:
            return read_integer<std::int8_t>(in, value);
        case ValueType::u16:
            return read_integer<std::uint16_t>(in, value);
        case ValueType::i16:
            return read_integer<std::int16_t>(in, value);
        case ValueType::u32:
            return read_integer<std::uint32_t>(in, value);
        case ValueType::i32:
            return read_integer<std::int32_t>(in, value);
        case ValueType::u64:
            return read_integer<std::uint64_t>(in, value);
        case ValueType::i64:
            return read_integer<std::int64_t>(in, value);
        case ValueType::f32:
            return read_float<float>(in, value);
        case ValueType::f64:
            return read_float<double>(in, value);
        case ValueType::boolean: {
            HETERO_TRY(value, read_bool(in));
            return {};
        }
        case ValueType::string: {
            HETERO_TRY(value, in.read_string());
            return {};
        }
        case ValueType::array:
            return read_array(in, key, value.emplace<GgufArray>());
        default:
            return fail(Errc::bad_input, "{}: metadata '{}' has unknown type {}", in.path(), printable(key),
                        type_number);
    }
}

}  // namespace

template <class T>
Result<std::vector<T>> read_gguf_array(const MappedFile& file, const GgufArray& array) {
    std::vector<T> values;
    values.reserve(array.size);
    GgufCursor in(file, array.begin);
    HETERO_CHECK(for_elements(in, array, [&]<class Value>(const Value& value) {
        if constexpr (std::is_same_v<Value, T>) values.push_back(value);
    }));
    return values;
}
template Result<std::vector<std::int64_t>> read_gguf_array(const MappedFile&, const GgufArray&);
template Result<std::vector<double>> read_gguf_array(const MappedFile&, const GgufArray&);
template Result<std::vector<std::string_view>> read_gguf_array(const MappedFile&, const GgufArray&);

std::string_view gguf_kind_name(const GgufValue& value) {
    struct Namer {
        std::string_view operator()(std::int64_t) const { return "an integer"; }
        std::string_view operator()(std::uint64_t) const { return "an integer above 2^63"; }
        std::string_view operator()(double) const { return "a float"; }
        std::string_view operator()(bool) const { return "a boolean"; }
        std::string_view operator()(std::string_view) const { return "a string"; }
        std::string_view operator()(const GgufArray& array) const {
            constexpr std::string_view names[] = {"an array of integers", "an array of floats", "an array of strings",
                                                  "an array of booleans"};
            return names[static_cast<std::size_t>(array.kind)];
        }
    };
    return std::visit(Namer{}, value);
}

Result<GgufMetadata> read_gguf_metadata(GgufCursor& in, std::uint64_t count) {
    GgufMetadata metadata;
    for (std::uint64_t i = 0; i < count; ++i) {
        HETERO_TRY(const std::string_view key, in.read_string());
        if (key.size() > max_key_bytes) {
            return fail(Errc::bad_input, "{}: a metadata key before byte {} has {} bytes, at most {} are allowed",
                        in.path(), in.position(), key.size(), max_key_bytes);
        }
        const auto [entry, added] = metadata.values.try_emplace(std::string(key));
        if (!added) return fail(Errc::bad_input, "{}: metadata '{}' is there twice", in.path(), printable(key));
        const std::uint64_t begin = in.position();
        HETERO_CHECK(read_value(in, key, entry->second));
        metadata.raw.push_back({key, in.since(begin)});
    }
    return metadata;
}

}  // namespace hetero::io
