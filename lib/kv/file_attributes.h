// What the attributes of a hetero-kv file say, checked one by one. Errors name attribute and object.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "io/hdf5.h"
#include "kv/state.h"

namespace hetero::kv::layout {

template <class T>
Result<T> require(const io::h5::Node& node, const std::string& name) {
    HETERO_TRY(std::optional<T> value, node.get<T>(name));
    if (!value) return fail(Errc::bad_input, "attribute {} of {} is missing", name, node.path());
    return std::move(*value);
}

// 0 to 2^31 - 1: what any program can store in a signed attribute.
Result<std::uint32_t> require_u32(const io::h5::Node& node, const std::string& name);
// 64 hex digits.
Result<Digest> require_digest(const io::h5::Node& node, const std::string& name);

template <class T>
Status require_equal(const io::h5::Node& node, const std::string& name, const T& expected) {
    HETERO_TRY(const T value, require<T>(node, name));
    if (value != expected)
        return fail(Errc::bad_input, "attribute {} of {} is {}; {} is expected", name, node.path(), value, expected);
    return {};
}
Status require_text(const io::h5::Node& node, const std::string& name, std::string_view expected);

// All hard fields, and that they give compat_hash.
Result<Identity> read_identity(const io::h5::Node& root);
// Of a values array.
Result<Scheme> read_scheme(const io::h5::Node& node);

}  // namespace hetero::kv::layout
