// Writes GGUF v3: metadata first, then tensors, streamed in order. Published whole or not at all (atomic_file.h).
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "io/atomic_file.h"
#include "io/gguf.h"
#include "io/tensor_writer.h"

namespace hetero::io {

// A metadata value with the very type that readers of GGUF expect of its key.
using GgufMetaValue = std::variant<std::uint32_t, std::int32_t, std::uint64_t, std::int64_t, float, double, bool,
                                   std::string, std::vector<std::uint32_t>, std::vector<std::int32_t>,
                                   std::vector<float>, std::vector<bool>, std::vector<std::string>>;

// The keys of a file, in order. Each key once (checked when the file is begun).
class GgufHeader {
public:
    void add(std::string_view key, const GgufMetaValue& value);
    void add(const GgufRawKey& key);  // byte for byte
    [[nodiscard]] const std::vector<std::pair<std::string, std::vector<std::byte>>>& keys() const { return keys_; }

private:
    std::vector<std::pair<std::string, std::vector<std::byte>>> keys_;  // type number and value
};

class GgufWriter final : public TensorWriter {
public:
    // Writes the header. `file` must outlive the writer, and is published by the caller after finish().
    // `alignment_bytes` must be what general.alignment says, 32 where that key is missing.
    // Errors: bad_input (a key or tensor twice, more than four dimensions, a type that ggml does not have), resource.
    static Result<std::unique_ptr<GgufWriter>> begin(AtomicFile& file, const GgufHeader& header,
                                                     const std::vector<TensorSpec>& tensors,
                                                     std::uint64_t alignment_bytes = 32);

    Status write(std::span<const std::byte> data) override;
    Status finish() override;
    // Replaces the text of a string key by one of the same length, for what is known only at the end.
    Status replace_text(std::string_view key, std::string_view text);

private:
    struct Place {
        std::string key;
        std::uint64_t offset;  // of the value, its type number included
        std::vector<std::byte> value;
    };
    explicit GgufWriter(AtomicFile& file) : file_(file) {}
    Status pad();

    AtomicFile& file_;
    std::vector<Place> places_;
    std::vector<std::uint64_t> sizes_;  // [tensor], bytes
    std::size_t current_ = 0;           // tensor
    std::uint64_t in_current_ = 0;      // bytes written of it
    std::uint64_t alignment_bytes_ = 32;
};

}  // namespace hetero::io
