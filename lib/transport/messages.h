// Payloads of the control frames, as hetero-wire(5) lays them out. Decoders take every byte as hostile: they return
// peer errors and allocate no more than the payload holds.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kv/state.h"

namespace hetero::transport {

// Versions of the conversation; the frames of both have wire_version. Version 2 adds to OFFER what hetero-kv 1.1 adds
// to 1.0 (layer shapes, shard, kept tokens, rotation, the axes head and tensor), and is spoken only where a state has
// some of it: all others can be sent to and taken from a peer of version 1.
inline constexpr std::uint16_t min_protocol_version = 1, max_protocol_version = 2;
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
    kv::Header header;
};
std::vector<std::byte> encode(const Offer& offer);  // as protocol_version_of(offer.header) has it
// Checks the header with kv::check_header, and that payload_bytes agrees with it.
Result<Offer> decode_offer(std::span<const std::byte> bytes, std::uint16_t version);

// ACCEPT and CREDIT: layers granted since the beginning, counted over all sequences.
std::vector<std::byte> encode_credit(std::uint64_t layers);
Result<std::uint64_t> decode_credit(std::span<const std::byte> bytes);

// COMMIT and COMMIT_ACK.
std::vector<std::byte> encode_root(const Digest& root);
Result<Digest> decode_root(std::span<const std::byte> bytes);

enum class NackReason : std::uint8_t { damaged = 1, missing = 2 };
std::vector<std::byte> encode_nack(NackReason reason);
Result<NackReason> decode_nack(std::span<const std::byte> bytes);

}  // namespace hetero::transport
