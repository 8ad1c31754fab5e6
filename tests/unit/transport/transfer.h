// A transfer between a sender and a receiver over a channel that misbehaves, on a clock of its own.
#pragma once
#include <doctest/doctest.h>

#include "memory_channel.h"
#include "synthetic_state.h"
#include "transport/receiver.h"
#include "transport/sender.h"

namespace hetero::test {

using namespace hetero::transport;

class Transfer {
public:
    using Wrap = std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel> end, const TimePoint& now)>;
    Transfer(
        const kv::State& state, std::uint32_t seed, ReceiverOptions options = {}, std::uint64_t max_bytes_per_s = 0,
        const Wrap& wrap = [](auto end, const TimePoint&) { return end; })
        : state_(&state),
          pair_(seed),
          sender_link_(wrap(pair_.end(0), now_), link_options(WireRole::sender), now_),
          receiver_link_(wrap(pair_.end(1), now_), link_options(WireRole::receiver), now_),
          sender_(sender_link_, max_bytes_per_s),
          receiver_(receiver_link_),
          options_(std::move(options)) {}

    MemoryPair& pair() { return pair_; }
    Sender& sender() { return sender_; }
    Receiver& receiver() { return receiver_; }
    const std::vector<kv::Layer>& received() const { return layers_; }
    [[nodiscard]] double elapsed_s() const { return std::chrono::duration<double>(now_ - TimePoint{}).count(); }

    // One tick on both sides. A dead side does nothing.
    void tick(std::chrono::microseconds length = std::chrono::milliseconds(5)) {
        pair_.set_time(now_);
        if (!pair_.dead(0)) step_sender();
        if (!pair_.dead(1)) step_receiver();
        now_ += length;
    }
    // The same of one side alone: the other is of the test's making.
    void tick_one(int side) {
        pair_.set_time(now_);
        if (side == 0) {
            step_sender();
        } else {
            step_receiver();
        }
        now_ += std::chrono::milliseconds(5);
    }
    // Neither side runs for so long.
    void suspend(double s) {
        now_ += std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(s));
    }
    [[nodiscard]] bool sender_over() const { return pair_.dead(0) || sender_.committed() || sender_.error(); }
    [[nodiscard]] bool receiver_over() const { return pair_.dead(1) || receiver_.confirmed() || receiver_.error(); }
    [[nodiscard]] bool over() const { return sender_over() && receiver_over(); }
    void run(double limit_s = 60) {
        while (!over() && elapsed_s() < limit_s) tick();
        REQUIRE_MESSAGE(over(), "not over after ", limit_s, " s");
    }
    [[nodiscard]] bool identical() const {
        if (layers_.size() != total_layers(state_->header)) return false;
        const std::size_t n = state_->header.identity.n_layers;
        for (std::size_t i = 0; i < layers_.size(); ++i)
            if (!same_bytes(layers_[i], state_->layers[i / n][i % n])) return false;
        return true;
    }

    // The receiver holds these pieces, as they are in `from`.
    void hold(const kv::State& from, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
        options_.decides = true;
        held_from_ = &from;
        held_ranges_ = ranges;
    }
    OfferOptions offer;
    std::vector<std::vector<float>> late_logits;
    std::vector<std::int32_t> late_pending;

    double sender_starts_at_s = 0, receiver_opens_at_s = 0, receiver_pause_s = 0;

