// The sending side of hkv-mpi 1 as a state machine: HELLO, OFFER, chunks as far as credit and window allow, COMMIT.
#pragma once
#include <optional>
#include <string>

#include "transport/chunk_plan.h"
#include "transport/link.h"
#include "transport/token_bucket.h"

namespace hetero::transport {

inline constexpr std::uint64_t send_window_bytes = 16ULL << 20;  // unacknowledged; one frame is always allowed
inline constexpr std::size_t send_window_frames = 256;

// OFFER of a header that is checked and has tokens_per_chunk. What the wire format has no room for is bad_input.
Result<std::vector<std::byte>> encode_offer(const kv::Header& header);

class Sender {
public:
    // At most so many bytes a second on the link, of whatever kind; 0: no limit.
    explicit Sender(Link& link, std::uint64_t max_bytes_per_s = 0) : link_(&link), bucket_(max_bytes_per_s) {}

    // Offers a state: the header is checked and has tokens_per_chunk.
    Status begin(const kv::Header& header);
    bool step(TimePoint now);

    [[nodiscard]] bool accepted() const noexcept { return stage_ >= Stage::streaming; }
    // Whether the piece of layer `layer_index` may be sent now.
    [[nodiscard]] bool may_send(std::uint64_t layer_index) const noexcept;
    void send(const ChunkPlace& place, std::uint32_t crc, Payload payload);
    void commit(const Digest& root);
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

    Link* link_;
    TokenBucket bucket_;
    std::uint64_t charged_bytes_ = 0;
    bool window_full_ = false;  // until half of it is free: whoever sends is not woken for each frame
    Stage stage_ = Stage::idle;
    std::uint16_t version_ = min_protocol_version;  // of the conversation
    std::vector<std::byte> offer_;
    std::uint64_t credit_layers_ = 0, total_layers_ = 0;
    Digest root_{};
    bool abandoned_ = false;
    std::optional<TimePoint> abandoned_at_;
};

}  // namespace hetero::transport
