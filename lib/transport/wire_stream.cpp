#include "transport/wire_stream.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>

#include "base/clock.h"
#include "base/statistics.h"
#include "transport/messages.h"

namespace hetero::transport {
namespace {

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
    WireSink(Gate& gate, Sender& sender) : gate_(&gate), sender_(&sender), name_(sender.link().options().peer) {}
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

    Status write_layer(const kv::Layer& layer) override {
        if (!walk_ || walk_->done()) return fail(Errc::internal, "{}: a layer too many", name_);
        const std::uint64_t index = walk_->place().layer_index;
        const std::uint32_t sequence = walk_->place().sequence, number = walk_->place().layer;
        if (const Status checked = kv::check_layer(header_, sequence, number, layer); !checked)
            return fail_with(checked.error(), name_);
        try {
            for (; !walk_->done() && walk_->place().layer_index == index; walk_->advance())
                HETERO_CHECK(send(walk_->place(), layer, tables_[sequence][number]));
        } catch (const std::bad_alloc&) {
            return fail(Errc::resource, "{}: no memory to send layer {}", name_, number);
        }
        return {};
    }

    Status commit() override {
        if (!walk_ || !walk_->done()) return fail(Errc::internal, "{}: committed before the last layer", name_);
        const Digest root = kv::root_digest(header_, tables_);
        auto lock = gate_->enter();
        HETERO_CHECK(failure());
        sender_->commit(root);
        gate_->nudge();
        gate_->wait(lock, [&] { return sender_->committed() || sender_->error(); });
        if (!sender_->committed()) return failure();
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
        if (header_.tokens_per_chunk == 0) header_.tokens_per_chunk = kv::choose_tokens_per_chunk(header_);
        HETERO_CHECK(kv::check_header(header_));
        walk_.emplace(header_);
        tables_.assign(header_.sequences.size(), std::vector<kv::LayerChecksums>(header_.identity.n_layers));
        auto lock = gate_->enter();
        HETERO_CHECK(failure());
        HETERO_CHECK(sender_->begin(header_));
        gate_->nudge();
        gate_->wait(lock, [&] { return sender_->accepted() || sender_->error(); });
        return failure();
    }

    Status failure() const {
        if (sender_->error()) return tl::unexpected<Error>(*sender_->error());
        return {};
    }

    Status send(const ChunkPlace& place, const kv::Layer& layer, kv::LayerChecksums& checksums) {
        const std::span<const std::byte> bytes =
            std::span(array_of(layer.part(place.part), place.array).bytes).subspan(place.offset, place.length);
        // Copied, so that the caller may reuse its layer while frames are on their way or have to be sent again. The
        // buffers stay in cache; copy and checksum overlap with the transfer of earlier chunks.
        auto buffer = pool_->take(bytes.size());
        std::copy(bytes.begin(), bytes.end(), buffer->begin());
        const std::span<const std::byte> copy = std::span(*buffer).first(bytes.size());
        const std::uint32_t crc = crc32c(copy);
        array_of(place.part == kv::PartId::k ? checksums.k : checksums.v, place.array).push_back(crc);

        auto lock = gate_->enter();
        gate_->wait(lock, [&] { return sender_->may_send(place.layer_index) || sender_->error(); });
        HETERO_CHECK(failure());
        sender_->send(place, crc, {std::move(buffer), copy});
        gate_->nudge();
        return failure();
    }

    Gate* gate_;
    Sender* sender_;
    std::string name_;
    kv::Header header_;
    std::optional<ChunkWalk> walk_;
    std::vector<std::vector<kv::LayerChecksums>> tables_;  // [sequence][layer]
    std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
    bool committed_ = false;
};

class WireSource final : public kv::Source {
public:
    WireSource(Gate& gate, Receiver& receiver)
        : gate_(&gate), receiver_(&receiver), name_(receiver.link().options().peer), header_(receiver.header()) {
        tables_.assign(header_.sequences.size(), std::vector<kv::LayerChecksums>(header_.identity.n_layers));
    }

    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }

    Result<kv::Layer> read_layer() override {
        if (read_ == total_layers(header_)) return fail(Errc::internal, "{}: read beyond the last layer", name_);
        auto lock = gate_->enter();
        gate_->wait(lock, [&] { return receiver_->layer_ready() || receiver_->error(); });
        HETERO_CHECK(failure());
        ReceivedLayer received = receiver_->take_layer();
        HETERO_CHECK(grant(lock));
        const std::uint32_t n_layers = header_.identity.n_layers;
        tables_[read_ / n_layers][read_ % n_layers] = std::move(received.checksums);
        ++read_;
        return std::move(received.layer);
    }

