// Checksums of a state: CRC-32C of every chunk of stored bytes, and a root over everything. File, pipe and wire share
// them.
#pragma once
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include "kv/state.h"

namespace hetero::kv {

// Chunk c of a part covers its rows [c * tokens_per_chunk, ...), stored tokens. One CRC each of values, scale and zero
// (where present).
struct PartChecksums {
    std::vector<std::uint32_t> values, scale, zero;
    std::vector<std::uint32_t> sink, tail;  // one each, where there are such tokens
    friend bool operator==(const PartChecksums&, const PartChecksums&) = default;
};
struct LayerChecksums {
    PartChecksums k, v;
    friend bool operator==(const LayerChecksums&, const LayerChecksums&) = default;
};

// What a layer's bytes were compared with, in chunks of so many tokens.
struct VerifiedPieces {
    std::uint32_t tokens_per_chunk = 0;
    LayerChecksums checksums;
};

// The chunk length a writer uses where the header leaves it open: `target_bytes` of values or up to twice as much, at
// most 4 MiB, a multiple of the channel groups.
[[nodiscard]] std::uint32_t choose_tokens_per_chunk(const Header& header, std::uint64_t target_bytes = 1U << 20);
// Bytes of a chunk of each array of a part, in the order of part_arrays: a row of all tokens, and what is kept as it
// was, are one chunk. The last one of an array may be shorter. header.tokens_per_chunk must be set.
[[nodiscard]] std::array<std::uint64_t, std::size(part_arrays)> chunk_bytes(const Header& header, const Part& part);
// header.tokens_per_chunk must be set.
[[nodiscard]] LayerChecksums checksum_layer(const Header& header, const Layer& layer);
// Those that the layer came with, where they are of the header's chunks; else null.
[[nodiscard]] const LayerChecksums* verified_checksums(const Header& header, const Layer& layer) noexcept;
// SHA-256 over the canonical header text (identity, sequences, tokens, logits, schemes, provenance) and the tables in
// order; see hetero-kv(5).
[[nodiscard]] Digest root_digest(const Header& header, const std::vector<std::vector<LayerChecksums>>& tables);

}  // namespace hetero::kv
