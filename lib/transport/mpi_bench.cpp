// The two sides of link_bench.h over MPI. The lower rank says what comes next, by plain MPI messages; the other
// follows.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/huge_pages.h"
#include "transport/chunk_plan.h"
#include "transport/launcher_number.h"
#include "transport/link_bench.h"
#include "transport/mpi_raw.h"
#include "transport/mpi_world.h"
#include "transport/send_window.h"
#include "transport/wire_stream.h"

namespace hetero::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kv_heads = 8, head_dim = 128;
constexpr std::uint64_t row_bytes = std::uint64_t{kv_heads} * head_dim * 2;  // of K or V of a token, fp16
constexpr std::uint64_t max_message_bytes = 1U << 30;
constexpr std::uint64_t usual_part_bytes = 4U << 20;
constexpr std::uint64_t memory_bytes = 64U << 20;  // at least two layers: as a receiver grants ahead

constexpr int pings_at_a_time = 100;
constexpr int sweep_rounds = 5;
constexpr double latency_s = 2;  // of plain MPI, and of ours, on a slow link or a busy machine

enum class Step : std::uint64_t { end, raw_ping, raw_stream, checked_state, unchecked_state };

// A state whose chunks have `message` bytes, of about `bytes`.
kv::Header header_of(std::uint64_t message, std::uint64_t bytes) {
    const std::uint64_t part = std::max(message, std::min(usual_part_bytes, bytes / 2 / message * message));
    kv::Header header;
    kv::Identity& id = header.identity;
    id.model_id = id.arch = "none";
    id.n_layers = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, bytes / (2 * part)));
    id.n_heads = id.n_kv_heads = kv_heads;
    id.head_dim_k = id.head_dim_v = head_dim;
    id.vocab_size = 1;
    id.context_length = static_cast<std::uint32_t>(part / row_bytes);
    id.rope_theta = 10000;
    kv::Sequence& sequence = header.sequences.emplace_back();
    sequence.id = "bench";
    sequence.tokens.assign(part / row_bytes, 0);
    kv::Scheme scheme;
    scheme.codec = "f16";
    header.k_schemes.assign(id.n_layers, scheme);
    header.v_schemes.assign(id.n_layers, scheme);
    header.tokens_per_chunk = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, message / row_bytes));
    return header;
}

class Bench {
public:
    Bench(MpiWorld& world, MpiWorld::Peer& peer, double timeout_s)
        : world_(&world),
          peer_(&peer),
          patience_s_(30 + 6 * timeout_s),
          raw_(world.data_communicator(), peer.rank, 6 * timeout_s) {}

    Result<LinkBench> lead(const LinkBenchOptions& options);
    Status follow();

private:
    using Layers = std::vector<std::shared_ptr<const kv::Layer>>;
    template <class Call>
    auto on_mpi_thread(Call call) -> decltype(call()) {
        const auto result = std::make_shared<std::optional<decltype(call())>>();  // a job may outlast our patience
        HETERO_CHECK(world_->run_job(
            [result, call]() -> Status {
                *result = call();
                return {};
            },
            patience_s_));
        return std::move(**result);
    }
    Status say(Step step, std::uint64_t message, std::uint64_t bytes) {
        return on_mpi_thread([&] {
            return raw_.send_words({static_cast<std::uint64_t>(step), message, bytes, ++session_});
        });
    }
    Result<RawMpi::Words> next_words();
    Result<std::vector<double>> ping(const SmallProbes& wanted);
    Result<LinkBenchRow> row(std::uint64_t message, std::uint64_t bytes, int rounds);
    Result<double> measure(Step step, const kv::Header& header, std::uint64_t message, const Layers& layers);
    Result<double> send_state(const kv::Header& header, const Layers& layers, bool checksums);
    Result<Layers> layers_of(const kv::Header& header);
    Result<std::vector<LinkBenchCell>> sweep(std::uint64_t bytes);
    Result<PairedRatio> of_best(const LinkBench& bench, Step step, Sample LinkBenchCell::*rates, std::uint64_t bytes,
                                int rounds);
    Status receive_state(bool checksums);
    Status start(bool checksums);
    Status drain();
    // Blocks like the arrays of the states.
    RawMpi::Memory& memory(std::uint64_t message) {
        const std::uint64_t block = std::max(message, usual_part_bytes / message * message);
        if (memory_.empty() || memory_.front().size() != block) {
            memory_.clear();
            memory_.resize(std::max<std::uint64_t>(4, memory_bytes / block));
            for (auto& one : memory_) {
                resize_in_huge_pages(one, block);
                std::fill(one.begin(), one.end(), std::byte{1});
            }
        }
        return memory_;
    }

