// Two ends of a channel in memory, with faults drawn from a seed and a clock that the test moves.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "transport/channel.h"
#include "transport/link.h"

namespace hetero::test {

struct Faults {
    // Probabilities per frame.
    double drop = 0, duplicate = 0, reorder = 0, flip_payload = 0, flip_header = 0, truncate = 0;
    double max_delay_s = 0;
    std::int64_t stall_at = -1;  // from the frame of this number on, frames other than heartbeats no longer arrive
    std::int64_t dead_at = -1;   // the sending end dies here: nothing arrives any more
};

class MemoryPair {
public:
    explicit MemoryPair(std::uint32_t seed) : random_(seed) {}

    // Frames that end 0 (or 1) sends suffer these.
    void set_faults(int end, const Faults& faults) { sides_[end].faults = faults; }
    void set_time(transport::TimePoint now) { now_ = now; }
    // Puts raw bytes before the other end, as a foreign program would.
    void inject(int from, const transport::HeaderBytes& head, std::vector<std::byte> payload) {
        sides_[from].flying.push_back({now_, next_order_++, head, std::move(payload)});
    }
    [[nodiscard]] bool dead(int end) const { return sides_[end].dead; }
    [[nodiscard]] std::int64_t sent(int end) const { return sides_[end].count; }

    class End final : public transport::Channel {
    public:
        End(MemoryPair& pair, int self) : pair_(&pair), self_(self) {}
        Status send(const transport::HeaderBytes& head, transport::Payload payload) override {
            pair_->send(self_, head, {payload.bytes.begin(), payload.bytes.end()});
            return {};
        }
        Status expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) override {
            places_[slot] = {place, std::move(owner)};
            return {};
        }
        Result<std::optional<transport::Arrival>> receive() override {
            auto flight = pair_->take(1 - self_);
            if (!flight) return std::optional<transport::Arrival>{};
            transport::Arrival arrival;
            arrival.head = flight->head;
            const auto header = transport::decode_frame(flight->head);
            if (header && header->kind == transport::FrameKind::chunk) {
                const auto place = places_.find(header->slot);
                if (place != places_.end()) {
                    const auto target = place->second.first;
                    const std::size_t n = std::min(target.size(), flight->payload.size());
                    std::copy_n(flight->payload.begin(), n, target.begin());
                    arrival.placed = true;
                    arrival.placed_bytes = target.first(n);
                    places_.erase(place);
                }
            } else {
                arrival.inline_payload = std::move(flight->payload);
            }
            return std::optional<transport::Arrival>(std::move(arrival));
        }
        bool sent_all() override { return true; }
        void cancel() noexcept override { places_.clear(); }
        [[nodiscard]] std::size_t expected_places() const { return places_.size(); }

    private:
        MemoryPair* pair_;
        int self_;
        std::map<std::uint32_t, std::pair<std::span<std::byte>, std::shared_ptr<void>>> places_;
    };
    std::unique_ptr<End> end(int self) { return std::make_unique<End>(*this, self); }

private:
    struct Flight {
        transport::TimePoint arrives;
        std::uint64_t order;
        transport::HeaderBytes head;
        std::vector<std::byte> payload;
    };
    struct Side {
        Faults faults;
        std::deque<Flight> flying;
        std::int64_t count = 0;
        bool dead = false;
    };

    bool chance(double p) { return p > 0 && std::uniform_real_distribution<>(0, 1)(random_) < p; }

    void send(int from, const transport::HeaderBytes& head, std::vector<std::byte> payload) {
        Side& side = sides_[from];
        const std::int64_t number = side.count++;
        if (side.faults.dead_at >= 0 && number >= side.faults.dead_at) side.dead = true;
        if (side.dead) return;
        const auto header = transport::decode_frame(head);
        const bool heartbeat = header && header->kind == transport::FrameKind::heartbeat;
        if (side.faults.stall_at >= 0 && number >= side.faults.stall_at && !heartbeat) return;
        if (chance(side.faults.drop)) return;
        const int copies = chance(side.faults.duplicate) ? 2 : 1;
        for (int i = 0; i < copies; ++i) {
            Flight flight{now_, next_order_++, head, payload};
            if (side.faults.max_delay_s > 0)
                flight.arrives +=
                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(
                        std::uniform_real_distribution<>(0, side.faults.max_delay_s)(random_)));
            if (chance(side.faults.flip_header)) flip(std::span(flight.head));
            if (chance(side.faults.flip_payload) && !flight.payload.empty()) flip(std::span(flight.payload));
            if (chance(side.faults.truncate) && !flight.payload.empty())
                flight.payload.resize(random_() % flight.payload.size());
            const bool early = chance(side.faults.reorder) && !side.flying.empty();
            side.flying.insert(early
                                   ? side.flying.end() - static_cast<std::ptrdiff_t>(1 + random_() % side.flying.size())
                                   : side.flying.end(),
                               std::move(flight));
        }
    }

    template <class Bytes>
    void flip(Bytes bytes) {
        bytes[random_() % bytes.size()] ^= static_cast<std::byte>(1U << random_() % 8);
    }

    // A frame that is due, without regard to those before it that are not: delays reorder too.
    std::optional<Flight> take(int from) {
        auto& flying = sides_[from].flying;
        const auto due = std::find_if(flying.begin(), flying.end(), [&](const Flight& f) { return f.arrives <= now_; });
        if (due == flying.end()) return std::nullopt;
        Flight out = std::move(*due);
        flying.erase(due);
        return out;
    }

    std::mt19937 random_;
    transport::TimePoint now_{};
    std::uint64_t next_order_ = 0;
    Side sides_[2];
};

}  // namespace hetero::test
