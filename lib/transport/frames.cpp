#include "transport/frames.h"

#include <algorithm>

#include "base/hash.h"
#include "transport/wire_bytes.h"

namespace hetero::transport {
namespace {

constexpr std::array<std::byte, 4> magic = {std::byte{'H'}, std::byte{'K'}, std::byte{'V'}, std::byte{'M'}};

// Offsets of the fields.
enum : std::size_t {
    at_magic = 0,
    at_version = 4,
    at_kind = 6,
    at_flags = 7,
    at_session = 8,
    at_epoch = 16,
    at_seq = 20,
    at_sequence = 24,
    at_layer = 28,
    at_part = 30,
    at_array = 31,
    at_chunk = 32,
    at_slot = 36,
    at_length = 40,
    at_payload_crc = 48,
    at_ack = 52,
    at_reserved = 56,
    at_header_crc = 60,
};

bool layout_is_shared(FrameKind kind) {
    return kind == FrameKind::hello || kind == FrameKind::reject || kind == FrameKind::abort;
}

std::uint64_t max_payload(FrameKind kind) {
    switch (kind) {
        case FrameKind::chunk:
            return ~0ULL >> 1;  // held against the plan by the receiver
        case FrameKind::offer:
        case FrameKind::accept:
        case FrameKind::commit:
            return max_offer_bytes;
        case FrameKind::credit:
        case FrameKind::keep:
        case FrameKind::hello:
        case FrameKind::hello_ack:
        case FrameKind::reject:
        case FrameKind::abort:
        case FrameKind::commit_ack:
        case FrameKind::nack:
            return max_control_bytes;
        case FrameKind::probe:
            return max_probe_bytes;
        case FrameKind::ack:
        case FrameKind::heartbeat:
        case FrameKind::bye:
            return 0;
        case FrameKind::probe_ack:
            return sizeof(std::uint64_t);
    }
    return 0;
}

}  // namespace

const char* frame_kind_name(FrameKind kind) noexcept {
    switch (kind) {
        case FrameKind::hello:
            return "HELLO";
        case FrameKind::hello_ack:
            return "HELLO_ACK";
        case FrameKind::reject:
            return "REJECT";
        case FrameKind::offer:
            return "OFFER";
        case FrameKind::accept:
            return "ACCEPT";
        case FrameKind::credit:
            return "CREDIT";
        case FrameKind::chunk:
            return "CHUNK";
        case FrameKind::ack:
            return "ACK";
        case FrameKind::nack:
            return "NACK";
        case FrameKind::commit:
            return "COMMIT";
        case FrameKind::commit_ack:
            return "COMMIT_ACK";
        case FrameKind::heartbeat:
            return "HEARTBEAT";
        case FrameKind::abort:
            return "ABORT";
        case FrameKind::bye:
            return "BYE";
        case FrameKind::probe:
            return "PROBE";
        case FrameKind::probe_ack:
            return "PROBE_ACK";
        case FrameKind::keep:
            return "KEEP";
    }
    return "unknown";
}

bool is_sequenced(FrameKind kind) noexcept {
    switch (kind) {
        case FrameKind::ack:
        case FrameKind::nack:
        case FrameKind::heartbeat:
        case FrameKind::abort:
        case FrameKind::probe:
        case FrameKind::probe_ack:
            return false;
        default:
            return true;
    }
}

std::string frame_text(const FrameHeader& header) {
    constexpr const char* array_names[] = {"values", "scale", "zero", "sinks", "tail"};
    if (header.kind != FrameKind::chunk) return fmt::format("{} {}", frame_kind_name(header.kind), header.seq);
    return fmt::format("sequence {}, layer {}, {} {}, chunk {}", header.sequence, header.layer,
                       kv::part_name(header.part), array_names[static_cast<std::size_t>(header.array)], header.chunk);
}

HeaderBytes encode_frame(const FrameHeader& header) {
    HeaderBytes out{};
    std::byte* p = out.data();
    std::copy(magic.begin(), magic.end(), p + at_magic);
    store_le(p + at_version, header.version);
    store_le(p + at_kind, static_cast<std::uint8_t>(header.kind));
    store_le(p + at_session, header.session);
    store_le(p + at_epoch, header.epoch);
    store_le(p + at_seq, header.seq);
    store_le(p + at_sequence, header.sequence);
    store_le(p + at_layer, header.layer);
    store_le(p + at_part, static_cast<std::uint8_t>(header.part));
    store_le(p + at_array, static_cast<std::uint8_t>(header.array));
    store_le(p + at_chunk, header.chunk);
    store_le(p + at_slot, header.slot);
    store_le(p + at_length, header.length);
    store_le(p + at_payload_crc, header.payload_crc);
    store_le(p + at_ack, header.ack);
    store_le(p + at_header_crc, crc32c(std::span(out).first<at_header_crc>()));
    return out;
}

bool may_be_damaged(std::span<const std::byte, frame_header_bytes> bytes) noexcept {
    return std::equal(magic.begin(), magic.end(), bytes.begin()) &&
           load_le<std::uint32_t>(bytes.data() + at_header_crc) != crc32c(bytes.first<at_header_crc>());
}

Result<FrameHeader> decode_frame(std::span<const std::byte, frame_header_bytes> bytes) {
    const std::byte* p = bytes.data();
    if (!std::equal(magic.begin(), magic.end(), bytes.begin())) return fail(Errc::peer, "not an hkv-mpi frame");
    const auto stored = load_le<std::uint32_t>(p + at_header_crc);
    const std::uint32_t computed = crc32c(bytes.first<at_header_crc>());
    if (stored != computed)
        return fail(Errc::peer, "frame header damaged: checksum {:08x}, computed {:08x}", stored, computed);

    FrameHeader header;
    header.version = load_le<std::uint16_t>(p + at_version);
    const auto kind = load_le<std::uint8_t>(p + at_kind);
    header.kind = static_cast<FrameKind>(kind);
    if (header.version != wire_version && !(header.version > 0 && layout_is_shared(header.kind)))
        return fail(Errc::peer, "frame of hkv-mpi {}, this build speaks {}", header.version, wire_version);
    if (kind < static_cast<std::uint8_t>(FrameKind::hello) || kind > static_cast<std::uint8_t>(FrameKind::keep))
        return fail(Errc::peer, "unknown frame kind {}", kind);
    const auto part = load_le<std::uint8_t>(p + at_part);
    const auto array = load_le<std::uint8_t>(p + at_array);
    if (part > 1 || array > 4) return fail(Errc::peer, "frame names part {}, array {}", part, array);
    header.session = load_le<std::uint64_t>(p + at_session);
    header.epoch = load_le<std::uint32_t>(p + at_epoch);
    header.seq = load_le<std::uint32_t>(p + at_seq);
    header.sequence = load_le<std::uint32_t>(p + at_sequence);
    header.layer = load_le<std::uint16_t>(p + at_layer);
    header.part = static_cast<kv::PartId>(part);
    header.array = static_cast<Array>(array);
    header.chunk = load_le<std::uint32_t>(p + at_chunk);
    header.slot = load_le<std::uint32_t>(p + at_slot);
    header.length = load_le<std::uint64_t>(p + at_length);
    header.payload_crc = load_le<std::uint32_t>(p + at_payload_crc);
    header.ack = load_le<std::uint32_t>(p + at_ack);

    if (header.version == wire_version &&
        (load_le<std::uint8_t>(p + at_flags) != 0 || load_le<std::uint32_t>(p + at_reserved) != 0))
        return fail(Errc::peer, "{} frame with reserved bits set", frame_kind_name(header.kind));
    if (header.slot >= wire_slots) return fail(Errc::peer, "frame slot {} of {}", header.slot, wire_slots);
    if (header.length > max_payload(header.kind))
        return fail(Errc::peer, "{} frame with {} bytes, at most {} are allowed", frame_kind_name(header.kind),
                    header.length, max_payload(header.kind));
    if (header.kind == FrameKind::chunk && header.length == 0) return fail(Errc::peer, "CHUNK frame without bytes");
    if (header.kind != FrameKind::chunk &&
        (header.sequence != 0 || header.layer != 0 || part != 0 || array != 0 || header.chunk != 0 || header.slot != 0))
        return fail(Errc::peer, "{} frame that names a chunk", frame_kind_name(header.kind));
    return header;
}

}  // namespace hetero::transport
