// The frame header of protocol hkv-mpi 1: 64 bytes, little-endian, before every payload. The byte table, the kinds and
// an example are in hetero-wire(5).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "kv/state.h"

namespace hetero::transport {

inline constexpr std::uint16_t wire_version = 1;
inline constexpr std::size_t frame_header_bytes = 64;
inline constexpr std::uint32_t wire_slots = 8192;  // chunk payloads are told apart by their number modulo this
// Largest payload of an OFFER (tokens and logits of all sequences), of ACCEPT (checksums of what is held) and COMMIT
// (logits), and of every other kind but CHUNK.
inline constexpr std::uint64_t max_offer_bytes = 1ULL << 30;
inline constexpr std::uint64_t max_control_bytes = 64 * 1024;
inline constexpr std::uint64_t max_probe_bytes = 4 << 20;

enum class FrameKind : std::uint8_t {
    hello = 1,        // sender to receiver: versions, compat hash
    hello_ack = 2,    // the answer
    reject = 3,       // receiver to sender: will not take this state, and why
    offer = 4,        // the state's header and size
    accept = 5,       // taken; grants the first layers
    credit = 6,       // grants more layers
    chunk = 7,        // token range of values, scales or zeros
    ack = 8,          // unsequenced: everything below `ack` has arrived
    nack = 9,         // unsequenced: send frame `seq` again
    commit = 10,      // all sent; the root
    commit_ack = 11,  // all received, the roots agree
    heartbeat = 12,   // unsequenced: alive; `seq` is the number of the next frame
    abort = 13,       // unsequenced: gave up, and why
    bye = 14,         // orderly end
    probe = 15,       // unsequenced: bytes for a measurement of the link; answered at once, whatever the tool does
    probe_ack = 16,   // unsequenced: probe `seq` has arrived, and when
    keep = 17,        // the next chunks are those that the receiver holds
};
[[nodiscard]] const char* frame_kind_name(FrameKind kind) noexcept;
// Unsequenced frames are not repeated when lost; all others are numbered and delivered in order, exactly once.
[[nodiscard]] bool is_sequenced(FrameKind kind) noexcept;

// Which array of a part a chunk belongs to.
enum class Array : std::uint8_t { values = 0, scale = 1, zero = 2, sink = 3, tail = 4 };

struct FrameHeader {
    std::uint16_t version = wire_version;
    FrameKind kind = FrameKind::heartbeat;
    std::uint64_t session = 0;  // drawn by the sender; 0 before the receiver has learned it
    std::uint32_t epoch = 1;
    std::uint32_t seq = 0;
    std::uint32_t ack = 0;  // number of the next frame that this side expects
    // Place of a chunk; 0 in other frames.
    std::uint32_t sequence = 0;
    std::uint16_t layer = 0;
    kv::PartId part = kv::PartId::k;
    Array array = Array::values;
    std::uint32_t chunk = 0;
    std::uint32_t slot = 0;
    std::uint64_t length = 0;  // of the payload
    std::uint32_t payload_crc = 0;
    friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// For messages: "sequence 0, layer 1, K scale, chunk 3"; of frames that are no chunks "COMMIT 7".
[[nodiscard]] std::string frame_text(const FrameHeader& header);

using HeaderBytes = std::array<std::byte, frame_header_bytes>;

[[nodiscard]] HeaderBytes encode_frame(const FrameHeader& header);
// Checks magic, checksum, version, kind, reserved bytes, ranges and the length that the kind allows (peer error). A
// header of another version than 1 passes only for HELLO, REJECT and ABORT, whose layout all versions share.
Result<FrameHeader> decode_frame(std::span<const std::byte, frame_header_bytes> bytes);
// Of bytes that decode_frame refuses: the magic is there and the checksum is not, so that it may be a frame of ours
// that was damaged on the way. Otherwise the other side sends what it must not.
[[nodiscard]] bool may_be_damaged(std::span<const std::byte, frame_header_bytes> bytes) noexcept;

}  // namespace hetero::transport
