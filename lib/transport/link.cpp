#include "transport/link.h"

#include <algorithm>

#include "base/log.h"
#include "base/trace.h"

namespace hetero::transport {
namespace {

constexpr int max_damaged = 3;              // resends of one frame
constexpr int max_undecodable = 16;         // damaged headers in a row
constexpr std::uint32_t max_early = 65536;  // frames ahead of the one that is missing
constexpr double longest_step_s = 1;        // between calls of step(); after more this process was stopped itself
constexpr std::uint64_t longest_step_bytes = 2U << 20;
constexpr double first_ask_s = 0.05, longest_ask_s = 2;

double seconds(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

// Of frames that are not numbered: one that is not is as good as lost.
bool is_whole(const FrameHeader& header, const Arrival& arrival) {
    return arrival.payload().size() == header.length && crc32c(arrival.payload()) == header.payload_crc;
}

}  // namespace

Payload own_payload(std::vector<std::byte> bytes) {
    auto owned = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    const std::span<const std::byte> view(*owned);
    return {std::move(owned), view};
}

Link::Link(std::unique_ptr<Channel> channel, LinkOptions options, TimePoint now)
    : channel_(std::move(channel)),
      options_(std::move(options)),
      session_(options_.session),
      now_(now),
      last_heard_(now),
      last_heartbeat_(now),
      last_acked_(now) {}

void Link::transmit(const FrameHeader& header, const Payload& payload) {
    FrameHeader stamped = header;
    stamped.session = session_;
    stamped.ack = expected_;
    ++counters_.frames_sent;
    counters_.bytes_sent += frame_header_bytes + payload.bytes.size();
    if (const Status sent = channel_->send(encode_frame(stamped), payload); !sent && !error_)
        lost(sent.error().message);
}

void Link::transmit_control(FrameKind kind, std::uint32_t seq, std::vector<std::byte> payload) {
    FrameHeader header;
    header.kind = kind;
    header.seq = seq;
    header.length = payload.size();
    header.payload_crc = crc32c(payload);
    transmit(header, payload.empty() ? Payload{} : own_payload(std::move(payload)));
}

void Link::post(FrameKind kind, std::vector<std::byte> payload, std::uint64_t pieces) {
    FrameHeader header;
    header.kind = kind;
    header.payload_crc = crc32c(payload);
    post_frame(header, own_payload(std::move(payload)), pieces);
}

void Link::post_chunk(FrameHeader place, Payload payload) { post_frame(place, std::move(payload), 1); }

void Link::post_frame(FrameHeader header, Payload payload, std::uint64_t pieces) {
    if (error_) return;
    if (next_seq_ == ~0U) return give_up({Errc::peer, "frame numbers are used up"});
    header.seq = next_seq_++;
    header.length = payload.bytes.size();
    if (unacknowledged_.empty()) last_acked_ = now_;
    unacknowledged_bytes_ += payload.bytes.size();
    unacknowledged_pieces_ += pieces;
    unacknowledged_.push_back({header, payload, pieces});
    transmit(header, payload);
}

void Link::expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) {
    if (error_) return;
    if (const Status posted = channel_->expect(slot, place, std::move(owner)); !posted) lost(posted.error().message);
}

void Link::withdraw(std::uint32_t slot) {
    if (!error_ && !channel_->withdraw(slot)) violated(fmt::format("KEEP of a chunk that it sends, in slot {}", slot));
}

std::optional<Frame> Link::next() {
    if (ready_.empty()) return std::nullopt;
    Frame frame = std::move(ready_.front());
    ready_.pop_front();
    return frame;
}

// A suspended job (SIGSTOP): how long the peer was silent meanwhile is not known, so the pause does not count. The
// heartbeat alone is not put off.
void Link::forgive_pause(TimePoint now) {
    const auto pause = now - now_;
    if (seconds(now_, now) <= std::min(longest_step_s, options_.silence_s / 2)) return;
    last_heard_ += pause;
    last_acked_ += pause;
    if (gap_since_) *gap_since_ += pause;
    if (asked_at_) *asked_at_ += pause;
    if (probed_at_) *probed_at_ += pause;
}

bool Link::step(TimePoint now) {
    forgive_pause(now);
    now_ = now;
    bool moved = false;
    // Not all that may have come: the peer has to hear of it before its window is used up.
    for (std::uint64_t taken = 0; taken < longest_step_bytes;) {
        auto arrival = channel_->receive();
        if (!arrival) {
            if (!error_) lost(arrival.error().message);
            break;
        }
        if (!*arrival) break;
        moved = true;
        taken += frame_header_bytes + (*arrival)->payload().size();
        counters_.bytes_received += frame_header_bytes + (*arrival)->payload().size();
        handle(**arrival, now);
    }
    if (!error_) watch(now);
    return moved;
}

void Link::handle(const Arrival& arrival, TimePoint now) {
    const auto decoded = decode_frame(arrival.head);
    if (!decoded) {
        ++counters_.damaged;
        if (error_) return;
        if (!may_be_damaged(arrival.head) || ++undecodable_in_a_row_ > max_undecodable)
            violated(decoded.error().message);
        return;
    }
    const FrameHeader& header = *decoded;
    undecodable_in_a_row_ = 0;
    if (!belongs(header)) {
        ++counters_.stale;
        if (arrival.placed && place_again_) place_again_(header);
        return;
    }
    ++counters_.frames_received;
    last_heard_ = now;
    if (header.kind == FrameKind::abort) {
        if (!is_whole(header, arrival)) return;
        const auto reason = decode_reason(arrival.payload());
        peer_left_ = true;
        if (reason && !peer_reason_) peer_reason_ = *reason;
        end_with(
            {Errc::peer, fmt::format("{} gave up: {}", options_.peer, reason ? reason->message : "no reason given")});
        return;
    }
    if (error_) {
        // Still of interest while leaving: whether the peer has left too.
        if (header.kind == FrameKind::bye) peer_left_ = true;
        return;
    }
    acknowledge(header.ack, now);
    if (error_) return;
    switch (header.kind) {
        case FrameKind::ack:
            break;
        case FrameKind::nack:
            handle_nack(header, arrival);
            break;
        case FrameKind::heartbeat:
            if (header.seq - expected_ < max_early) peer_next_ = std::max(peer_next_, header.seq);
            break;
        case FrameKind::probe:
            if (is_whole(header, arrival))
                transmit_control(FrameKind::probe_ack, header.seq, encode_time(trace::on_time_line(now)));
            break;
        case FrameKind::probe_ack:
            answered_probe_ = header.seq;
            answered_time_.reset();
            if (is_whole(header, arrival)) answered_time_ = decode_time(arrival.payload());
            probed_at_.reset();
            break;
        default:
            handle_sequenced(header, arrival);
            break;
    }
}

void Link::probe(std::uint32_t number, std::size_t bytes) {
    if (error_) return;
    if (!probed_at_) probed_at_ = now_;
    if (probe_bytes_.bytes.size() < bytes) probe_bytes_ = own_payload(std::vector<std::byte>(bytes));
    const Payload payload{probe_bytes_.owner, probe_bytes_.bytes.first(bytes)};
    FrameHeader header;
    header.kind = FrameKind::probe;
    header.seq = number;
    header.length = bytes;
    header.payload_crc = crc32c(payload.bytes);
    transmit(header, payload);
}

// Frames of an earlier conversation are dropped.
bool Link::belongs(const FrameHeader& header) {
    if (header.epoch != 1) return false;
    if (header.session == session_) return true;
    if (options_.role == WireRole::sender) return header.session == 0;
    if (session_ != 0) return false;
    if (header.kind == FrameKind::hello) session_ = header.session;
    return true;
}

void Link::acknowledge(std::uint32_t ack, TimePoint now) {
    if (ack > next_seq_) return violated(fmt::format("acknowledged frame {} of {}", ack, next_seq_));
    while (!unacknowledged_.empty() && unacknowledged_.front().header.seq < ack) {
        unacknowledged_bytes_ -= unacknowledged_.front().payload.bytes.size();
        unacknowledged_pieces_ -= unacknowledged_.front().pieces;
        unacknowledged_.pop_front();
        last_acked_ = now;
    }
}

void Link::handle_nack(const FrameHeader& header, const Arrival& arrival) {
    const auto reason = decode_nack(arrival.payload());
    if (!reason || !is_whole(header, arrival)) return;  // the peer asks again
    for (Sent& sent : unacknowledged_) {
        if (sent.header.seq != header.seq) continue;
        if (*reason == NackReason::damaged && ++sent.damaged > max_damaged) {
            return give_up({Errc::peer, fmt::format("{} arrived damaged at {} {} times", frame_text(sent.header),
                                                    options_.peer, sent.damaged)});
        }
        ++counters_.resent;
        log::debug("{}: frame {} sent again", options_.peer, header.seq);
        return transmit(sent.header, sent.payload);
    }
}

std::uint32_t Link::checksum_of(std::span<const std::byte> payload) {
    std::uint32_t crc = 0;
    for (; payload.size() > checksum_slice_bytes; payload = payload.subspan(checksum_slice_bytes)) {
        crc = crc32c(payload.first(checksum_slice_bytes), crc);
        channel_->progress();
    }
    return crc32c(payload, crc);
}

void Link::handle_sequenced(const FrameHeader& header, const Arrival& arrival) {
    owes_ack_ = true;
    if (header.seq < expected_ || early_.contains(header.seq)) {
        ++counters_.duplicates;
        return;
    }
    if (header.seq - expected_ >= max_early)
        return violated(fmt::format("frame {} where {} was next", header.seq, expected_));
    const bool chunk = header.kind == FrameKind::chunk;
    const auto payload = arrival.payload();
    if (chunk && !arrival.placed)
        return violated(fmt::format("{} came without having been granted", frame_text(header)));
    const bool verify = !chunk || options_.verify_chunks;
    if (payload.size() != header.length || (verify && checksum_of(payload) != header.payload_crc)) {
        ++counters_.damaged;
        if (chunk && place_again_) place_again_(header);
        return transmit_control(FrameKind::nack, header.seq, encode_nack(NackReason::damaged));
    }
    Frame frame{header, {}};
    if (!chunk) frame.payload.assign(payload.begin(), payload.end());
    early_.emplace(header.seq, std::move(frame));
    for (auto it = early_.find(expected_); it != early_.end(); it = early_.find(expected_)) {
        if (it->second.header.kind == FrameKind::bye) {
            peer_left_ = true;
        } else {
            ready_.push_back(std::move(it->second));
        }
        early_.erase(it);
        ++expected_;
        gap_since_.reset();
    }
}

void Link::ask_for_missing(TimePoint now) {
    if (early_.empty() && peer_next_ <= expected_) {
        gap_since_.reset();
        return;
    }
    if (!gap_since_) {
        gap_since_ = asked_at_ = now;
        ask_again_s_ = first_ask_s;
    }
    if (seconds(*gap_since_, now) > options_.silence_s)
        return lost(fmt::format("stalled: frame {} has not come for {:.3g} s", expected_, options_.silence_s));
    if (seconds(*asked_at_, now) < ask_again_s_) return;
    asked_at_ = now;
    ask_again_s_ = std::min(2 * ask_again_s_, longest_ask_s);
    transmit_control(FrameKind::nack, expected_, encode_nack(NackReason::missing));
}

void Link::watch(TimePoint now) {
    ask_for_missing(now);
    if (error_) return;
    if (owes_ack_) {
        owes_ack_ = false;
        transmit_control(FrameKind::ack, 0);
    }
    if (seconds(last_heartbeat_, now) >= options_.heartbeat_s) {
        last_heartbeat_ = now;
        transmit_control(FrameKind::heartbeat, next_seq_);
    }
    if (error_) return;
    if (seconds(last_heard_, now) > options_.silence_s)
        return lost(fmt::format("no sign of life for {:.3g} s", options_.silence_s));
    if (probed_at_ && seconds(*probed_at_, now) > options_.silence_s)
        return lost(fmt::format("stalled: no probe has been answered for {:.3g} s", options_.silence_s));
    if (!unacknowledged_.empty() && seconds(last_acked_, now) > options_.silence_s)
        lost(fmt::format("stalled: frame {} has not been acknowledged for {:.3g} s", unacknowledged_.front().header.seq,
                         options_.silence_s));
}

void Link::lost(std::string message) { give_up({Errc::peer, fmt::format("{}: {}", options_.peer, message)}); }

void Link::violated(std::string_view what) {
    give_up(
        {Errc::peer, fmt::format("{} sent something that is not hkv-mpi {}: {}", options_.peer, wire_version, what)});
}

void Link::give_up(const Error& reason) {
    if (error_) return;
    error_ = reason;
    forget_sent();
    if (!peer_left_) transmit_control(FrameKind::abort, 0, encode(reason));
}

void Link::end_with(Error error) {
    if (error_) return;
    error_ = std::move(error);
    forget_sent();
}

void Link::forget_sent() noexcept {
    channel_->cancel();
    unacknowledged_.clear();
    unacknowledged_bytes_ = unacknowledged_pieces_ = 0;
    ready_.clear();
    early_.clear();
}

void Link::say_bye() {
    if (said_bye_) return;
    said_bye_ = true;
    if (error_) {
        transmit_control(FrameKind::bye, next_seq_);
    } else {
        post(FrameKind::bye, {});
    }
}

bool Link::drained() { return (error_ || unacknowledged_.empty()) && channel_->sent_all(); }

}  // namespace hetero::transport
