#include "transport/wire_stream.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>

#include "transport/send_window.h"

namespace hetero::transport {
namespace {

constexpr std::uint64_t worth_measuring = 16U << 20;  // smaller states have arrived before a link is measured

template <class Machine>
Status status_of(const Machine& machine) {
    if (machine.error()) return tl::unexpected<Error>(*machine.error());
    return {};
}

// Buffers of chunks on their way; they come back when the last frame that uses them is gone.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
public:
    using Buffer = std::vector<std::byte>;
    std::shared_ptr<Buffer> take(std::size_t bytes) {
        auto buffer = std::make_unique<Buffer>();
        {
            const std::lock_guard lock(mutex_);
            if (!free_.empty()) {
                buffer = std::move(free_.back());
                free_.pop_back();
            }
        }
        if (buffer->size() < bytes) buffer->resize(bytes);
        return {buffer.release(),
                [pool = shared_from_this()](Buffer* done) { pool->give(std::unique_ptr<Buffer>(done)); }};
    }

private:
    void give(std::unique_ptr<Buffer> buffer) {
        const std::lock_guard lock(mutex_);
        if (free_.size() < 64) free_.push_back(std::move(buffer));
    }
    std::mutex mutex_;
    std::vector<std::unique_ptr<Buffer>> free_;
};

class WireSink final : public kv::Sink {
public:
    WireSink(Gate& gate, Sender& sender, WireSinkOptions options)
        : gate_(&gate),
          sender_(&sender),
          name_(sender.link().options().peer),
          checksums_(options.checksums),
          measure_(std::move(options.measure)) {}
    ~WireSink() override {
        if (committed_) return;
        const auto lock = gate_->enter();
        sender_->abandon();
    }

    Status begin(const kv::Header& header) override {
        try {
            return begin_checked(header);
        } catch (const std::bad_alloc&) {
            return fail(Errc::resource, "{}: no memory to offer the state", name_);
        }
    }

    Status write_layer(const kv::Layer& layer) override { return send_layer(layer, nullptr); }
    Status write_shared(std::shared_ptr<const kv::Layer> layer) override { return send_layer(*layer, layer); }

    Status write_remote(std::shared_ptr<const kv::RemoteLayer> layer) override {
        if (!sender_->link().reads_device_memory()) return kv::Sink::write_remote(std::move(layer));
        try {
            return send_remote(layer);
        } catch (const std::bad_alloc&) {
            return fail(Errc::resource, "{}: no memory to send a layer", name_);
        }
    }

    Status complete(const kv::Header& header) override {
        late_ = header_.late_logits;
        if (!late_) return fail(Errc::internal, "{}: it has its logits", name_);
        header_.take_logits_of(header);
        if (const Status checked = kv::check_header(header_); !checked) return fail_with(checked.error(), name_);
        return {};
    }

    Status commit() override {
        if (!walk_ || !walk_->done()) return fail(Errc::internal, "{}: committed before the last layer", name_);
        if (header_.late_logits) return fail(Errc::internal, "{}: committed before the logits", name_);
        const Digest root = kv::root_digest(header_, tables_);
        const Commit last = late_ ? commit_of(root, header_) : Commit{root, {}, {}};
        auto lock = gate_->enter();
        gate_->wait(lock, [&] { return sender_->may_commit() || sender_->error(); });
        HETERO_CHECK(status_of(*sender_));
        sender_->commit(last);
        gate_->nudge();
        gate_->wait(lock, [&] { return sender_->committed() || sender_->error(); });
        if (!sender_->committed()) return status_of(*sender_);
        committed_ = true;
        return {};
    }

