// Payloads of the control frames, as hetero-wire(5) lays them out. Decoders take every byte as hostile: they return
// peer errors and allocate no more than the payload holds.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kv/state.h"

namespace hetero::transport {

// Versions of the conversation; the frames of all have wire_version. Version 2 adds to OFFER what hetero-kv 1.1 adds
// to 1.0 (layer shapes, shard, kept tokens, rotation, the axes head and tensor). Version 3 adds what the receiver holds
// already (OFFER, ACCEPT, KEEP), and logits that come last (OFFER, COMMIT). The lowest version that can carry a state
// is all that its receiver has to speak.
inline constexpr std::uint16_t min_protocol_version = 1, max_protocol_version = 3;
[[nodiscard]] std::uint16_t protocol_version_of(const kv::Header& header) noexcept;

enum class WireRole : std::uint8_t { sender = 0, receiver = 1 };

// HELLO and HELLO_ACK. Later versions may only append.
struct Hello {
    std::uint16_t min_version = 1, max_version = 1;
    WireRole role = WireRole::sender;
    Digest compat_hash{};  // of the state; zero from a receiver that takes any
    std::string program;   // for messages: "hetero 0.1.0"
};
std::vector<std::byte> encode(const Hello& hello);
Result<Hello> decode_hello(std::span<const std::byte> bytes);

// REJECT and ABORT: why. The text is cut to one line of at most 4,096 bytes, control characters become spaces.
std::vector<std::byte> encode(const Error& reason);
Result<Error> decode_reason(std::span<const std::byte> bytes);

struct Offer {
    std::uint64_t payload_bytes = 0;  // of all chunks
    kv::Header header;                // with late_logits no sequence has any: COMMIT brings them
    Digest state_key{};  // the same for the same state, whenever it is sent; zeros: it has none. From version 3 on
};
// `version` is at least protocol_version_of(offer.header).
std::vector<std::byte> encode(const Offer& offer, std::uint16_t version);
std::vector<std::byte> encode(const Offer& offer);  // in its lowest version
// Checks the header with kv::check_header, and that payload_bytes agrees with it. bad_input: the sender names a codec,
// type or kind of layer that this build does not know; the message has it, and those that are known.
Result<Offer> decode_offer(std::span<const std::byte> bytes, std::uint16_t version);

// What names a state to a receiver that may hold some of it: a digest of its header without the logits, and without the
// chunk length, which may be chosen for the link.
[[nodiscard]] Digest state_key(const kv::Header& header);

// Pieces that the receiver holds: `first` and those behind it, counted as ChunkWalk walks, with the CRC-32C of each.
struct HeldPieces {
    std::uint64_t first = 0;
    std::vector<std::uint32_t> crcs;
    friend bool operator==(const HeldPieces&, const HeldPieces&) = default;
};

struct Accept {
    std::uint64_t layers = 0;      // granted
    std::vector<HeldPieces> held;  // of version 3, in order and apart
};
std::vector<std::byte> encode(const Accept& accept, std::uint16_t version);
Result<Accept> decode_accept(std::span<const std::byte> bytes, std::uint16_t version, std::uint64_t total_pieces);

// CREDIT: layers granted since the beginning, counted over all sequences.
std::vector<std::byte> encode_credit(std::uint64_t layers);
Result<std::uint64_t> decode_credit(std::span<const std::byte> bytes);

// KEEP: so many pieces, from the next one on, are as the receiver holds them.
std::vector<std::byte> encode_keep(std::uint64_t pieces);
Result<std::uint64_t> decode_keep(std::span<const std::byte> bytes);

struct Commit {
    Digest root{};
    // Of each sequence, where the offer said that they come late; else empty.
    std::vector<std::vector<float>> logits;
    std::vector<std::int32_t> pending_tokens;  // -1: that of the offer; may be shorter
};
// What comes late of the sequences of a header.
[[nodiscard]] Commit commit_of(const Digest& root, const kv::Header& header);
// The other way: it has the logits of every sequence. The header has all then; it has to be checked.
void take_late(Commit commit, kv::Header& header);
std::vector<std::byte> encode(const Commit& commit);
// `sequences`: 0 where the logits do not come late.
Result<Commit> decode_commit(std::span<const std::byte> bytes, std::size_t sequences);

// COMMIT_ACK, and COMMIT without logits.
std::vector<std::byte> encode_root(const Digest& root);
Result<Digest> decode_root(std::span<const std::byte> bytes);

enum class NackReason : std::uint8_t { damaged = 1, missing = 2 };
// PROBE_ACK: when the probe came, on the time line of the side that answers. None: the payload is empty or no time.
std::vector<std::byte> encode_time(std::chrono::nanoseconds time);
[[nodiscard]] std::optional<std::chrono::nanoseconds> decode_time(std::span<const std::byte> bytes);

std::vector<std::byte> encode_nack(NackReason reason);
Result<NackReason> decode_nack(std::span<const std::byte> bytes);

}  // namespace hetero::transport
