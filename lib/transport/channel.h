// What carries frames between two processes. No MPI types: protocol and state machines are the same over MPI and over
// the in-memory pair of the tests.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/stream.h"
#include "transport/frames.h"

namespace hetero::transport {

// Chunks are summed up in slices, and frames move on between them: a socket holds less than the largest chunk. Over TCP
// that takes some microseconds each time, as long as a tenth of this takes to be sent over loopback.
inline constexpr std::size_t checksum_slice_bytes = 512U << 10;

// Bytes to send, and what keeps them alive until they have left.
struct Payload {
    std::shared_ptr<const void> owner;
    std::span<const std::byte> bytes;
    const kv::RemoteLayer* remote = nullptr;  // where the bytes are in a device's memory: the owner
};
[[nodiscard]] Payload own_payload(std::vector<std::byte> bytes);

// One frame as it came in. Nothing has been checked yet but that 64 bytes are there.
struct Arrival {
    HeaderBytes head{};
    std::vector<std::byte> inline_payload;    // of control frames
    bool placed = false;                      // a chunk's payload lies in the place given by expect()
    std::span<const std::byte> placed_bytes;  // then: what arrived of it
    [[nodiscard]] std::span<const std::byte> payload() const noexcept {
        return placed ? placed_bytes : std::span<const std::byte>(inline_payload);
    }
};

// Nothing here waits; the caller polls. Not thread-safe. Errors mean that the channel is of no further use.
class Channel {
public:
    virtual ~Channel() = default;

    // Starts sending a frame; frames leave in order. The payload stays alive until it has left.
    virtual Status send(const HeaderBytes& head, Payload payload) = 0;
    // Whether payloads of CHUNK frames may be in a device's memory.
    [[nodiscard]] virtual bool reads_device_memory() const noexcept { return false; }
    // Says where the payload of the CHUNK frame with this slot goes; one use. `owner` keeps the place alive as long as
    // bytes may still arrive there.
    virtual Status expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) = 0;
    // No payload goes there any more. False: one has begun to arrive.
    [[nodiscard]] virtual bool withdraw(std::uint32_t slot) = 0;
    // Makes progress; the next frame, or none. A chunk that nobody expects loses its payload (placed = false).
    virtual Result<std::optional<Arrival>> receive() = 0;
    // Lets what is under way go on; delivers nothing, and leaves the last arrival alone. For pauses in long work.
    virtual void progress() {}
    // So many bytes of payload are under way at a time, and two payloads at least; what is sent beyond that waits.
    virtual void set_in_flight(std::uint64_t bytes) noexcept { static_cast<void>(bytes); }
    // Everything given to send() has left.
    [[nodiscard]] virtual bool sent_all() = 0;
    // Withdraws all expect()s: no more bytes go to their places.
    virtual void cancel() noexcept = 0;
};

}  // namespace hetero::transport
