#include "kv/integrity.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kv/canonical.h"

namespace hetero::kv {
namespace {

constexpr std::uint64_t max_bytes = 4U << 20;

PartChecksums checksum_part(const Header& header, const Part& part) {
    const auto sizes = chunk_bytes(header, part);
    const auto of_chunks = [&](std::size_t array) {
        std::vector<std::uint32_t> crcs;
        const std::span<const std::byte> bytes((part.*part_arrays[array]).bytes);
        for (std::uint64_t at = 0; sizes[array] != 0 && at < bytes.size(); at += sizes[array])
            crcs.push_back(crc32c(bytes.subspan(at, std::min<std::uint64_t>(sizes[array], bytes.size() - at))));
        return crcs;
    };
    return {of_chunks(0), of_chunks(1), of_chunks(2), of_chunks(3), of_chunks(4)};
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

std::array<std::uint64_t, std::size(part_arrays)> chunk_bytes(const Header& header, const Part& part) {
    const quant::Codec* codec = quant::find_codec(part.scheme.codec);
    const std::uint64_t tokens = header.tokens_per_chunk,
                        step = codec == nullptr ? 1 : codec->token_step(part.scheme.params);
    const std::uint64_t scale_rows = step == 0 ? tokens : tokens / step;  // one row, of all tokens, is in chunk 0
    const std::array<std::uint64_t, std::size(part_arrays)> rows = {tokens, scale_rows, scale_rows, UINT64_MAX,
                                                                    UINT64_MAX};
    std::array<std::uint64_t, std::size(part_arrays)> bytes{};
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const Tensor& tensor = part.*part_arrays[i];
        if (tensor.empty() || tensor.shape[0] == 0) continue;
        bytes[i] = std::min(rows[i], tensor.shape[0]) * (tensor.bytes.size() / tensor.shape[0]);
    }
    return bytes;
}

LayerChecksums checksum_layer(const Header& header, const Layer& layer) {
    return {checksum_part(header, layer.k), checksum_part(header, layer.v)};
}

const LayerChecksums* verified_checksums(const Header& header, const Layer& layer) noexcept {
    if (!layer.verified || layer.verified->tokens_per_chunk != header.tokens_per_chunk) return nullptr;
    return &layer.verified->checksums;
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
