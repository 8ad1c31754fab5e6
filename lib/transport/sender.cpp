#include "transport/sender.h"

namespace hetero::transport {

Result<std::vector<std::byte>> encode_offer(const kv::Header& header) {
    if (header.identity.n_layers > 0xFFFF)
        return fail(Errc::bad_input, "{} layers, the wire format has room for 65535", header.identity.n_layers);
    std::vector<std::byte> offer = encode(Offer{header.payload_bytes(), header});
    if (offer.size() > max_offer_bytes)
        return fail(Errc::bad_input, "tokens and logits of all sequences are {} bytes, the wire format has room for {}",
                    offer.size(), max_offer_bytes);
    return offer;
}

Status Sender::begin(const kv::Header& header) {
    if (stage_ != Stage::idle) return fail(Errc::internal, "a state is being sent already");
    HETERO_TRY(offer_, encode_offer(header));
    total_layers_ = total_layers(header);
    Hello hello;
    hello.role = WireRole::sender;
    version_ = protocol_version_of(header);
    hello.min_version = hello.max_version = version_;
    hello.compat_hash = kv::compat_hash(header.identity);
    hello.program = "hetero";
    link_->post(FrameKind::hello, encode(hello));
    stage_ = Stage::greeting;
    return {};
}

bool Sender::step(TimePoint now) {
    bool moved = link_->step(now);
    if (link_->unacknowledged_bytes() <= send_window_bytes / 2 &&
        link_->unacknowledged_frames() <= send_window_frames / 2)
        window_full_ = false;
    charge();
    const bool was_open = bucket_.open();
    bucket_.refill(now);
    moved |= !was_open && bucket_.open();  // whoever waits for may_send() has to look again
    while (auto frame = link_->next()) {
        handle(*frame);
        moved = true;
    }
    if (link_->peer_left() && !error() && stage_ != Stage::committed && stage_ != Stage::idle)
        link_->end_with(
            {Errc::peer, fmt::format("{} ended before it had received the whole state", link_->options().peer)});
    if (abandoned_ && !error() && stage_ != Stage::committed) {
        if (!abandoned_at_) abandoned_at_ = now;
        if (now - *abandoned_at_ > std::chrono::milliseconds(500))
            link_->give_up({Errc::peer, "it stopped before the state was complete"});
    }
    return moved;
}

void Sender::handle(const Frame& frame) {
    if (error()) return;
    if (const Status handled = handle_checked(frame); !handled) link_->violated(handled.error().message);
}

Status Sender::handle_checked(const Frame& frame) {
    const FrameKind kind = frame.header.kind;
    if (kind == FrameKind::reject && (stage_ == Stage::greeting || stage_ == Stage::offered)) {
        HETERO_TRY(const Error reason, decode_reason(frame.payload));
        link_->end_with({reason.code, fmt::format("{} rejected the state: {}", link_->options().peer, reason.message)});
        return {};
    }
    if (kind == FrameKind::hello_ack && stage_ == Stage::greeting) {
        HETERO_TRY(const Hello hello, decode_hello(frame.payload));
        if (hello.role != WireRole::receiver) return fail(Errc::peer, "HELLO_ACK of a sender");
        if (hello.min_version > version_ || hello.max_version < version_)
            return fail(Errc::peer, "it speaks hkv-mpi {} to {}, this state needs {}", hello.min_version,
                        hello.max_version, version_);
        link_->post(FrameKind::offer, std::move(offer_));
        stage_ = Stage::offered;
        return {};
    }
    const bool accept = kind == FrameKind::accept && stage_ == Stage::offered;
    if (accept || (kind == FrameKind::credit && (stage_ == Stage::streaming || stage_ == Stage::committing))) {
        HETERO_TRY(const std::uint64_t layers, decode_credit(frame.payload));
        if (layers < credit_layers_ || layers > total_layers_)
            return fail(Errc::peer, "credit for {} layers after {}, of {}", layers, credit_layers_, total_layers_);
        credit_layers_ = layers;
        if (accept) stage_ = Stage::streaming;
        return {};
    }
    if (kind == FrameKind::commit_ack && stage_ == Stage::committing) {
        HETERO_TRY(const Digest root, decode_root(frame.payload));
        if (root != root_) return fail(Errc::peer, "COMMIT_ACK for root {}, sent {}", to_hex(root), to_hex(root_));
        stage_ = Stage::committed;
        return {};
    }
    return fail(Errc::peer, "{} out of turn", frame_kind_name(kind));
}

bool Sender::may_send(std::uint64_t layer_index) const noexcept {
    return stage_ == Stage::streaming && layer_index < credit_layers_ && bucket_.open() && !window_full_;
}

void Sender::send(const ChunkPlace& place, std::uint32_t crc, Payload payload) {
    FrameHeader header = place.frame();
    header.payload_crc = crc;
    link_->post_chunk(header, std::move(payload));
    charge();
    window_full_ =
        link_->unacknowledged_bytes() >= send_window_bytes || link_->unacknowledged_frames() >= send_window_frames;
}

// For all that the link has sent since.
void Sender::charge() noexcept {
    const std::uint64_t sent = link_->counters().bytes_sent;
    bucket_.take(sent - charged_bytes_);
    charged_bytes_ = sent;
}

void Sender::commit(const Digest& root) {
    root_ = root;
    link_->post(FrameKind::commit, encode_root(root));
    stage_ = Stage::committing;
}

}  // namespace hetero::transport
