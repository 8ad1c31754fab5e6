// The sending side of hkv-mpi 1 as a state machine: HELLO, OFFER, chunks as far as credit and window allow, COMMIT.
#pragma once
#include <optional>
#include <string>

#include "transport/chunk_plan.h"
#include "transport/link.h"

namespace hetero::transport {

inline constexpr std::uint64_t send_window_bytes = 16ULL << 20;  // unacknowledged; one frame is always allowed
inline constexpr std::size_t send_window_frames = 256;

class Sender {
public:
    explicit Sender(Link& link) : link_(&link) {}

    // Says HELLO, so that the link can be measured before a state is offered, which needs at least `version`.
    Status greet(const kv::Identity& identity, std::uint16_t version);
    // The peer has answered, and speaks of measuring.
    [[nodiscard]] bool greeted() const noexcept { return stage_ >= Stage::greeted; }
    [[nodiscard]] bool may_probe() const noexcept {
        return stage_ == Stage::greeted && version_ >= probe_protocol_version;
    }
    void probe(const Probe& probe) { link_->post(FrameKind::probe, encode(probe)); }
    void send_probe_chunk(std::uint32_t i, std::uint32_t crc, Payload payload);
    [[nodiscard]] std::uint64_t probe_answers() const noexcept { return probe_answers_; }

    // Offers a state: the header is checked and has tokens_per_chunk. Says HELLO if that has not been said.
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
    enum class Stage { idle, greeting, greeted, offered, streaming, committing, committed };
    void handle(const Frame& frame);
    Status handle_checked(const Frame& frame);
    void say_hello(const kv::Identity& identity);
    void post_offer();

    Link* link_;
    Stage stage_ = Stage::idle;
    std::uint16_t version_ = min_protocol_version;        // of the conversation
    std::uint16_t least_version_ = min_protocol_version;  // that the state needs
    std::vector<std::byte> offer_;                        // for when the peer has answered
    std::uint64_t probe_answers_ = 0;
    std::uint64_t credit_layers_ = 0, total_layers_ = 0;
    Digest root_{};
    bool abandoned_ = false;
    std::optional<TimePoint> abandoned_at_;
};

}  // namespace hetero::transport