    void abort(const Error& reason) noexcept override {
        const auto lock = gate_->enter();
        if (!sender_->committed()) sender_->link().give_up(reason);
        gate_->nudge();
    }

    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    Status begin_checked(const kv::Header& header) {
        header_ = header;
        HETERO_CHECK(adapt_to_link());
        if (header_.tokens_per_chunk == 0) header_.tokens_per_chunk = kv::choose_tokens_per_chunk(header_);
        HETERO_CHECK(kv::check_header(header_));
        walk_.emplace(header_);
        tables_.assign(header_.sequences.size(), std::vector<kv::LayerChecksums>(header_.identity.n_layers));
        auto lock = gate_->enter();
        HETERO_CHECK(status_of(*sender_));
        HETERO_CHECK(sender_->begin(header_, {.resumable = checksums_}));
        gate_->nudge();
        gate_->wait(lock, [&] { return sender_->accepted() || sender_->error(); });
        return status_of(*sender_);
    }

    Status adapt_to_link() {
        if (!measure_ || header_.payload_bytes() < worth_measuring) return {};
        HETERO_TRY(const LinkRate rate, measure_());
        const auto lock = gate_->enter();
        sender_->set_window(window_for(rate));
        return {};
    }

    Status send_layer(const kv::Layer& layer, const std::shared_ptr<const kv::Layer>& owner) {
        if (!walk_ || walk_->done()) return fail(Errc::internal, "{}: a layer too many", name_);
        const std::uint64_t index = walk_->place().layer_index;
        const std::uint32_t sequence = walk_->place().sequence, number = walk_->place().layer;
        if (const Status checked = kv::check_layer(header_, sequence, number, layer); !checked)
            return fail_with(checked.error(), name_);
        try {
            {
                const auto lock = gate_->enter();
                sender_->layer_begins(std::chrono::steady_clock::now());
            }
            for (; !walk_->done() && walk_->place().layer_index == index; walk_->advance())
                HETERO_CHECK(send(walk_->place(), layer, owner));
            const auto lock = gate_->enter();
            sender_->layer_given(index);
        } catch (const std::bad_alloc&) {
            return fail(Errc::resource, "{}: no memory to send layer {}", name_, number);
        }
        return {};
    }

    // Checksums are those of the device: the bytes are not read here.
    Status send_remote(const std::shared_ptr<const kv::RemoteLayer>& layer) {
        if (!walk_ || walk_->done()) return fail(Errc::internal, "{}: a layer too many", name_);
        const std::uint64_t index = walk_->place().layer_index;
        std::vector<ChunkPlace> places;
        std::vector<std::span<const std::byte>> pieces;
        for (; !walk_->done() && walk_->place().layer_index == index; walk_->advance()) {
            const ChunkPlace& place = places.emplace_back(walk_->place());
            const std::span<const std::byte> all = layer->bytes(place.part, static_cast<std::size_t>(place.array));
            if (all.size() < place.offset + place.length)
                return fail(Errc::internal, "{}: layer {} has {} bytes where {} are to be sent", name_, place.layer,
                            all.size(), place.offset + place.length);
            pieces.push_back(all.subspan(place.offset, place.length));
        }
        std::vector<std::uint32_t> crcs(pieces.size());
        if (const Status made = layer->checksums(pieces, crcs); !made) return fail_with(made.error(), name_);
        {
            const auto lock = gate_->enter();
            sender_->layer_begins(std::chrono::steady_clock::now());
        }
        for (std::size_t i = 0; i < places.size(); ++i) {
            note(places[i], crcs[i]);
            HETERO_CHECK(hand_over(places[i], crcs[i], Payload{layer, pieces[i], layer.get()}));
        }
        const auto lock = gate_->enter();
        sender_->layer_given(index);
        return {};
    }

    void note(const ChunkPlace& place, std::uint32_t crc) {
        kv::LayerChecksums& table = tables_[place.sequence][place.layer];
        array_of(place.part == kv::PartId::k ? table.k : table.v, place.array).push_back(crc);
    }

    // Where the layer came with its checksum.
    [[nodiscard]] std::optional<std::uint32_t> verified_crc(const ChunkPlace& place, const kv::Layer& layer) const {
        const kv::LayerChecksums* verified = kv::verified_checksums(header_, layer);
        if (verified == nullptr) return std::nullopt;
        const auto& crcs = array_of(place.part == kv::PartId::k ? verified->k : verified->v, place.array);
        return place.chunk < crcs.size() ? std::optional(crcs[place.chunk]) : std::nullopt;
    }

