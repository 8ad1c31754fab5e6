// GGUF v3 (and v2) files: metadata and tensors, memory-mapped, every number checked against the file's size.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "io/tensor_source.h"

namespace hetero::io {

// An array, of which only the place is kept: vocabularies are large, and read once. Its elements have been checked.
struct GgufArray {
    enum class Kind : std::uint8_t { integers, floats, strings, booleans };
    Kind kind = Kind::integers;
    std::uint32_t type = 0;   // of an element, by the file's numbers
    std::uint64_t size = 0;   // elements
    std::uint64_t begin = 0;  // of the first one, in the file
};
// An integer is an int64, and a uint64 only above INT64_MAX.
using GgufValue = std::variant<std::int64_t, std::uint64_t, double, bool, std::string_view, GgufArray>;

// A key as the file has it.
struct GgufRawKey {
    std::string_view key;
    std::span<const std::byte> value;  // number of its type, then the value
};

class GgufFile final : public TensorSource {
public:
    // Refuses: wrong magic or version, truncated header or data (both sizes or the first tensor that does not fit are
    // named), alignment not a power of two, overlapping or misaligned offsets, duplicate names, arrays of arrays,
    // tensor types that ggml does not define. A tensor of a ggml type without a DType is listed, `find` gives nullptr
    // for it.
    static Result<std::shared_ptr<const GgufFile>> open(const std::string& path);

    [[nodiscard]] const std::string& path() const noexcept;
    [[nodiscard]] const std::map<std::string, GgufValue, std::less<>>& metadata() const noexcept;
    // The same keys in the order of the file; views into the mapped file.
    [[nodiscard]] const std::vector<GgufRawKey>& raw_metadata() const noexcept;
    [[nodiscard]] std::uint64_t alignment_bytes() const noexcept;

    // Typed look-ups. Missing: nullopt; another type than asked: bad_input naming key, expected and found type.
    Result<std::optional<std::int64_t>> integer(std::string_view key) const;
    Result<std::optional<double>> number(std::string_view key) const;  // float or integer
    Result<std::optional<bool>> boolean(std::string_view key) const;
    Result<std::optional<std::string_view>> string(std::string_view key) const;
    // Arrays are read anew by each look-up. Integers of every width are widened to int64 (uint64 above INT64_MAX is
    // refused by open()), so that a reader never mistakes one width for another. Strings are views into the mapped
    // file: they are valid as long as the GgufFile lives, and need not be UTF-8.
    Result<std::optional<std::vector<std::string_view>>> strings(std::string_view key) const;
    Result<std::optional<std::vector<std::int64_t>>> integers(std::string_view key) const;
    Result<std::optional<std::vector<double>>> numbers(std::string_view key) const;

    [[nodiscard]] const TensorView* find(std::string_view name) const override;
    [[nodiscard]] std::string why(std::string_view name) const override;
    [[nodiscard]] const std::vector<std::string>& names() const override;
    void forget(const TensorView& view) const override;

    struct Impl;
    explicit GgufFile(std::unique_ptr<Impl> impl);
    ~GgufFile() override;

private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace hetero::io
