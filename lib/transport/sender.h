// The sending side of hkv-mpi 1 as a state machine: HELLO, OFFER, chunks as far as credit and window allow, COMMIT.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/chunk_plan.h"
#include "transport/link.h"
#include "transport/send_window.h"
#include "transport/token_bucket.h"
#include "transport/transfer_times.h"

namespace hetero::transport {

inline constexpr std::uint64_t send_window_pieces = 256;  // unacknowledged, those to keep counted

struct OfferOptions {
    bool resumable = false;  // the receiver may hold some of the state: keep() what it does
};

// OFFER of a header that is checked and has tokens_per_chunk, in its lowest version. What the wire format has no room
// for is bad_input.
Result<std::vector<std::byte>> encode_offer(const kv::Header& header);

class Sender {
public:
    // At most so many bytes a second on the link, of whatever kind; 0: no limit.
    explicit Sender(Link& link, std::uint64_t max_bytes_per_s = 0) : link_(&link), bucket_(max_bytes_per_s) {}

    // Offers a state: the header is checked and has tokens_per_chunk; logits that come late are commit()'s.
    Status begin(const kv::Header& header, OfferOptions options = {});
    bool step(TimePoint now);

    // Unacknowledged bytes at most, beside SendWindow::least_pieces.
    void set_window(const SendWindow& window) noexcept {
        window_bytes_ = window.bytes;
        link_->set_in_flight(window.in_flight_bytes);
    }

    [[nodiscard]] bool accepted() const noexcept { return stage_ >= Stage::streaming; }
    // Whether the piece of layer `layer_index` may be sent now.
    [[nodiscard]] bool may_send(std::uint64_t layer_index) const noexcept;
    void send(const ChunkPlace& place, std::uint32_t crc, Payload payload);
    // All that was sent has left, as the limit of the rate has it: COMMIT may follow.
    [[nodiscard]] bool may_commit() const noexcept { return bucket_.open(); }
    // Once accepted: the CRC-32C of this piece where the receiver holds it.
    [[nodiscard]] std::optional<std::uint32_t> held(std::uint64_t piece) const noexcept;
    // In place of send(), where the receiver holds the same bytes.
    void keep(const ChunkPlace& place);
    [[nodiscard]] std::uint64_t kept_bytes() const noexcept { return kept_bytes_; }
    void commit(const Commit& commit);
    // For times(): a layer is there to be sent; all its pieces have been given to send() or keep().
    void layer_begins(TimePoint now) { times_.layer_begins(now); }
    void layer_given(std::uint64_t layer_index) { given_.emplace_back(layer_index, pieces_); }
    [[nodiscard]] const TransferTimes& times() const noexcept { return times_; }
    [[nodiscard]] bool committed() const noexcept { return stage_ == Stage::committed; }
    [[nodiscard]] bool started() const noexcept { return stage_ != Stage::idle; }
    // The sink is gone without commit(). Whoever knows why has a moment to say so before the peer is told without a
    // reason.
    void abandon() noexcept { abandoned_ = true; }
    [[nodiscard]] const std::optional<Error>& error() const noexcept { return link_->error(); }
    [[nodiscard]] Link& link() noexcept { return *link_; }

private:
    enum class Stage { idle, greeting, offered, streaming, committing, committed };
    void handle(const Frame& frame);
    void charge() noexcept;
    Status handle_checked(const Frame& frame);
    Status take_credit(std::uint64_t layers);
    void tell_kept();
    void look_at_window() noexcept;
    void look_at_layers();

    Link* link_;
    TokenBucket bucket_;
    std::uint64_t charged_bytes_ = 0;
    std::uint64_t window_bytes_ = SendWindow{}.bytes;
    bool window_full_ = false;  // until half of it is free: whoever sends is not woken for each frame
    Stage stage_ = Stage::idle;
    // Of the conversation, and the range that HELLO names.
    std::uint16_t version_ = min_protocol_version, lowest_version_ = 1, highest_version_ = 1;
    Offer offer_;
    std::uint64_t credit_layers_ = 0, total_layers_ = 0, total_pieces_ = 0;
    std::vector<HeldPieces> held_;  // in order
    std::uint64_t kept_ = 0;        // pieces that the receiver has not been told to keep
    std::uint64_t kept_bytes_ = 0;
    Digest root_{};
    TransferTimes times_;
    TimePoint now_{};
    std::uint64_t pieces_ = 0;                                   // sent or kept so far
    std::deque<std::pair<std::uint64_t, std::uint64_t>> given_;  // layers, and pieces_ after each; unacknowledged
    bool abandoned_ = false;
    std::optional<TimePoint> abandoned_at_;
};

}  // namespace hetero::transport
