#include "kv/integrity.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kv/canonical.h"

namespace hetero::kv {
namespace {

constexpr std::uint64_t max_bytes = 4U << 20;

// One CRC per `rows` rows of `tensor`.
std::vector<std::uint32_t> checksum_rows(const Tensor& tensor, std::uint64_t rows) {
    std::vector<std::uint32_t> crcs;
    if (tensor.empty() || tensor.bytes.empty() || rows == 0) return crcs;
    const std::span<const std::byte> bytes(tensor.bytes);
    const std::uint64_t row_bytes = bytes.size() / tensor.shape[0];
    const std::uint64_t chunk_bytes = std::min<std::uint64_t>(rows, tensor.shape[0]) * row_bytes;
    for (std::uint64_t at = 0; at < bytes.size(); at += chunk_bytes)
        crcs.push_back(crc32c(bytes.subspan(at, std::min<std::uint64_t>(chunk_bytes, bytes.size() - at))));
    return crcs;
}

PartChecksums checksum_part(const Header& header, const Part& part) {
    const quant::Codec* codec = quant::find_codec(part.scheme.codec);
    const std::uint64_t tokens = header.tokens_per_chunk,
                        step = codec == nullptr ? 1 : codec->token_step(part.scheme.params);
    const std::uint64_t scale_rows = step == 0 ? tokens : tokens / step;  // one row, of all tokens, is in chunk 0
    return {checksum_rows(part.values, tokens), checksum_rows(part.scale, scale_rows),
            checksum_rows(part.zero, scale_rows), checksum_rows(part.sink, UINT64_MAX),
            checksum_rows(part.tail, UINT64_MAX)};
}

void hash_crcs(Sha256& hash, const std::vector<std::uint32_t>& crcs) {
    const auto count = static_cast<std::uint32_t>(crcs.size());
    hash.update(std::as_bytes(std::span(&count, 1)));
    hash.update(std::as_bytes(std::span(crcs)));
}

}  // namespace

std::uint32_t choose_tokens_per_chunk(const Header& header, std::uint64_t target_bytes) {
    std::uint64_t row_bytes = 1;
    std::uint64_t multiple = 1;
    for (const PartId id : {PartId::k, PartId::v}) {
        for (const Scheme& scheme : header.schemes(id)) {
            const quant::Codec* codec = quant::find_codec(scheme.codec);
            if (codec == nullptr) continue;
            row_bytes = std::max<std::uint64_t>(
                row_bytes,
                codec->bytes(scheme.params, {1, header.stored_heads(), header.identity.head_dim(id)}).values);
            multiple = std::lcm(multiple, std::max<std::uint64_t>(1, codec->token_step(scheme.params)));
            if (multiple > UINT32_MAX) return 0;  // groups without a common length; check_header refuses 0 later
        }
    }
    // The smallest power of two of rows that reaches the target, if it stays within the limit.
    std::uint64_t rows = 1;
    while (rows * row_bytes < target_bytes && 2 * rows * row_bytes <= max_bytes) rows *= 2;
    return static_cast<std::uint32_t>((rows + multiple - 1) / multiple * multiple);
}

LayerChecksums checksum_layer(const Header& header, const Layer& layer) {
    return {checksum_part(header, layer.k), checksum_part(header, layer.v)};
}

Digest root_digest(const Header& header, const std::vector<std::vector<LayerChecksums>>& tables) {
    Sha256 hash;
    hash.update(header_text(header));
    for (const auto& sequence : tables) {
        for (const LayerChecksums& layer : sequence) {
            for (const PartChecksums* part : {&layer.k, &layer.v}) {
                hash_crcs(hash, part->values);
                hash_crcs(hash, part->scale);
                hash_crcs(hash, part->zero);
                if (!header.keeps_rows()) continue;
                hash_crcs(hash, part->sink);
                hash_crcs(hash, part->tail);
            }
        }
    }
    return hash.finish();
}

}  // namespace hetero::kv
