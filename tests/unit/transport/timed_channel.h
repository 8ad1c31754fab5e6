// A channel that takes the time of a link with some latency and rate, on the clock of a test.
#pragma once
#include <algorithm>
#include <deque>
#include <memory>

#include "transport/link.h"

namespace hetero::test {

// Hands frames on after a latency, and no faster than a rate.
class TimedChannel final : public transport::Channel {
public:
    TimedChannel(std::unique_ptr<transport::Channel> channel, const transport::TimePoint& now, double latency_s,
                 double bytes_per_s)
        : channel_(std::move(channel)), now_(&now), latency_s_(latency_s), bytes_per_s_(bytes_per_s) {}
    Status send(const transport::HeaderBytes& head, transport::Payload payload) override {
        free_at_s_ = std::max(free_at_s_, time()) + static_cast<double>(payload.bytes.size()) / bytes_per_s_;
        held_.push_back({free_at_s_ + latency_s_, head, std::move(payload)});
        return {};
    }
    Status expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) override {
        return channel_->expect(slot, place, std::move(owner));
    }
    bool withdraw(std::uint32_t slot) override { return channel_->withdraw(slot); }
    Result<std::optional<transport::Arrival>> receive() override {
        while (!held_.empty() && held_.front().at_s <= time()) {
            HETERO_CHECK(channel_->send(held_.front().head, held_.front().payload));
            held_.pop_front();
        }
        return channel_->receive();
    }
    bool sent_all() override { return held_.empty(); }
    void cancel() noexcept override { channel_->cancel(); }

private:
    struct Held {
        double at_s;
        transport::HeaderBytes head;
        transport::Payload payload;
    };
    [[nodiscard]] double time() const { return std::chrono::duration<double>(*now_ - transport::TimePoint{}).count(); }
    std::unique_ptr<transport::Channel> channel_;
    const transport::TimePoint* now_;
    double latency_s_, bytes_per_s_, free_at_s_ = 0;
    std::deque<Held> held_;
};

}  // namespace hetero::test
