// The receiving side of hkv-mpi 1 as a state machine. Chunks arrive in the layer buffers that were granted, are checked
// there, and count only once the peer's root agrees with ours.
#pragma once
#include <deque>
#include <memory>
#include <optional>

#include "transport/chunk_plan.h"
#include "transport/layer_pool.h"
#include "transport/link.h"
#include "transport/transfer_times.h"

namespace hetero::transport {

struct ReceiverOptions {
    std::optional<kv::Identity> expected;       // refuse a state of another model; none: take any
    std::uint64_t memory_bytes = 0;             // more than this for the granted layers: REJECT; 0: not known
    std::uint64_t granted_bytes = 64ULL << 20;  // keep so much granted ahead, at least two layers
    bool decides = false;                       // an offer waits for accept(): some of it may be held
    std::shared_ptr<LayerPool> layers = std::make_shared<LayerPool>();
};

struct ReceivedLayer {
    kv::Layer layer;
    kv::LayerChecksums checksums;
};

class Receiver {
public:
    explicit Receiver(Link& link);
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;

    // From now on the peer's HELLO is answered; before, it waits.
    void open(ReceiverOptions options);
    bool step(TimePoint now);

    // With `decides`: an offer is there, and accept() has to follow with the buffers for its first layers. Where pieces
    // are held, the buffers have their bytes.
    [[nodiscard]] bool offered() const noexcept { return stage_ == Stage::offered; }
    [[nodiscard]] const Digest& state_key() const noexcept { return state_key_; }  // zeros: none
    Result<std::vector<std::shared_ptr<kv::Layer>>> first_buffers();               // needs no lock, and takes its time
    void accept(std::vector<std::shared_ptr<kv::Layer>> buffers, std::vector<HeldPieces> held);
    void reject(const Error& reason);
    [[nodiscard]] std::uint64_t kept_bytes() const noexcept { return kept_bytes_; }  // that the sender left out
    [[nodiscard]] const TransferTimes& times() const noexcept { return times_; }

    // The state was offered and accepted.
    [[nodiscard]] bool accepted() const noexcept { return stage_ >= Stage::receiving; }
    // Logits and pending tokens that come late are there with root().
    [[nodiscard]] const kv::Header& header() const noexcept { return header_; }

    [[nodiscard]] bool layer_ready() const noexcept;  // the next one in order is complete
    ReceivedLayer take_layer();
    // Layers that may be granted now: take the next one out of layers() and hand it over.
    [[nodiscard]] bool wants_buffer() const noexcept;
    [[nodiscard]] LayerPool& layers() noexcept { return *options_.layers; }
    [[nodiscard]] std::uint64_t next_buffer() const noexcept { return granted_; }  // its layer_index
    void grant(std::shared_ptr<kv::Layer> buffer);

    // The peer's root, once all chunks and COMMIT are there.
    [[nodiscard]] const std::optional<Digest>& root() const noexcept { return root_; }
    void agree();    // the roots agree
    void confirm();  // and the state is where it should be: the peer is told. Once, after agree()
    void refuse_root(const Digest& own);
    [[nodiscard]] bool confirmed() const noexcept { return stage_ == Stage::confirmed; }
    [[nodiscard]] const std::optional<Error>& error() const noexcept { return link_->error(); }
    [[nodiscard]] Link& link() noexcept { return *link_; }

private:
    enum class Stage { closed, waiting, greeted, offered, receiving, complete, agreed, confirmed };
    struct Buffer {
        std::shared_ptr<kv::Layer> layer;
        kv::LayerChecksums checksums;
        std::uint64_t bytes = 0;
    };
    void handle(const Frame& frame);
    Status handle_checked(const Frame& frame);
    Status handle_offer(const Frame& frame);
    Status handle_chunk(const Frame& frame);
    Status handle_keep(const Frame& frame);
    Status handle_commit(const Frame& frame);
    void add_buffer(std::shared_ptr<kv::Layer> layer);
    void take_piece(const ChunkPlace& place, std::uint32_t crc);
    void post_places();
    void expect(const ChunkPlace& place);
    [[nodiscard]] Buffer* buffer_of(std::uint64_t layer_index) noexcept;
    [[nodiscard]] std::uint64_t complete_layers() const noexcept;

    Link* link_;
    ReceiverOptions options_;
    Stage stage_ = Stage::closed;
    std::uint16_t version_ = min_protocol_version;  // of the conversation
    Digest compat_hash_{};
    kv::Header header_;
    Digest state_key_{};
    std::uint64_t first_layers_ = 0;
    std::deque<HeldPieces> held_;  // from the next piece on
    std::uint64_t kept_bytes_ = 0;
    std::uint64_t granted_ = 0, taken_ = 0, total_ = 0;
    std::deque<Buffer> buffers_;      // layers [taken_, granted_)
    std::uint64_t buffer_bytes_ = 0;  // of all of them
    std::optional<ChunkWalk> next_;   // the piece that comes next
    std::optional<ChunkWalk> ahead_;  // the piece whose place is posted next
    std::deque<ChunkPlace> posted_;   // between the two
    std::optional<Digest> root_;
    TransferTimes times_;
    TimePoint now_{};
};

}  // namespace hetero::transport
