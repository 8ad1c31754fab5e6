// The numbered, repeated, watched conversation with one peer: frames are delivered in order and exactly once whatever
// the channel does, a lost peer is noticed, and both sides learn when one gives up. A pure state machine: time comes in
// with step().
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "transport/channel.h"
#include "transport/messages.h"

namespace hetero::transport {

using TimePoint = std::chrono::steady_clock::time_point;

struct LinkOptions {
    WireRole role = WireRole::sender;
    std::string peer;           // "rank 2": for messages
    double heartbeat_s = 0.5;   // interval
    double silence_s = 8;       // without any valid frame: dead; without progress of a frame in flight: stalled
    std::uint64_t session = 0;  // the sender's random number; a receiver learns it from HELLO
    bool verify_chunks = true;  // false: for measurements of what checksums cost
};

struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;  // empty for chunks: theirs lies in its place
};

struct LinkCounters {
    std::uint64_t frames_sent = 0, frames_received = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;  // headers and what was sent again included
    std::uint64_t resent = 0, damaged = 0, duplicates = 0, stale = 0;
};

class Link {
public:
    Link(std::unique_ptr<Channel> channel, LinkOptions options, TimePoint now);

    // Numbers and sends a frame, and keeps it until it is acknowledged. For chunks the caller fills in the place and
    // payload_crc.
    // `pieces`: how many of the state's it stands for.
    void post(FrameKind kind, std::vector<std::byte> payload, std::uint64_t pieces = 1);
    [[nodiscard]] bool reads_device_memory() const noexcept { return channel_->reads_device_memory(); }
    void post_chunk(FrameHeader place, Payload payload);
    void set_in_flight(std::uint64_t bytes) noexcept { channel_->set_in_flight(bytes); }
    // Receiver: where a chunk goes. `place_again` is asked when a chunk has to be sent again.
    void expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner);
    // Nothing goes there after all: the peer left the chunk out.
    void withdraw(std::uint32_t slot);
    void on_damaged_chunk(std::function<void(const FrameHeader&)> place_again) {
        place_again_ = std::move(place_again);
    }

    // Receives, answers, watches the clock. Returns whether anything moved.
    bool step(TimePoint now);
    // The next frame in order: HELLO, HELLO_ACK, REJECT, OFFER, ACCEPT, CREDIT, CHUNK, KEEP, COMMIT, COMMIT_ACK.
    std::optional<Frame> next();

    // Ends the conversation with an error of this side and tells the peer. Later calls do nothing.
    void give_up(const Error& reason);
    // The peer broke the protocol: as give_up(), with the peer named.
    void violated(std::string_view what);
    // Ends the conversation because of what the peer said (a REJECT): it needs no telling.
    void end_with(Error error);
    [[nodiscard]] const std::optional<Error>& error() const noexcept { return error_; }
    // What the peer said when it gave up, with its code; error() is a peer error then.
    [[nodiscard]] const std::optional<Error>& peer_reason() const noexcept { return peer_reason_; }

    // Sends so many bytes for a measurement (link_measure.h), at most max_probe_bytes; the peer's link answers. Not
    // repeated when lost; without any answer for silence_s the peer has stalled.
    void probe(std::uint32_t number, std::size_t bytes);
    // The latest probe that was answered.
    [[nodiscard]] const std::optional<std::uint32_t>& answered_probe() const noexcept { return answered_probe_; }
    // When it was, on the peer's time line (base/trace.h); none where the peer did not say.
    [[nodiscard]] const std::optional<std::chrono::nanoseconds>& answered_time() const noexcept {
        return answered_time_;
    }

    // Takes the channel away, for the next conversation; only ~Link() may follow. All has to be drained().
    [[nodiscard]] std::unique_ptr<Channel> release() noexcept { return std::move(channel_); }

    // Orderly end. The peer's own is seen by peer_left().
    void say_bye();
    [[nodiscard]] bool peer_left() const noexcept { return peer_left_; }
    // All that was posted has been acknowledged (not required after an error) and has left.
    [[nodiscard]] bool drained();

    [[nodiscard]] std::uint64_t unacknowledged_bytes() const noexcept { return unacknowledged_bytes_; }
    [[nodiscard]] std::uint64_t unacknowledged_pieces() const noexcept { return unacknowledged_pieces_; }
    [[nodiscard]] const LinkCounters& counters() const noexcept { return counters_; }
    [[nodiscard]] const LinkOptions& options() const noexcept { return options_; }

private:
    struct Sent {
        FrameHeader header;
        Payload payload;
        std::uint64_t pieces = 1;
        int damaged = 0;  // times the peer found it damaged
    };
    void post_frame(FrameHeader header, Payload payload, std::uint64_t pieces);
    void forget_sent() noexcept;
    void transmit(const FrameHeader& header, const Payload& payload);
    void transmit_control(FrameKind kind, std::uint32_t seq, std::vector<std::byte> payload = {});
    void handle(const Arrival& arrival, TimePoint now);
    std::uint32_t checksum_of(std::span<const std::byte> payload);
    void handle_sequenced(const FrameHeader& header, const Arrival& arrival);
    void handle_nack(const FrameHeader& header, const Arrival& arrival);
    bool belongs(const FrameHeader& header);
    void acknowledge(std::uint32_t ack, TimePoint now);
    void forgive_pause(TimePoint now);
    void watch(TimePoint now);
    void ask_for_missing(TimePoint now);
    void lost(std::string message);

    std::unique_ptr<Channel> channel_;
    LinkOptions options_;
    std::uint64_t session_ = 0;
    std::function<void(const FrameHeader&)> place_again_;

    std::uint32_t next_seq_ = 0;  // of the next frame sent
    std::deque<Sent> unacknowledged_;
    std::uint64_t unacknowledged_bytes_ = 0, unacknowledged_pieces_ = 0;
    std::uint32_t expected_ = 0;   // of the next frame delivered
    std::uint32_t peer_next_ = 0;  // the peer has sent all below, as its heartbeats say
    std::map<std::uint32_t, Frame> early_;
    std::deque<Frame> ready_;
    bool owes_ack_ = false;
    int undecodable_in_a_row_ = 0;
    Payload probe_bytes_;
    std::optional<std::uint32_t> answered_probe_;
    std::optional<std::chrono::nanoseconds> answered_time_;

    TimePoint now_, last_heard_, last_heartbeat_, last_acked_;
    std::optional<TimePoint> gap_since_, asked_at_;
    std::optional<TimePoint> probed_at_;  // the first probe since the last answer
    double ask_again_s_ = 0;

    bool said_bye_ = false, peer_left_ = false;
    std::optional<Error> error_, peer_reason_;
    LinkCounters counters_;
};

}  // namespace hetero::transport
