// In which order the bytes of a state travel: sequences, layers, K then V, chunks; of each chunk the values, then the
// scales, then the zeros; with the first one the tokens that are kept as they were. Chunks count the tokens that the
// layer stores. Each piece has one CRC-32C, the same that kv/integrity.h keeps.
#pragma once
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "kv/integrity.h"
#include "kv/state.h"
#include "transport/frames.h"

namespace hetero::transport {

// The array of `part`, as the wire names them.
[[nodiscard]] kv::Tensor& array_of(kv::Part& part, Array array) noexcept;
[[nodiscard]] const kv::Tensor& array_of(const kv::Part& part, Array array) noexcept;
[[nodiscard]] std::vector<std::uint32_t>& array_of(kv::PartChecksums& part, Array array) noexcept;
[[nodiscard]] const std::vector<std::uint32_t>& array_of(const kv::PartChecksums& part, Array array) noexcept;

// A piece of a layer: one CHUNK frame.
struct ChunkPlace {
    std::uint32_t sequence = 0;
    std::uint16_t layer = 0;
    kv::PartId part = kv::PartId::k;
    Array array = Array::values;
    std::uint32_t chunk = 0;
    std::uint32_t slot = 0;
    std::uint64_t offset = 0, length = 0;  // bytes in the array
    std::uint64_t layer_index = 0;         // counted over all sequences
    std::uint64_t piece = 0;               // counted over all of the state

    [[nodiscard]] FrameHeader frame() const noexcept;
    [[nodiscard]] bool matches(const FrameHeader& header) const noexcept;
};

// Walks over all pieces. header.tokens_per_chunk must be set and the header checked; it must outlive the walk.
class ChunkWalk {
public:
    explicit ChunkWalk(const kv::Header& header);
    [[nodiscard]] bool done() const noexcept { return done_; }
    [[nodiscard]] const ChunkPlace& place() const noexcept { return place_; }
    void advance();

private:
    void enter_part();
    void next_array() noexcept;
    void find_bytes();
    void settle();  // moves on until the place has bytes
    const kv::Header* header_;
    ChunkPlace place_;
    // Of the place's part, looked up once: a receiver walks while its link waits.
    const quant::Codec* codec_ = nullptr;
    kv::KeptRows rows_;
    std::uint64_t chunks_ = 0;
    bool done_ = false;
};

// Bytes of a layer, counted over all sequences; one with the schemes' and the shapes' arrays allocated and zeroed. Out
// of memory: resource.
[[nodiscard]] std::uint64_t layer_bytes(const kv::Header& header, std::uint64_t layer_index);
Result<std::shared_ptr<kv::Layer>> allocate_layer(const kv::Header& header, std::uint64_t layer_index);
[[nodiscard]] std::uint64_t total_pieces(const kv::Header& header);  // tokens_per_chunk must be set
[[nodiscard]] std::uint64_t total_layers(const kv::Header& header) noexcept;

}  // namespace hetero::transport
