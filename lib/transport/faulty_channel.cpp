#include "transport/faulty_channel.h"

#include <algorithm>
#include <limits>

namespace hetero::transport {
namespace {

constexpr std::int64_t max_overtakers = 4;  // frames that may pass one that is out of order
constexpr double longest_reorder_s = 0.01;

std::chrono::steady_clock::duration in_clock(double s) {
    return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(s));
}

}  // namespace

// Numbers that depend on the seed and on which frame it is, how often sent before, and not on what happened in between:
// acknowledgements and heartbeats come at other times in every run.
class FaultyChannel::Draw {
public:
    Draw(std::uint32_t seed, std::uint64_t frame, std::uint32_t repeat)
        : state_((std::uint64_t{seed} << 32) ^ (frame * 0x9E3779B97F4A7C15ULL) ^ (std::uint64_t{repeat} << 20)) {
        next();
    }
    std::uint64_t next() {  // SplitMix64 (Steele, Lea, Flood 2014)
        std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        return z ^ (z >> 31);
    }
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    bool chance(double p) { return unit() < p; }

private:
    std::uint64_t state_;
};

FaultyChannel::FaultyChannel(std::unique_ptr<Channel> channel, const Faults& faults, std::function<TimePoint()> clock,
                             std::function<void()> on_death)
    : channel_(std::move(channel)), faults_(faults), clock_(std::move(clock)), on_death_(std::move(on_death)) {}

Status FaultyChannel::send(const HeaderBytes& head, Payload payload) {
    if (dead_) return {};
    const auto header = decode_frame(head);
    const bool heartbeat = header && header->kind == FrameKind::heartbeat;
    const std::int64_t number = heartbeat ? sent_ : sent_++;
    if (faults_.die_after >= 0 && !heartbeat && number >= faults_.die_after) {
        dead_ = true;
        held_.clear();
        channel_->cancel();
        if (on_death_) on_death_();
        return {};
    }
    if (faults_.stall_after >= 0 && number >= faults_.stall_after && !heartbeat) return {};
    const std::uint64_t frame =
        header ? std::uint64_t{static_cast<std::uint8_t>(header->kind)} << 32 | header->seq : ~0ULL;
    Draw draw(faults_.seed, frame, times_sent_[frame]++);
    if (draw.chance(faults_.drop)) return release();
    const TimePoint now = clock_();
    const bool twice = draw.chance(faults_.duplicate);
    hold(draw, head, payload, now);
    if (twice) hold(draw, head, payload, now);
    return release();
}

void FaultyChannel::hold(Draw& draw, const HeaderBytes& head, const Payload& payload, TimePoint now) {
    Held held{head, payload, now, std::numeric_limits<std::int64_t>::max()};
    if (faults_.max_delay_s > 0) held.due += in_clock(draw.unit() * faults_.max_delay_s);
    if (draw.chance(faults_.flip_header)) {
        const std::uint64_t bit = draw.next() % (8 * head.size());
        held.head[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    }
    const bool flip = draw.chance(faults_.flip), truncate = draw.chance(faults_.truncate);
    if ((flip || truncate) && !payload.bytes.empty()) {
        std::vector<std::byte> bytes(payload.bytes.begin(), payload.bytes.end());
        if (flip) {
            const std::uint64_t bit = draw.next() % (8 * bytes.size());
            bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        }
        if (truncate) bytes.resize(draw.next() % bytes.size());
        held.payload = own_payload(std::move(bytes));
    }
    if (draw.chance(faults_.reorder)) {
        held.after = sent_ + 1 + static_cast<std::int64_t>(draw.next() % max_overtakers);
        held.due = std::max(held.due, now + in_clock(longest_reorder_s));
    }
    held_.push_back(std::move(held));
}

// What is due leaves, without regard to those before it that are not.
Status FaultyChannel::release() {
    const TimePoint now = clock_();
    for (auto it = held_.begin(); it != held_.end();) {
        if (it->due > now && it->after > sent_) {
            ++it;
            continue;
        }
        Held leaving = std::move(*it);
        it = held_.erase(it);
        HETERO_CHECK(channel_->send(leaving.head, std::move(leaving.payload)));
    }
    return {};
}

Status FaultyChannel::expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) {
    return dead_ ? Status{} : channel_->expect(slot, place, std::move(owner));
}

Result<std::optional<Arrival>> FaultyChannel::receive() {
    if (dead_) return std::optional<Arrival>{};
    HETERO_CHECK(release());
    return channel_->receive();
}

bool FaultyChannel::sent_all() { return dead_ || (held_.empty() && channel_->sent_all()); }

}  // namespace hetero::transport
