// The journal beside an unfinished output file: which layers it has, where their bytes lie, and their checksums. The
// format is in hetero-transports(7). A reader believes none of it before the bytes have been read back.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kv/file.h"

namespace hetero::transport {

struct Journal {
    Digest state_key{};
    std::uint32_t tokens_per_chunk = 0;    // of the checksums; the same state may be sent in other chunks
    std::vector<kv::WrittenLayer> layers;  // from the first one on, without gaps
};

std::vector<std::byte> encode_journal_head(const Digest& state_key, std::uint32_t tokens_per_chunk);
std::vector<std::byte> encode(const kv::WrittenLayer& layer);
// A record that is cut off at the end was being written, and does not count. Anything else that is wrong is bad_input.
Result<Journal> decode_journal(std::span<const std::byte> bytes);

}  // namespace hetero::transport
