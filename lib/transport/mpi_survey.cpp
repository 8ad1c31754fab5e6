// The sides of link_survey.h: of each pair of ranks the lower one says what comes next, by plain MPI messages. Calls
// are made on the thread that makes all of MPI's, in jobs short enough for the heartbeats that wait meanwhile.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "transport/group.h"
#include "transport/launcher_number.h"
#include "transport/link_survey.h"
#include "transport/mpi_raw.h"
#include "transport/mpi_world.h"
#include "transport/wire_bytes.h"

namespace hetero::transport {
namespace {

enum class Step : std::uint64_t { end, ping, forth, back, both };

constexpr std::uint64_t memory_bytes = 64U << 20, trial_message = 1U << 20, trial_bytes = 4U << 20;
constexpr std::uint64_t max_message_bytes = memory_bytes / 2, max_transfer_bytes = 1U << 30;
constexpr double longest_message_s = 0.2;  // larger ones are left out

struct Rounds {
    std::uint64_t message_bytes = 0;
    std::vector<double> forth, back;  // bytes a second
};
struct Pair {
    double latency_s = 0;
    std::vector<Rounds> sizes;
    double both_bytes_per_s = 0;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

class Measure {
public:
    Measure(MPI_Comm comm, int peer, double timeout_s)
        : raw_(comm, peer, timeout_s),
          out_{std::vector<std::byte>(memory_bytes, std::byte{1})},
          in_{std::vector<std::byte>(memory_bytes)} {}

    Result<Pair> lead(const SurveyOptions& options) {
        Pair pair;
        constexpr int few = 20;
        HETERO_CHECK(say(Step::ping, 0, few));
        HETERO_TRY(const auto first_s, raw_.ping(few));
        const double mean_s = std::accumulate(first_s.begin(), first_s.end(), 0.0) / few;
        const int count = std::clamp(static_cast<int>(options.round_s / mean_s), few, options.round_trips);
        HETERO_CHECK(say(Step::ping, 0, static_cast<std::uint64_t>(count)));
        HETERO_TRY(const auto round_trips_s, raw_.ping(count));
        pair.latency_s = median(round_trips_s) / 2;

        HETERO_TRY(double rate, forth(trial_message, trial_bytes));
        HETERO_TRY(const double back_rate, back(trial_message, trial_bytes));
        rate = std::min(rate, back_rate);
        std::uint64_t largest = trial_message;
        for (const std::uint64_t message : options.message_bytes) {
            if (static_cast<double>(message) > rate * longest_message_s) break;
            Rounds rounds{message, {}, {}};
            const std::uint64_t bytes = transfer_bytes(rate * options.round_s, message);
            for (int round = 0; round < options.rounds; ++round) {
                HETERO_TRY(const double forth_rate, forth(message, bytes));
                HETERO_TRY(const double one_back, back(message, bytes));
                rounds.forth.push_back(forth_rate);
                rounds.back.push_back(one_back);
            }
            rate = std::max(std::min(median(rounds.forth), median(rounds.back)), 1.0);
            largest = message;
            pair.sizes.push_back(std::move(rounds));
        }
        const std::uint64_t bytes = transfer_bytes(rate * options.round_s, largest);
        std::vector<double> both;
        for (int round = 0; round < options.rounds; ++round) {
            HETERO_CHECK(say(Step::both, largest, bytes));
            HETERO_TRY(const double seconds, raw_.exchange(out_.front(), in_.front(), largest, bytes));
            both.push_back(2 * static_cast<double>(bytes) / seconds);
        }
        pair.both_bytes_per_s = median(both);
        HETERO_CHECK(say(Step::end, 0, 0));
        return pair;
    }

    Status follow() {
        for (;;) {
            HETERO_TRY(const RawMpi::Words words, raw_.receive_words());
            const auto [step, message, bytes, unused] = words;
            const bool streams = static_cast<Step>(step) != Step::end && static_cast<Step>(step) != Step::ping;
            if ((streams && (message == 0 || message > max_message_bytes)) || bytes > max_transfer_bytes)
                return fail(Errc::peer, "the other rank runs another survey");
            switch (static_cast<Step>(step)) {
                case Step::end:
                    return {};
                case Step::ping:
                    HETERO_CHECK(raw_.answer(static_cast<int>(bytes)));
                    break;
                case Step::forth:
                    HETERO_CHECK(raw_.receive(in_, message, bytes));
                    break;
                case Step::back: {
                    HETERO_TRY(const double seconds, raw_.send(out_, message, bytes));
                    HETERO_CHECK(raw_.send_words({std::bit_cast<std::uint64_t>(seconds), 0, 0, 0}));
                    break;
                }
                case Step::both:
                    HETERO_CHECK(raw_.exchange(out_.front(), in_.front(), message, bytes));
                    break;
                default:
                    return fail(Errc::peer, "the other rank runs another survey");
            }
        }
    }

private:
    static std::uint64_t transfer_bytes(double wanted, std::uint64_t message) {
        const auto limit = static_cast<double>(max_transfer_bytes / message * message);
        return std::max(message, static_cast<std::uint64_t>(std::min(wanted, limit)) / message * message);
    }
    Status say(Step step, std::uint64_t message, std::uint64_t bytes) {
        return raw_.send_words({static_cast<std::uint64_t>(step), message, bytes, 0});
    }
    // Bytes a second.
    Result<double> forth(std::uint64_t message, std::uint64_t bytes) {
        HETERO_CHECK(say(Step::forth, message, bytes));
        HETERO_TRY(const double seconds, raw_.send(out_, message, bytes));
        return static_cast<double>(bytes) / seconds;
    }
    Result<double> back(std::uint64_t message, std::uint64_t bytes) {
        HETERO_CHECK(say(Step::back, message, bytes));
        HETERO_CHECK(raw_.receive(in_, message, bytes));
        HETERO_TRY(const RawMpi::Words words, raw_.receive_words());
        const auto seconds = std::bit_cast<double>(words[0]);
        if (!(seconds > 0)) return fail(Errc::peer, "the other rank runs another survey");
        return static_cast<double>(bytes) / seconds;
    }

