#include "transport/sender.h"

#include <algorithm>
#include <iterator>

namespace hetero::transport {
namespace {

Result<std::vector<std::byte>> encode_checked(const Offer& offer, std::uint16_t version) {
    if (offer.header.identity.n_layers > 0xFFFF)
        return fail(Errc::bad_input, "{} layers, the wire format has room for 65535", offer.header.identity.n_layers);
    std::vector<std::byte> bytes = encode(offer, version);
    if (bytes.size() > max_offer_bytes)
        return fail(Errc::bad_input, "tokens and logits of all sequences are {} bytes, the wire format has room for {}",
                    bytes.size(), max_offer_bytes);
    return bytes;
}

}  // namespace

Result<std::vector<std::byte>> encode_offer(const kv::Header& header) {
    const Offer offer{header.payload_bytes(), header};
    return encode_checked(offer, protocol_version_of(header));
}

Status Sender::begin(const kv::Header& header, OfferOptions options) {
    if (stage_ != Stage::idle) return fail(Errc::internal, "a state is being sent already");
    offer_ = Offer{header.payload_bytes(), header};
    if (options.resumable) offer_.state_key = state_key(header);
    lowest_version_ = protocol_version_of(header);
    highest_version_ = options.resumable ? max_protocol_version : lowest_version_;
    HETERO_CHECK(encode_checked(offer_, highest_version_));  // before anything is said
    total_layers_ = total_layers(header);
    total_pieces_ = total_pieces(header);
    Hello hello;
    hello.role = WireRole::sender;
    hello.min_version = lowest_version_;
    hello.max_version = highest_version_;
    hello.compat_hash = kv::compat_hash(header.identity);
    hello.program = "hetero";
    link_->post(FrameKind::hello, encode(hello));
    stage_ = Stage::greeting;
    return {};
}

bool Sender::step(TimePoint now) {
    now_ = now;
    bool moved = link_->step(now);
    const std::uint64_t pieces = link_->unacknowledged_pieces();
    if ((link_->unacknowledged_bytes() <= window_bytes_ / 2 || pieces < SendWindow::least_pieces) &&
        pieces <= send_window_pieces / 2)
        window_full_ = false;
    charge();
    const bool was_open = bucket_.open();
    bucket_.refill(now);
    look_at_layers();
    tell_kept();
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
        if (hello.min_version > highest_version_ || hello.max_version < lowest_version_) {
            link_->give_up(
                {Errc::peer, fmt::format("{} speaks hkv-mpi {} to {}, this state needs {}", link_->options().peer,
                                         hello.min_version, hello.max_version, lowest_version_)});
            return {};
        }
        version_ = std::min(hello.max_version, highest_version_);
        HETERO_TRY(std::vector<std::byte> offer, encode_checked(offer_, version_));
        offer_ = {};
        link_->post(FrameKind::offer, std::move(offer));
        stage_ = Stage::offered;
        return {};
    }
    if (kind == FrameKind::accept && stage_ == Stage::offered) {
        HETERO_TRY(Accept accept, decode_accept(frame.payload, version_, total_pieces_));
        HETERO_CHECK(take_credit(accept.layers));
        held_ = std::move(accept.held);
        stage_ = Stage::streaming;
        return {};
    }
    if (kind == FrameKind::credit && (stage_ == Stage::streaming || stage_ == Stage::committing)) {
        HETERO_TRY(const std::uint64_t layers, decode_credit(frame.payload));
        return take_credit(layers);
    }
    if (kind == FrameKind::commit_ack && stage_ == Stage::committing) {
        HETERO_TRY(const Digest root, decode_root(frame.payload));
        if (root != root_) return fail(Errc::peer, "COMMIT_ACK for root {}, sent {}", to_hex(root), to_hex(root_));
        stage_ = Stage::committed;
        times_.committed(now_);
        return {};
    }
    return fail(Errc::peer, "{} out of turn", frame_kind_name(kind));
}

Status Sender::take_credit(std::uint64_t layers) {
    if (layers < credit_layers_ || layers > total_layers_)
        return fail(Errc::peer, "credit for {} layers after {}, of {}", layers, credit_layers_, total_layers_);
    credit_layers_ = layers;
    return {};
}

std::optional<std::uint32_t> Sender::held(std::uint64_t piece) const noexcept {
    const auto behind = std::upper_bound(held_.begin(), held_.end(), piece,
                                         [](std::uint64_t one, const HeldPieces& range) { return one < range.first; });
    if (behind == held_.begin()) return std::nullopt;
    const HeldPieces& range = *std::prev(behind);
    const std::uint64_t at = piece - range.first;
    return at < range.crcs.size() ? std::optional(range.crcs[at]) : std::nullopt;
}

void Sender::keep(const ChunkPlace& place) {
    ++pieces_;
    ++kept_;
    kept_bytes_ += place.length;
    look_at_window();
}

// One KEEP for all since the last; the receiver may have to hear of it to grant more.
void Sender::tell_kept() {
    if (kept_ == 0) return;
    link_->post(FrameKind::keep, encode_keep(kept_), kept_);
    kept_ = 0;
}

bool Sender::may_send(std::uint64_t layer_index) const noexcept {
    return stage_ == Stage::streaming && layer_index < credit_layers_ && bucket_.open() && !window_full_;
}

void Sender::send(const ChunkPlace& place, std::uint32_t crc, Payload payload) {
    tell_kept();
    ++pieces_;
    FrameHeader header = place.frame();
    header.payload_crc = crc;
    link_->post_chunk(header, std::move(payload));
    charge();
    look_at_window();
}

void Sender::look_at_window() noexcept {
    const std::uint64_t pieces = link_->unacknowledged_pieces() + kept_;
    window_full_ = (link_->unacknowledged_bytes() >= window_bytes_ && pieces >= SendWindow::least_pieces) ||
                   pieces >= send_window_pieces;
}

// For all that the link has sent since.
void Sender::charge() noexcept {
    const std::uint64_t sent = link_->counters().bytes_sent;
    bucket_.take(sent - charged_bytes_);
    charged_bytes_ = sent;
}

// Under a limit of the rate, what was sent is on its way as long as that rate takes.
void Sender::look_at_layers() {
    if (!bucket_.open()) return;
    const std::uint64_t acknowledged = pieces_ - std::min(pieces_, link_->unacknowledged_pieces() + kept_);
    for (; !given_.empty() && given_.front().second <= acknowledged; given_.pop_front())
        times_.layers_end(given_.front().first + 1, now_);
}

void Sender::commit(const Commit& commit) {
    tell_kept();
    root_ = commit.root;
    times_.commit_begins(now_);
    link_->post(FrameKind::commit, encode(commit));
    stage_ = Stage::committing;
}

}  // namespace hetero::transport