    MpiWorld* world_;
    MpiWorld::Peer* peer_;
    double patience_s_;
    RawMpi raw_;
    std::uint64_t session_ = 0;  // the number of the step
    SendWindow window_;          // of states
    RawMpi::Memory memory_;
    // As memory_: kept from one transfer to the next.
    std::shared_ptr<LayerPool> layers_ = std::make_shared<LayerPool>(memory_bytes / (4U << 10));
};

Status Bench::start(bool checksums) {
    world_->restart(*peer_, session_, checksums);
    return on_mpi_thread([&] { return raw_.meet(); });
}

Status Bench::drain() {
    auto lock = world_->gate().enter();
    const auto begin = Clock::now();
    while (!peer_->link->error() && !peer_->link->drained()) {
        if (seconds_since(begin) > patience_s_) return fail(Errc::peer, "rank {}: a transfer did not end", peer_->rank);
        world_->gate().wait_for(lock, 1e-3, [&] { return peer_->link->error() || peer_->link->drained(); });
    }
    if (peer_->link->error()) return tl::unexpected<Error>(*peer_->link->error());
    return {};
}

Result<double> Bench::send_state(const kv::Header& header, const Layers& layers, bool checksums) {
    HETERO_CHECK(start(checksums));
    const auto sink = wire_sink(world_->gate(), *peer_->sender, {.checksums = checksums});
    {
        const auto lock = world_->gate().enter();
        peer_->sender->set_window(window_);
    }
    HETERO_CHECK(sink->begin(header));
    const auto begin = Clock::now();
    for (std::size_t l = 0; l < header.identity.n_layers; ++l)
        HETERO_CHECK(sink->write_shared(layers[l % layers.size()]));
    HETERO_CHECK(sink->commit());
    const double seconds = seconds_since(begin);
    HETERO_CHECK(drain());
    return seconds;
}

Status Bench::receive_state(bool checksums) {
    HETERO_CHECK(start(checksums));
    ReceiverOptions receiver;
    receiver.layers = layers_;
    HETERO_TRY(const auto source, wire_source(world_->gate(), *peer_->receiver, std::move(receiver)));
    kv::Layer layer;
    for (std::uint32_t l = 0; l < source->header().identity.n_layers; ++l) HETERO_CHECK(source->read_into(layer));
    layers_->give(std::move(layer));
    HETERO_CHECK(source->finish());
    return drain();
}

Result<double> Bench::measure(Step step, const kv::Header& header, std::uint64_t message, const Layers& layers) {
    const std::uint64_t bytes = header.payload_bytes();
    HETERO_CHECK(say(step, message, bytes));
    if (step == Step::raw_stream) return on_mpi_thread([&] { return raw_.send(memory(message), message, bytes); });
    return send_state(header, layers, step == Step::checked_state);
}

Result<Bench::Layers> Bench::layers_of(const kv::Header& header) {
    HETERO_CHECK(kv::check_header(header));
    Layers layers;
    const std::uint64_t held = std::max<std::uint64_t>(2, memory_bytes / layer_bytes(header, 0));
    while (layers.size() < std::min<std::uint64_t>(held, header.identity.n_layers)) {
        HETERO_TRY(auto layer, allocate_layer(header, 0));
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            auto& values = layer->part(id).values.bytes;
            std::memset(values.data(), static_cast<int>(layers.size()) + 1, values.size());
        }
        layers.push_back(std::move(layer));
    }
    return layers;
}

Result<std::vector<LinkBenchCell>> Bench::sweep(std::uint64_t bytes) {
    const SendWindow chosen = window_;
    std::vector<std::uint64_t> windows = {1U << 20, 4U << 20, 16U << 20, 64U << 20, 256U << 20, chosen.bytes};
    std::sort(windows.begin(), windows.end());
    windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
    std::vector<LinkBenchCell> cells;
    for (const std::uint64_t message : {usual_message_bytes / 4, usual_message_bytes, usual_message_bytes * 4})
        for (const std::uint64_t window : windows)
            if (window == chosen.bytes || window <= bytes) cells.push_back({message, window, {}, {}});
    for (int round = 0; round < sweep_rounds; ++round) {
        Layers layers;
        std::uint64_t message = 0;
        for (LinkBenchCell& cell : cells) {
            const kv::Header header = header_of(cell.message_bytes, bytes);
            if (std::exchange(message, cell.message_bytes) != cell.message_bytes) {
                HETERO_TRY(layers, layers_of(header));
            }
            window_.bytes = cell.window_bytes;
            for (const auto& [step, sample] :
                 {std::pair(Step::checked_state, &cell.checked), std::pair(Step::unchecked_state, &cell.unchecked)}) {
                HETERO_TRY(const double seconds, measure(step, header, cell.message_bytes, layers));
                sample->values.push_back(static_cast<double>(header.payload_bytes()) / seconds / 1e9);
            }
        }
    }
    window_ = chosen;
    return cells;
}