    RawMpi raw_;
    RawMpi::Memory out_, in_;  // one block each
};

bool apart(const std::vector<double>& a, const std::vector<double>& b) {
    const auto [a_least, a_most] = std::minmax_element(a.begin(), a.end());
    const auto [b_least, b_most] = std::minmax_element(b.begin(), b.end());
    const double x = median(a), y = median(b);
    return (*a_most < *b_least || *b_most < *a_least) && std::fabs(x - y) > 0.2 * std::max(x, y);
}

void add_links(const Pair& pair, int low, int high, std::vector<SurveyedLink>& links) {
    const bool asymmetric = !pair.sizes.empty() && apart(pair.sizes.back().forth, pair.sizes.back().back);
    for (const bool forth : {true, false}) {
        SurveyedLink link{forth ? low : high,    forth ? high : low, pair.latency_s, {},
                          pair.both_bytes_per_s, asymmetric};
        for (const Rounds& rounds : pair.sizes)
            link.sizes.push_back({rounds.message_bytes, median(forth ? rounds.forth : rounds.back)});
        links.push_back(std::move(link));
    }
}

// What a rank has measured, as bytes for rank 0: all are of one program.
std::vector<std::byte> packed(const std::vector<SurveyedLink>& links) {
    ByteWriter out;
    for (const SurveyedLink& link : links) {
        out.number(static_cast<std::uint32_t>(link.from));
        out.number(static_cast<std::uint32_t>(link.to));
        out.f64(link.latency_s);
        out.f64(link.both_ways_bytes_per_s);
        out.number(static_cast<std::uint8_t>(link.asymmetric));
        out.number(static_cast<std::uint32_t>(link.sizes.size()));
        for (const auto& [message_bytes, bytes_per_s] : link.sizes) {
            out.number(message_bytes);
            out.f64(bytes_per_s);
        }
    }
    return out.take();
}
std::vector<SurveyedLink> unpacked(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    std::vector<SurveyedLink> links;
    while (in.left() > 0) {
        SurveyedLink link;
        link.from = static_cast<int>(in.number<std::uint32_t>());
        link.to = static_cast<int>(in.number<std::uint32_t>());
        link.latency_s = in.f64();
        link.both_ways_bytes_per_s = in.f64();
        link.asymmetric = in.flag();
        const auto sizes = in.number<std::uint32_t>();
        for (std::uint32_t i = 0; i < sizes && in.ok(); ++i) {
            SurveyedLink::Size& size = link.sizes.emplace_back();
            size.message_bytes = in.number<std::uint64_t>();
            size.bytes_per_s = in.f64();
        }
        if (!in.ok()) break;
        links.push_back(std::move(link));
    }
    return links;
}

}  // namespace

Result<int> job_size() {
    if (const auto size = launcher_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}, 1)) return *size;
    return fail(Errc::usage, "a survey of links needs processes started by mpirun (or srun --mpi=pmix)");
}

Result<std::vector<SurveyedLink>> survey_links(const SurveyOptions& options) {
    for (std::size_t i = 0; i < options.message_bytes.size(); ++i) {
        const std::uint64_t bytes = options.message_bytes[i];
        if (bytes == 0 || bytes > max_message_bytes || (i > 0 && bytes <= options.message_bytes[i - 1]))
            return fail(Errc::usage, "sizes of messages have to ascend, from 1 to {} bytes", max_message_bytes);
    }
    Communicator& all = group();
    MpiWorld* world = MpiWorld::running();
    if (world == nullptr || all.size() < 2)
        return fail(Errc::usage, "a survey of links needs two processes or more, started by mpirun");
    constexpr double answer_s = 5, job_s = 60;
    std::vector<SurveyedLink> links;
    for (int low = 0; low < all.size(); ++low) {
        for (int high = low + 1; high < all.size(); ++high) {
            Status mine;
            if (all.rank() == low || all.rank() == high) {
                // Kept by the job, which may outlast our patience.
                const auto pair = std::make_shared<Pair>();
                const bool leads = all.rank() == low;
                const auto measure =
                    std::make_shared<Measure>(world->data_communicator(), leads ? high : low, answer_s);
                mine = world->run_job(
                    [pair, measure, leads, options]() -> Status {
                        if (!leads) return measure->follow();
                        HETERO_TRY(*pair, measure->lead(options));
                        return {};
                    },
                    job_s);
                if (mine && leads) add_links(*pair, low, high, links);
            }
            HETERO_CHECK(all.agree(mine));
        }
    }
    const std::vector<std::byte> bytes = packed(links);
    const std::uint64_t size = bytes.size();
    const std::vector<std::size_t> eight(static_cast<std::size_t>(all.size()), sizeof size);
    HETERO_TRY(const auto size_bytes, all.all_gather(std::as_bytes(std::span(&size, 1)), eight));
    std::vector<std::size_t> sizes(static_cast<std::size_t>(all.size()));
    static_assert(sizeof(std::size_t) == sizeof size);
    std::memcpy(sizes.data(), size_bytes.data(), size_bytes.size());
    HETERO_TRY(const auto gathered, all.gather(bytes, sizes));
    return all.is_root() ? unpacked(gathered) : std::vector<SurveyedLink>{};
}

}  // namespace hetero::transport