    Status send(const ChunkPlace& place, const kv::Layer& layer, const std::shared_ptr<const kv::Layer>& owner) {
        Payload payload{
            owner, std::span(array_of(layer.part(place.part), place.array).bytes).subspan(place.offset, place.length)};
        std::shared_ptr<BufferPool::Buffer> buffer;
        if (!owner) {
            // Copied, so that the caller may reuse its layer while frames are on their way or have to be sent again.
            // The buffers stay in cache; copy and checksum overlap with the transfer of earlier chunks.
            buffer = pool_->take(place.length);
        }
        std::optional<std::uint32_t> known;
        if (!checksums_) known = 0;
        if (checksums_ && owner) known = verified_crc(place, layer);
        std::uint32_t crc = known.value_or(0);
        for (std::size_t at = 0; (buffer || !known) && at < place.length; at += checksum_slice_bytes) {
            auto slice = payload.bytes.subspan(at, std::min<std::size_t>(checksum_slice_bytes, place.length - at));
            if (buffer) {
                std::copy(slice.begin(), slice.end(), buffer->data() + at);
                slice = std::span<const std::byte>(*buffer).subspan(at, slice.size());
            }
            if (!known) crc = crc32c(slice, crc);
            gate_->keep_moving();
        }
        if (buffer) {
            payload.bytes = std::span<const std::byte>(*buffer).first(place.length);
            payload.owner = std::move(buffer);
        }
        note(place, crc);
        return hand_over(place, crc, std::move(payload));
    }

    Status hand_over(const ChunkPlace& place, std::uint32_t crc, Payload payload) {
        auto lock = gate_->enter();
        gate_->wait(lock, [&] { return sender_->may_send(place.layer_index) || sender_->error(); });
        HETERO_CHECK(status_of(*sender_));
        if (checksums_ && sender_->held(place.piece) == crc) {
            sender_->keep(place);
            return {};
        }
        sender_->send(place, crc, std::move(payload));
        gate_->nudge();
        return status_of(*sender_);
    }

    Gate* gate_;
    Sender* sender_;
    std::string name_;
    bool checksums_;
    std::function<Result<LinkRate>()> measure_;
    kv::Header header_;
    std::optional<ChunkWalk> walk_;
    std::vector<std::vector<kv::LayerChecksums>> tables_;  // [sequence][layer]
    std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
    bool committed_ = false, late_ = false;  // late_: COMMIT brings the logits
};

class WireSource final : public kv::Source {
public:
    WireSource(Gate& gate, Receiver& receiver, std::shared_ptr<Resume> resume, bool confirm_later)
        : gate_(&gate),
          receiver_(&receiver),
          name_(receiver.link().options().peer),
          header_(receiver.header()),
          resume_(std::move(resume)),
          confirm_later_(confirm_later) {
        tables_.assign(header_.sequences.size(), std::vector<kv::LayerChecksums>(header_.identity.n_layers));
    }

    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }

    Result<kv::Layer> read_layer() override {
        if (read_ == total_layers(header_)) return fail(Errc::internal, "{}: read beyond the last layer", name_);
        auto lock = gate_->enter();
        gate_->wait(lock, [&] { return receiver_->layer_ready() || receiver_->error(); });
        // What has arrived whole before the peer was lost need not be sent again.
        if (!resume_ || !receiver_->layer_ready()) HETERO_CHECK(status_of(*receiver_));
        ReceivedLayer received = receiver_->take_layer();
        HETERO_CHECK(grant(lock));
        const std::uint32_t n_layers = header_.identity.n_layers;
        if (receiver_->link().options().verify_chunks)
            received.layer.verified = std::make_shared<const kv::VerifiedPieces>(
                kv::VerifiedPieces{header_.tokens_per_chunk, received.checksums});
        tables_[read_ / n_layers][read_ % n_layers] = std::move(received.checksums);
        ++read_;
        return std::move(received.layer);
    }

