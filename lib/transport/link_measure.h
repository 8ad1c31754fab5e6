// What a link can carry, measured by frames that the peer's link answers while its tool computes: half the median round
// trip of small ones, and the rate of the first size that takes long enough to be timed. Costs some milliseconds, on
// any link no more than a few times what its largest probe takes. Of a link that is to carry no more than so many bytes
// a second, it is enough to know that it can.
#pragma once
#include <optional>
#include <vector>

#include "transport/link.h"
#include "transport/link_rate.h"

namespace hetero::transport {

// How many small probes are sent: `most`, fewer where they take longer than `seconds`, but never less than a few, by
// whose median the latency is known.
struct SmallProbes {
    static constexpr int least = 21;
    int most = least;
    double seconds = 0;
    [[nodiscard]] bool enough(std::size_t sent, double took_s) const noexcept {
        return sent >= static_cast<std::size_t>(most) || (sent >= static_cast<std::size_t>(least) && took_s >= seconds);
    }
};

class LinkMeasure {
public:
    // Nothing else may use the link until it is done; the link outlives it. 0: no limit.
    explicit LinkMeasure(Link& link, SmallProbes small_probes = {}, std::uint64_t max_bytes_per_s = 0)
        : link_(&link), small_probes_(small_probes), max_rate_(static_cast<double>(max_bytes_per_s)) {}
    // Steps the link too. Returns whether anything moved.
    bool step(TimePoint now);
    [[nodiscard]] const std::optional<LinkRate>& rate() const noexcept { return rate_; }
    // Of the small probes, in the order in which they were sent.
    [[nodiscard]] const std::vector<double>& round_trips_s() const noexcept { return round_trips_s_; }

private:
    void send(TimePoint now);
    void take_answer(double seconds);
    [[nodiscard]] double least_patience_s() const noexcept { return link_->options().silence_s / 8; }

    Link* link_;
    SmallProbes small_probes_;
    double max_rate_;
    bool waiting_ = false;
    TimePoint sent_at_{};
    double patience_s_ = least_patience_s();  // a probe without an answer for longer is sent again
    std::uint32_t number_ = 0;
    std::size_t bytes_ = 64;
    std::vector<double> round_trips_s_;  // of small ones
    double small_took_s_ = 0;            // all of them
    double latency_s_ = 0, best_rate_ = 0;
    int same_size_ = 0;
    std::optional<LinkRate> rate_;
};

}  // namespace hetero::transport