    Status finish() override {
        if (read_ != total_layers(header_)) return fail(Errc::internal, "{}: finished before the last layer", name_);
        const Digest own = kv::root_digest(header_, tables_);
        auto lock = gate_->enter();
        gate_->wait(lock, [&] { return receiver_->root() || receiver_->error(); });
        HETERO_CHECK(failure());
        if (*receiver_->root() == own) {
            receiver_->confirm();
        } else {
            receiver_->refuse_root(own);
        }
        gate_->nudge();
        return failure();
    }

    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    Status failure() const {
        if (receiver_->error()) return tl::unexpected<Error>(*receiver_->error());
        return {};
    }

    // Buffers are made outside the lock: fresh pages take as long as a transfer.
    Status grant(Gate::Lock& lock) {
        while (receiver_->wants_buffer()) {
            const std::uint64_t next = receiver_->next_buffer();
            lock.unlock();
            auto buffer = allocate_layer(header_, next / header_.identity.n_layers, next % header_.identity.n_layers);
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
};

// Times what goes to a peer and back. The gate's lock is held but while it waits.
class LinkMeter {
public:
    LinkMeter(Gate& gate, Sender& sender) : gate_(gate), sender_(sender) {}

    Result<std::optional<LinkFigures>> run(const kv::Header& header) {
        auto lock = gate_.enter();
        HETERO_CHECK(failure());
        HETERO_CHECK(sender_.greet(header.identity, protocol_version_of(header)));
        gate_.nudge();
        gate_.wait(lock, [&] { return sender_.greeted() || sender_.error(); });
        HETERO_CHECK(failure());
        if (!sender_.may_probe()) return std::nullopt;
        LinkFigures figures;
        std::vector<double> round_trips;
        for (int i = 0; i < 16; ++i) {
            HETERO_TRY(round_trips.emplace_back(), timed(lock, [&] { sender_.probe({}); }));
        }
        figures.latency_us_p50 = percentile(round_trips, 50) * 1e6;
        figures.latency_us_p99 = percentile(round_trips, 99) * 1e6;
        HETERO_CHECK(send(lock, {4, 256U << 10}, figures));
        // What is over before a link is at its speed says little.
        if (figures.seconds < 0.02) HETERO_CHECK(send(lock, {12, 1U << 20}, figures));
        return figures;
    }

private:
    // Seconds from `start` to the answer.
    template <class Start>
    Result<double> timed(Gate::Lock& lock, Start start) {
        const std::uint64_t answers = sender_.probe_answers();
        const auto began = std::chrono::steady_clock::now();
        start();
        gate_.nudge();
        gate_.wait(lock, [&] { return sender_.probe_answers() > answers || sender_.error(); });
        HETERO_CHECK(failure());
        return seconds_since(began);
    }

    Status send(Gate::Lock& lock, const Probe& probe, LinkFigures& figures) {
        HETERO_CHECK(timed(lock, [&] { sender_.probe(probe); }));
        const std::vector<std::byte> data(probe.bytes, std::byte{0x5A});
        HETERO_TRY(const double seconds, timed(lock, [&] {
                       for (std::uint32_t i = 0; i < probe.chunks; ++i) {
                           lock.unlock();
                           Payload payload = own_payload(data);
                           const std::uint32_t crc = crc32c(payload.bytes);
                           lock.lock();
                           sender_.send_probe_chunk(i, crc, std::move(payload));
                           gate_.nudge();
                       }
                   }));
        // The answer's own way back is no part of the rate.
        figures.bytes = std::uint64_t{probe.chunks} * probe.bytes;
        figures.seconds = std::max(seconds - figures.latency_us_p50 * 1e-6 / 2, seconds / 2);
        figures.bytes_per_s = static_cast<double>(figures.bytes) / figures.seconds;
        return {};
    }

    Status failure() const {
        if (sender_.error()) return tl::unexpected<Error>(*sender_.error());
        return {};
    }

    Gate& gate_;
    Sender& sender_;
};

}  // namespace

Result<std::optional<LinkFigures>> measure_link(Gate& gate, Sender& sender, const kv::Header& header) {
    try {
        return LinkMeter(gate, sender).run(header);
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: no memory to measure the link", sender.link().options().peer);
    }
}

std::unique_ptr<kv::Sink> wire_sink(Gate& gate, Sender& sender) { return std::make_unique<WireSink>(gate, sender); }

Result<std::unique_ptr<kv::Source>> wire_source(Gate& gate, Receiver& receiver, ReceiverOptions options) {
    auto lock = gate.enter();
    receiver.open(std::move(options));
    gate.nudge();
    gate.wait(lock, [&] { return receiver.accepted() || receiver.error(); });
    if (receiver.error()) return tl::unexpected<Error>(*receiver.error());
    return std::unique_ptr<kv::Source>(std::make_unique<WireSource>(gate, receiver));
}

}  // namespace hetero::transport
