// Two ends of a channel in memory, each behind the faults of the library, with a clock that the test moves.
#pragma once
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "transport/faulty_channel.h"
#include "transport/link.h"

namespace hetero::test {

inline transport::LinkOptions link_options(transport::WireRole role) {
    transport::LinkOptions options;
    options.role = role;
    options.peer = role == transport::WireRole::sender ? "rank 1" : "rank 0";
    options.session = role == transport::WireRole::sender ? 0xABCDEF : 0;
    return options;
}

class MemoryPair {
public:
    explicit MemoryPair(std::uint32_t seed) : seed_(seed) {}

    // Frames that end 0 (or 1) sends from now on suffer these, by the seed of the pair.
    void set_faults(int end, transport::Faults faults) {
        faults.seed = 2 * seed_ + static_cast<std::uint32_t>(end);
        sides_[end].channel->set_faults(faults);
    }
    void set_time(transport::TimePoint now) { now_ = now; }
    // Puts raw bytes before the other end, as a foreign program would.
    void inject(int from, const transport::HeaderBytes& head, std::vector<std::byte> payload) {
        sides_[from].flying.push_back({head, std::move(payload)});
    }
    // Sees, and may change, each frame that an end has sent.
    std::function<void(int end, transport::HeaderBytes& head, std::vector<std::byte>& payload)> tamper;
    bool device_memory = false;   // it sends from there, as an MPI may
    std::size_t from_device = 0;  // payloads that came from there
    [[nodiscard]] bool dead(int end) const { return sides_[end].channel->dead(); }
    [[nodiscard]] std::int64_t sent(int end) const { return sides_[end].channel->sent(); }

    class End final : public transport::Channel {
    public:
        End(MemoryPair& pair, int self) : pair_(&pair), self_(self) {}
        Status send(const transport::HeaderBytes& head, transport::Payload payload) override {
            transport::HeaderBytes sent = head;
            std::vector<std::byte> bytes(payload.bytes.size());
            if (payload.remote != nullptr) {
                ++pair_->from_device;
                HETERO_CHECK(payload.remote->read(payload.bytes, bytes));
            } else {
                std::copy(payload.bytes.begin(), payload.bytes.end(), bytes.begin());
            }
            if (pair_->tamper) pair_->tamper(self_, sent, bytes);
            pair_->inject(self_, sent, std::move(bytes));
            return {};
        }
        [[nodiscard]] bool reads_device_memory() const noexcept override { return pair_->device_memory; }
        Status expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) override {
            places_[slot] = {place, std::move(owner)};
            return {};
        }
        bool withdraw(std::uint32_t slot) override { return places_.erase(slot) != 0; }
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
    // Once for each end; the pair outlives it.
    std::unique_ptr<transport::Channel> end(int self) {
        auto channel = std::make_unique<transport::FaultyChannel>(std::make_unique<End>(*this, self),
                                                                  transport::Faults{}, [this] { return now_; });
        sides_[self].channel = channel.get();
        return channel;
    }

private:
    struct Flight {
        transport::HeaderBytes head;
        std::vector<std::byte> payload;
    };
    struct Side {
        transport::FaultyChannel* channel = nullptr;
        std::deque<Flight> flying;
    };

    std::optional<Flight> take(int from) {
        auto& flying = sides_[from].flying;
        if (flying.empty()) return std::nullopt;
        Flight out = std::move(flying.front());
        flying.pop_front();
        return out;
    }

    std::uint32_t seed_;
    transport::TimePoint now_{};
    Side sides_[2];
};

}  // namespace hetero::test