Result<PairedRatio> Bench::of_best(const LinkBench& bench, Step step, Sample LinkBenchCell::*rates, std::uint64_t bytes,
                                   int rounds) {
    struct Side {
        const LinkBenchCell* cell;
        kv::Header header;
        Layers layers;
        Sample sample;
    };
    std::array<Side, 2> sides{Side{bench.chosen(), {}, {}, {}}, Side{bench.best(rates), {}, {}, {}}};
    if (sides[0].cell == sides[1].cell) return PairedRatio{1, 1, 1};
    const SendWindow chosen = window_;
    for (Side& side : sides) {
        side.header = header_of(side.cell->message_bytes, bytes);
        HETERO_TRY(side.layers, layers_of(side.header));
    }
    for (int round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < sides.size(); ++i) {
            Side& side = sides[(i + static_cast<std::size_t>(round)) % sides.size()];
            window_.bytes = side.cell->window_bytes;
            HETERO_TRY(const double seconds, measure(step, side.header, side.cell->message_bytes, side.layers));
            side.sample.values.push_back(static_cast<double>(side.header.payload_bytes()) / seconds);
        }
    }
    window_ = chosen;
    return paired_ratio(sides[0].sample, sides[1].sample);
}

Result<LinkBenchRow> Bench::row(std::uint64_t message, std::uint64_t bytes, int rounds) {
    const kv::Header header = header_of(message, bytes);
    HETERO_TRY(const Layers layers, layers_of(header));
    LinkBenchRow row;
    row.message_bytes = message;
    row.bytes = header.payload_bytes();
    struct Turn {
        Step step;
        Sample* sample;
    };
    const std::array<Turn, 3> turns = {
        Turn{Step::raw_stream, &row.raw}, {Step::checked_state, &row.checked}, {Step::unchecked_state, &row.unchecked}};
    for (int round = -1; round < rounds; ++round) {  // the first one warms up
        for (std::size_t i = 0; i < turns.size(); ++i) {
            const Turn& turn = turns[(i + static_cast<std::size_t>(round + 1)) % turns.size()];
            HETERO_TRY(const double seconds, measure(turn.step, header, message, layers));
            if (round >= 0) turn.sample->values.push_back(static_cast<double>(row.bytes) / seconds / 1e9);
        }
    }
    return row;
}

Result<std::vector<double>> Bench::ping(const SmallProbes& wanted) {
    std::vector<double> all_s;
    const auto begin = Clock::now();
    for (bool warm = false; !wanted.enough(all_s.size(), seconds_since(begin)); warm = true) {
        HETERO_CHECK(say(Step::raw_ping, 0, pings_at_a_time));
        HETERO_TRY(const auto some_s, on_mpi_thread([&] { return raw_.ping(pings_at_a_time); }));
        if (warm) all_s.insert(all_s.end(), some_s.begin(), some_s.end());
    }
    return all_s;
}

Result<LinkBench> Bench::lead(const LinkBenchOptions& options) {
    LinkBench bench;
    const auto one_way_us = [](const std::vector<double>& round_trips_s) {
        Sample sample;
        for (const double s : round_trips_s) sample.values.push_back(s / 2 * 1e6);
        return sample;
    };
    const SmallProbes round_trips{options.round_trips, latency_s};
    HETERO_TRY(const auto raw_s, ping(round_trips));
    bench.raw_us = one_way_us(raw_s);
    HETERO_TRY(const MpiWorld::Measured measured, world_->measure(*peer_, round_trips));
    bench.frames_us = one_way_us(measured.round_trips_s);
    window_ = window_for(measured.rate);
    bench.window_bytes = window_.bytes;
    const auto in_seconds = [&](double bytes_per_s, double seconds) {
        return static_cast<std::uint64_t>(std::min(static_cast<double>(options.max_bytes), bytes_per_s * seconds));
    };
    // Probes come into memory that is made for each: of fast links they see a part only.
    const std::uint64_t trial = std::max(usual_message_bytes, in_seconds(measured.rate.bytes_per_s, options.round_s));
    HETERO_CHECK(say(Step::raw_stream, usual_message_bytes, trial));
    HETERO_TRY(const double trial_s,
               on_mpi_thread([&] { return raw_.send(memory(usual_message_bytes), usual_message_bytes, trial); }));
    const double rate = static_cast<double>(trial) / trial_s;
    const std::uint64_t wanted = in_seconds(rate, options.round_s);
    for (const std::uint64_t message : options.message_bytes) {
        if (message / 4 > wanted) continue;  // would take too long on this link
        const bool usual = message == usual_message_bytes;
        HETERO_TRY(auto one, row(message, usual ? in_seconds(rate, options.usual_round_s) : wanted, options.rounds));
        bench.rows.push_back(std::move(one));
    }
    if (bench.rows.empty())
        return fail(Errc::usage,
                    "this link carries {:.0f} bytes a second: no chunks of these sizes can be measured on it", rate);
    if (bench.nearest(usual_message_bytes)->message_bytes == usual_message_bytes) {
        // No start and end alone, where the time allows.
        const std::uint64_t filled = std::min(in_seconds(rate, options.usual_round_s), 4 * window_.bytes);
        const std::uint64_t swept = std::max(wanted, filled);
        HETERO_TRY(bench.sweep, sweep(swept));
        HETERO_TRY(bench.checked_of_best,
                   of_best(bench, Step::checked_state, &LinkBenchCell::checked, swept, options.rounds));
        HETERO_TRY(bench.unchecked_of_best,
                   of_best(bench, Step::unchecked_state, &LinkBenchCell::unchecked, swept, options.rounds));
    }
    HETERO_CHECK(say(Step::end, 0, 0));
    return bench;
}