    Status read_into(kv::Layer& layer) override {
        receiver_->layers().give(std::move(layer));
        HETERO_TRY(layer, read_layer());
        return {};
    }

    Status finish() override {
        if (read_ != total_layers(header_)) return fail(Errc::internal, "{}: finished before the last layer", name_);
        Digest own{};
        if (!header_.late_logits) own = kv::root_digest(header_, tables_);
        auto lock = gate_->enter();
        gate_->wait(lock, [&] { return receiver_->root() || receiver_->error(); });
        HETERO_CHECK(status_of(*receiver_));
        if (header_.late_logits) {
            header_.take_logits_of(receiver_->header());
            lock.unlock();
            own = kv::root_digest(header_, tables_);
            lock.lock();
        }
        if (*receiver_->root() == own) {
            receiver_->agree();
            if (!confirm_later_) receiver_->confirm();
        } else {
            receiver_->refuse_root(own);
        }
        gate_->nudge();
        return status_of(*receiver_);
    }

    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    // Buffers are made outside the lock: fresh pages take as long as a transfer.
    Status grant(Gate::Lock& lock) {
        while (receiver_->wants_buffer()) {
            const std::uint64_t next = receiver_->next_buffer();
            lock.unlock();
            auto buffer = receiver_->layers().take(header_, next);
            if (buffer && resume_)
                if (Status filled = resume_->fill(next, **buffer); !filled) buffer = tl::unexpected(filled.error());
            lock.lock();
            if (!buffer) {
                receiver_->link().give_up(buffer.error());
                gate_->nudge();
                return tl::unexpected<Error>(buffer.error());
            }
            receiver_->grant(std::move(*buffer));
            gate_->nudge();
        }
        return {};
    }

    Gate* gate_;
    Receiver* receiver_;
    std::string name_;
    kv::Header header_;
    std::vector<std::vector<kv::LayerChecksums>> tables_;  // [sequence][layer]
    std::uint64_t read_ = 0;
    std::shared_ptr<Resume> resume_;
    bool confirm_later_;
};

// The first layers, with what an earlier transfer has of them. The lock is not held: it takes as long as reading that.
Result<std::vector<std::shared_ptr<kv::Layer>>> first_buffers(Receiver& receiver, Resume& resume) {
    HETERO_TRY(auto buffers, receiver.first_buffers());
    for (std::size_t i = 0; i < buffers.size(); ++i) HETERO_CHECK(resume.fill(i, *buffers[i]));
    return buffers;
}

}  // namespace

std::unique_ptr<kv::Sink> wire_sink(Gate& gate, Sender& sender, WireSinkOptions options) {
    return std::make_unique<WireSink>(gate, sender, std::move(options));
}

Result<std::unique_ptr<kv::Source>> wire_source(Gate& gate, Receiver& receiver, ReceiverOptions options,
                                                std::shared_ptr<Resume> resume, bool confirm_later) {
    options.decides = resume != nullptr;
    auto lock = gate.enter();
    receiver.open(std::move(options));
    gate.nudge();
    gate.wait(lock, [&] { return receiver.offered() || receiver.accepted() || receiver.error(); });
    if (receiver.offered() && !receiver.error()) {
        lock.unlock();
        auto held = resume->look_for(receiver.header(), receiver.state_key());
        auto buffers = first_buffers(receiver, *resume);
        lock.lock();
        if (buffers) {
            receiver.accept(std::move(*buffers), std::move(held));
        } else {
            receiver.reject(buffers.error());
        }
        gate.nudge();
    }
    HETERO_CHECK(status_of(receiver));
    return std::unique_ptr<kv::Source>(std::make_unique<WireSource>(gate, receiver, std::move(resume), confirm_later));
}

Status confirm(Gate& gate, Receiver& receiver) {
    auto lock = gate.enter();
    if (!receiver.error()) {
        receiver.confirm();
        gate.nudge();
    }
    return status_of(receiver);
}

}  // namespace hetero::transport
