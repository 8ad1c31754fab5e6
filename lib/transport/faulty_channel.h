// A channel that loses, repeats, damages and delays what one side sends, stops passing it on, or ends the side.
#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "transport/channel.h"
#include "transport/faults.h"

namespace hetero::transport {

class FaultyChannel final : public Channel {
public:
    using TimePoint = std::chrono::steady_clock::time_point;
    FaultyChannel(std::unique_ptr<Channel> channel, const Faults& faults, std::function<TimePoint()> clock,
                  std::function<void()> on_death = {});

    Status send(const HeaderBytes& head, Payload payload) override;
    // What is damaged has to be read here.
    [[nodiscard]] bool reads_device_memory() const noexcept override {
        return !faults_.any() && channel_->reads_device_memory();
    }
    Status expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) override;
    void progress() override { channel_->progress(); }
    void set_in_flight(std::uint64_t bytes) noexcept override { channel_->set_in_flight(bytes); }
    [[nodiscard]] bool withdraw(std::uint32_t slot) override { return channel_->withdraw(slot); }
    Result<std::optional<Arrival>> receive() override;
    [[nodiscard]] bool sent_all() override;
    void cancel() noexcept override { channel_->cancel(); }

    void set_faults(const Faults& faults) { faults_ = faults; }
    [[nodiscard]] bool dead() const noexcept { return dead_; }
    [[nodiscard]] std::int64_t sent() const noexcept { return sent_; }  // frames other than heartbeats

private:
    struct Held {
        HeaderBytes head;
        Payload payload;
        TimePoint due;
        std::int64_t after;  // leaves when due, or when so many frames have been given to send()
    };
    class Draw;
    void hold(Draw& draw, const HeaderBytes& head, const Payload& payload, TimePoint now);
    Status release();

    std::unique_ptr<Channel> channel_;
    Faults faults_;
    std::function<TimePoint()> clock_;
    std::function<void()> on_death_;
    std::int64_t sent_ = 0;
    bool dead_ = false;
    std::deque<Held> held_;
    std::map<std::uint64_t, std::uint32_t> times_sent_;  // by kind and number
};

}  // namespace hetero::transport