// Probes are answered in between, so this is no wait inside MPI. It has no limit as long as there are signs of life: on
// a busy machine the other side takes its time.
Result<RawMpi::Words> Bench::next_words() {
    for (auto pause = std::chrono::microseconds(50);; pause = std::min(2 * pause, std::chrono::microseconds(20'000))) {
        HETERO_TRY(const auto words, on_mpi_thread([&] { return raw_.poll_words(); }));
        if (words) return *words;
        {
            const auto lock = world_->gate().enter();
            if (peer_->link->error()) return tl::unexpected<Error>(*peer_->link->error());
            if (peer_->link->peer_left()) return fail(Errc::peer, "rank {} ended before its bench did", peer_->rank);
        }
        std::this_thread::sleep_for(pause);
    }
}

Status Bench::follow() {
    for (;;) {
        HETERO_TRY(const RawMpi::Words words, next_words());
        const auto [step, message, bytes, session] = words;
        session_ = session;
        switch (static_cast<Step>(step)) {
            case Step::end:
                return {};
            case Step::raw_ping:
                HETERO_CHECK(on_mpi_thread([&] { return raw_.answer(static_cast<int>(bytes)); }));
                break;
            case Step::raw_stream:
                if (message == 0 || message >= max_message_bytes)
                    return fail(Errc::peer, "rank {} runs another bench", peer_->rank);
                HETERO_CHECK(on_mpi_thread([&] { return raw_.receive(memory(message), message, bytes); }));
                break;
            case Step::checked_state:
            case Step::unchecked_state:
                HETERO_CHECK(receive_state(static_cast<Step>(step) == Step::checked_state));
                break;
            default:
                return fail(Errc::peer, "rank {} runs another bench", peer_->rank);
        }
    }
}

// Before MPI starts, as its start needs to know who sends.
Result<int> own_rank() {
    if (const auto rank = launcher_number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}, 0)) return *rank;
    return fail(Errc::usage, "a bench of a link needs two processes started by mpirun (or srun --mpi=pmix)");
}

}  // namespace

Result<LinkBench> bench_link(const Endpoint& peer, const LinkBenchOptions& bench, const TransportOptions& options) {
    if (peer.kind != EndpointKind::mpi) return fail(Errc::usage, "{}: only mpi:RANK has a link", to_string(peer));
    for (const std::uint64_t message : bench.message_bytes)
        if (message == 0 || message % row_bytes != 0 || message >= max_message_bytes)
            return fail(Errc::usage, "a bench in chunks of {} bytes: they have to be a multiple of {}, below {}",
                        message, row_bytes, max_message_bytes);
    HETERO_TRY(const int own, own_rank());
    const bool leads = own < peer.rank;
    const std::vector<int> none, one = {peer.rank};
    HETERO_CHECK(MpiWorld::start(leads ? none : one, leads ? one : none, options));
    MpiWorld& world = *MpiWorld::running();
    HETERO_TRY(MpiWorld::Peer * opened, world.open(peer, leads));
    auto run = std::make_unique<Bench>(world, *opened, options.timeout_s);
    Result<LinkBench> result = LinkBench{};
    if (leads) {
        result = run->lead(bench);
    } else if (Status followed = run->follow(); !followed) {
        result = tl::unexpected(std::move(followed).error());
    }
    if (!result) static_cast<void>(run.release());  // a job that was given up may still use it
    return result;
}

}  // namespace hetero::transport
