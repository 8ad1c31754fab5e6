// When the layers of a state were on their way over a link.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace hetero::transport {

struct TransferStats {
    using TimePoint = std::chrono::steady_clock::time_point;
    struct Layer {
        TimePoint begin, end;
    };
    // Sender: from where a layer was handed over to where all of it was acknowledged. Receiver: from its first piece to
    // its last.
    std::vector<Layer> layers;  // counted over all sequences
    TimePoint begin, end;       // of the first layer; of COMMIT's answer
    // While some layer, or COMMIT, was on its way: a link that waits for layers to be computed does not count.
    double busy_s = 0;
    std::uint64_t bytes = 0;  // of frames on the link, headers and repeats included
};

// Layers begin in order and end in order.
class TransferTimes {
public:
    using TimePoint = TransferStats::TimePoint;

    void layer_begins(TimePoint now) {
        const bool first = stats_.layers.empty();
        stats_.layers.push_back({now, now});
        if (first) stats_.begin = now;
        run(now);
    }
    // All before `end` have come to their end.
    void layers_end(std::uint64_t end, TimePoint now) {
        const auto last = static_cast<std::size_t>(std::min<std::uint64_t>(end, stats_.layers.size()));
        for (; ended_ < last; ++ended_) stats_.layers[ended_].end = now;
        if (ended_ == stats_.layers.size() && !committing_) rest(now);
    }
    void commit_begins(TimePoint now) {
        committing_ = true;
        run(now);
    }
    void committed(TimePoint now) {
        layers_end(stats_.layers.size(), now);
        rest(now);
        stats_.end = now;
    }
    [[nodiscard]] std::uint64_t begun() const noexcept { return stats_.layers.size(); }
    [[nodiscard]] const TransferStats& stats() const noexcept { return stats_; }

private:
    void run(TimePoint now) {
        if (!running_) since_ = now;
        running_ = true;
    }
    void rest(TimePoint now) {
        if (running_) stats_.busy_s += std::chrono::duration<double>(now - since_).count();
        running_ = false;
    }

    TransferStats stats_;
    std::size_t ended_ = 0;
    bool running_ = false, committing_ = false;
    TimePoint since_;
};

}  // namespace hetero::transport