private:
    void step_sender() {
        sender_.step(now_);
        if (sender_.error() || sender_.committed()) return;
        if (!sender_.started()) {
            if (elapsed_s() < sender_starts_at_s) return;
            walk_.emplace(state_->header);
            tables_.assign(state_->layers.size(), std::vector<kv::LayerChecksums>(state_->header.identity.n_layers));
            REQUIRE(sender_.begin(state_->header, offer));
            return;
        }
        while (!walk_->done() && sender_.may_send(walk_->place().layer_index)) {
            const ChunkPlace& place = walk_->place();
            const auto& array =
                array_of(state_->layers[place.sequence][place.layer].part(place.part), place.array).bytes;
            const auto first = array.begin() + static_cast<std::ptrdiff_t>(place.offset);
            Payload payload = own_payload({first, first + static_cast<std::ptrdiff_t>(place.length)});
            const std::uint32_t crc = crc32c(payload.bytes);
            kv::LayerChecksums& table = tables_[place.sequence][place.layer];
            array_of(place.part == kv::PartId::k ? table.k : table.v, place.array).push_back(crc);
            if (sender_.held(place.piece) == crc) {
                sender_.keep(place);
            } else {
                sender_.send(place, crc, std::move(payload));
            }
            walk_->advance();
        }
        if (walk_->done() && sender_.accepted() && !commit_sent_) {
            commit_sent_ = true;
            kv::Header header = state_->header;
            for (std::size_t i = 0; i < late_logits.size(); ++i) header.sequences[i].logits = late_logits[i];
            for (std::size_t i = 0; i < late_pending.size(); ++i)
                if (late_pending[i] >= 0) header.sequences[i].pending_token = late_pending[i];
            sender_.commit({kv::root_digest(header, tables_), late_logits, late_pending});
        }
    }

    void step_receiver() {
        if (elapsed_s() >= receiver_opens_at_s && !opened_) {
            opened_ = true;
            receiver_.open(options_);
        }
        receiver_.step(now_);
        if (receiver_.offered()) accept();
        if (receiver_.error() || receiver_.confirmed() || !receiver_.accepted()) return;
        while (receiver_.layer_ready() && elapsed_s() >= next_take_s_) {
            next_take_s_ = elapsed_s() + receiver_pause_s;
            ReceivedLayer layer = receiver_.take_layer();
            layers_.push_back(std::move(layer.layer));
            const std::size_t n = receiver_.header().identity.n_layers;
            if ((layers_.size() - 1) % n == 0) received_tables_.emplace_back();
            received_tables_.back().push_back(std::move(layer.checksums));
            while (receiver_.wants_buffer()) {
                auto buffer = allocate_layer(receiver_.header(), receiver_.next_buffer());
                REQUIRE(buffer);
                fill_held(receiver_.next_buffer(), **buffer);
                receiver_.grant(std::move(*buffer));
            }
        }
        if (receiver_.root() && layers_.size() == total_layers(receiver_.header())) {
            const Digest own = kv::root_digest(receiver_.header(), received_tables_);
            if (own == *receiver_.root()) {
                receiver_.agree();
                receiver_.confirm();
            } else {
                receiver_.refuse_root(own);
            }
        }
    }

    // The held pieces of a layer that lie in `from`.
    void fill_held(std::uint64_t layer_index, kv::Layer& layer) const {
        if (held_from_ == nullptr) return;
        for (ChunkWalk walk(receiver_.header()); !walk.done(); walk.advance()) {
            const ChunkPlace& place = walk.place();
            const bool held = std::any_of(held_ranges_.begin(), held_ranges_.end(), [&](const auto& range) {
                return place.piece >= range.first && place.piece - range.first < range.second;
            });
            if (!held || place.layer_index != layer_index) continue;
            const auto& from = array_of(held_from_->layers[place.sequence][place.layer].part(place.part), place.array);
            auto& to = array_of(layer.part(place.part), place.array);
            std::copy_n(from.bytes.begin() + static_cast<std::ptrdiff_t>(place.offset), place.length,
                        to.bytes.begin() + static_cast<std::ptrdiff_t>(place.offset));
        }
    }

    void accept() {
        auto buffers = receiver_.first_buffers();
        REQUIRE(buffers);
        for (std::size_t i = 0; i < buffers->size(); ++i) fill_held(i, *(*buffers)[i]);
        std::vector<HeldPieces> held;
        for (const auto& [first, count] : held_ranges_) held.push_back({first, {}});
        for (ChunkWalk walk(receiver_.header()); !walk.done(); walk.advance()) {
            const ChunkPlace& place = walk.place();
            const auto& from = array_of(held_from_->layers[place.sequence][place.layer].part(place.part), place.array);
            for (std::size_t i = 0; i < held.size(); ++i)
                if (place.piece >= held[i].first && place.piece - held[i].first < held_ranges_[i].second)
                    held[i].crcs.push_back(crc32c(std::span(from.bytes).subspan(place.offset, place.length)));
        }
        receiver_.accept(std::move(*buffers), std::move(held));
    }

    const kv::State* state_;
    const kv::State* held_from_ = nullptr;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> held_ranges_;  // first, count
    TimePoint now_{};
    MemoryPair pair_;
    Link sender_link_, receiver_link_;
    Sender sender_;
    Receiver receiver_;
    ReceiverOptions options_;
    std::optional<ChunkWalk> walk_;
    std::vector<std::vector<kv::LayerChecksums>> tables_, received_tables_;
    std::vector<kv::Layer> layers_;
    bool commit_sent_ = false, opened_ = false;
    double next_take_s_ = 0;
};

inline kv::State make_state(std::uint32_t seed = 1) {
    StateShape shape;
    shape.tokens = {13, 6};
    auto state = synthetic_state(shape, seed);
    REQUIRE_MESSAGE(state, state.error().message);
    return std::move(*state);
}

inline ReceiverOptions narrow() {  // as little granted ahead as possible, so that credit matters
    ReceiverOptions options;
    options.granted_bytes = 1;
    return options;
}

}  // namespace hetero::test
