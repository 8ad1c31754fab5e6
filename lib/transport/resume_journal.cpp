#include "transport/resume_journal.h"

#include "transport/wire_bytes.h"

namespace hetero::transport {
namespace {

constexpr std::uint32_t magic = 0x4A564B48;  // "HKVJ"
constexpr std::uint32_t journal_version = 1;
constexpr std::size_t head_bytes = 4 + 4 + 32 + 4, checksum_bytes = 4, length_bytes = 4;

constexpr std::vector<std::uint32_t> kv::PartChecksums::*part_tables[] = {
    &kv::PartChecksums::values, &kv::PartChecksums::scale, &kv::PartChecksums::zero, &kv::PartChecksums::sink,
    &kv::PartChecksums::tail};
constexpr std::size_t n_arrays = std::size(kv::part_arrays);
static_assert(std::size(part_tables) == n_arrays);

std::vector<std::byte> sealed(ByteWriter out) {
    std::vector<std::byte> bytes = out.take();
    ByteWriter crc;
    crc.number(crc32c(bytes));
    const std::vector<std::byte> seal = crc.take();
    bytes.insert(bytes.end(), seal.begin(), seal.end());
    return bytes;
}

bool seal_holds(std::span<const std::byte> bytes) {
    const auto content = bytes.first(bytes.size() - checksum_bytes);
    return load_le<std::uint32_t>(bytes.data() + content.size()) == crc32c(content);
}

}  // namespace

std::vector<std::byte> encode_journal_head(const Digest& state_key, std::uint32_t tokens_per_chunk) {
    ByteWriter out;
    out.number(magic);
    out.number(journal_version);
    out.digest(state_key);
    out.number(tokens_per_chunk);
    return sealed(std::move(out));
}

std::vector<std::byte> encode(const kv::WrittenLayer& layer) {
    ByteWriter content;
    for (std::size_t part = 0; part < 2; ++part) {
        const kv::PartChecksums& tables = part == 0 ? layer.checksums.k : layer.checksums.v;
        for (std::size_t i = 0; i < n_arrays; ++i) {
            const std::vector<std::uint32_t>& crcs = tables.*part_tables[i];
            content.number(layer.offsets[part][i]);
            content.number(static_cast<std::uint32_t>(crcs.size()));
            content.array(crcs);
        }
    }
    const std::vector<std::byte> bytes = content.take();
    ByteWriter out;
    out.number(static_cast<std::uint32_t>(bytes.size()));
    out.raw(bytes);
    return sealed(std::move(out));
}

Result<Journal> decode_journal(std::span<const std::byte> bytes) {
    constexpr std::size_t sealed_head = head_bytes + checksum_bytes;
    if (bytes.size() < sealed_head)
        return fail(Errc::bad_input, "{} bytes, its head alone has {}", bytes.size(), sealed_head);
    if (!seal_holds(bytes.first(sealed_head))) return fail(Errc::bad_input, "its head is damaged");
    ByteReader head(bytes.first(head_bytes));
    if (head.number<std::uint32_t>() != magic) return fail(Errc::bad_input, "not a journal");
    if (const auto version = head.number<std::uint32_t>(); version != journal_version)
        return fail(Errc::bad_input, "of version {}, this build reads {}", version, journal_version);
    Journal journal;
    journal.state_key = head.digest();
    journal.tokens_per_chunk = head.number<std::uint32_t>();

    bytes = bytes.subspan(sealed_head);
    while (bytes.size() >= length_bytes) {
        const std::uint64_t length =
            std::uint64_t{load_le<std::uint32_t>(bytes.data())} + length_bytes + checksum_bytes;
        if (length > bytes.size()) break;  // cut off
        const auto record = bytes.first(static_cast<std::size_t>(length));
        bytes = bytes.subspan(record.size());
        if (!seal_holds(record)) return fail(Errc::bad_input, "record {} is damaged", journal.layers.size());
        ByteReader in(record.subspan(length_bytes, record.size() - length_bytes - checksum_bytes));
        kv::WrittenLayer& layer = journal.layers.emplace_back();
        for (std::size_t part = 0; part < 2; ++part) {
            kv::PartChecksums& tables = part == 0 ? layer.checksums.k : layer.checksums.v;
            for (std::size_t i = 0; i < n_arrays; ++i) {
                layer.offsets[part][i] = in.number<std::uint64_t>();
                tables.*part_tables[i] = in.array<std::uint32_t>(in.number<std::uint32_t>());
            }
        }
        if (!in.complete()) return fail(Errc::bad_input, "record {} is malformed", journal.layers.size() - 1);
    }
    return journal;
}

}  // namespace hetero::transport
