#include "transport/mpi_world.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "transport/blocked_signals.h"
#include "transport/faulty_channel.h"
#include "transport/mpi_call.h"
#include "transport/mpi_channel.h"

namespace hetero::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double tell_s = 1.0;  // at most, after an error: until the peers have left too
constexpr double linger_s =
    0.3;  // a rank that ends because of another lets that one end first: its status is the job's
constexpr double finalize_s = 2.0;
// While another thread moves frames, on a core that may be the only one: looks ever less often whether it still does.
constexpr auto stays_out = std::chrono::microseconds(1000), least_rest = std::chrono::microseconds(100);
// Without news: spins, then rests for a share of the time that there was none. The core may be the one that the other
// threads of the transfer need, or that computes meanwhile.
constexpr double spin_s = 100e-6, rest_s = 20e-6, long_rest_s = 1e-3, rest_share = 0.125;

double heartbeat_s(const TransportOptions& options) { return std::min(0.5, options.timeout_s / 20); }

std::uint64_t random_session() {
    std::random_device device;
    const std::uint64_t value = (std::uint64_t{device()} << 32) ^ device();
    return value == 0 ? 1 : value;
}

MpiWorld* g_world = nullptr;  // never deleted: MPI may hold addresses in it to the end of the process

}  // namespace

MpiWorld::MpiWorld(std::vector<int> inputs, std::vector<int> outputs, const TransportOptions& options)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)), options_(options), started_(Clock::now()) {}

MpiWorld* MpiWorld::running() noexcept { return g_world; }

Status MpiWorld::start(const std::vector<int>& inputs, const std::vector<int>& outputs,
                       const TransportOptions& options) {
    if (g_world != nullptr) return fail(Errc::internal, "MPI endpoints were prepared twice");
    if (inputs.size() > max_roles || outputs.size() > max_roles)
        return fail(Errc::usage, "at most {} mpi: endpoints can be read, and as many written", max_roles);
    for (const auto* ranks : {&inputs, &outputs})
        for (std::size_t i = 0; i < ranks->size(); ++i)
            if (std::count(ranks->begin(), ranks->end(), (*ranks)[i]) > 1)
                return fail(Errc::usage, "mpi:{} is named twice", (*ranks)[i]);
    const double least_rate = 4 * static_cast<double>(frame_header_bytes) / heartbeat_s(options);
    if (options.max_bytes_per_s > 0 && static_cast<double>(options.max_bytes_per_s) < least_rate)
        return fail(Errc::usage, "{} bytes a second leave no room beside signs of life; at least {:.0f} are needed",
                    options.max_bytes_per_s, std::ceil(least_rate));
    const char* launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    if (std::none_of(std::begin(launchers), std::end(launchers), [](const char* name) { return std::getenv(name); }))
        return fail(Errc::usage, "{}: this process was not started by mpirun (or srun --mpi=pmix)",
                    options.group_size > 1 ? fmt::format("--tp {}", options.group_size)
                                           : fmt::format("mpi:{}", inputs.empty() ? outputs.front() : inputs.front()));
    return begin(inputs, outputs, options,
                 "every rank of the job has to use an mpi: endpoint or --tp; one that does not, or that has ended, "
                 "keeps the others waiting",
                 Errc::peer);
}

Status MpiWorld::start_alone(const TransportOptions& options) {
    return begin({}, {}, options, "is Open MPI whole (orted, a writable TMPDIR)?", Errc::resource);
}

Status MpiWorld::begin(const std::vector<int>& inputs, const std::vector<int>& outputs, const TransportOptions& options,
                       const char* hint, Errc failure) {
    try {
        g_world = new MpiWorld(inputs, outputs, options);
        g_world->launch();
    } catch (const std::exception& e) {
        g_world = nullptr;
        return fail(Errc::resource, "no thread for MPI: {}", e.what());
    }
    auto lock = g_world->gate_.enter();
    g_world->gate_.wait_for(lock, notice_s(options) + 0.2, [] { return g_world->phase_ != Phase::starting; });
    if (g_world->phase_ == Phase::starting)
        return fail(failure, "MPI did not start within {:.3g} s: {} (--timeout allows more time)", notice_s(options),
                    hint);
    if (g_world->start_error_) return tl::unexpected<Error>(*g_world->start_error_);
    return {};
}

void MpiWorld::launch() {
    const BlockedSignals blocked;  // signals are for the tool's own threads
    thread_ = std::thread([this] { run(); });
}

Status MpiWorld::await(MPI_Request& request, const char* what) const {
    for (;;) {
        int done = 0;
        HETERO_MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
        if (done != 0) return {};
        if (seconds_since(started_) > notice_s(options_))
            return fail(
                Errc::peer,
                "the ranks did not meet within {:.3g} s ({}): is each of them a hetero tool with an mpi: endpoint or "
                "--tp?",
                notice_s(options_), what);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

Status MpiWorld::initialise() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    initialised_elsewhere_ = initialised != 0;
    int provided = MPI_THREAD_SINGLE;
    if (initialised_elsewhere_) {
        HETERO_MPI_CHECK(MPI_Query_thread(&provided), "MPI_Query_thread");
        if (provided < MPI_THREAD_MULTIPLE)
            return fail(Errc::usage, "MPI was started without MPI_THREAD_MULTIPLE by the program");
    } else {
        HETERO_MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
        if (options_.group_size > 1 && provided < MPI_THREAD_SERIALIZED)
            return fail(Errc::resource, "--tp: this MPI has no MPI_THREAD_SERIALIZED");
    }
    HETERO_MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int rank = 0, size = 0;
    HETERO_MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    HETERO_MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    rank_ = rank;
    HETERO_TRY(const std::vector<Roles> all, exchange_roles(rank, size));
    MPI_Comm meeting = MPI_COMM_NULL;
    std::vector<MPI_Comm*> communicators = {&control_, &data_};
    if (MpiGoodbye::tolerates_faults) communicators.push_back(&meeting);
    for (MPI_Comm* comm : communicators) {
        MPI_Request request = MPI_REQUEST_NULL;
        HETERO_MPI_CHECK(MPI_Comm_idup(MPI_COMM_WORLD, comm, &request), "MPI_Comm_idup");
        HETERO_CHECK(await(request, "MPI_Comm_idup"));
        HETERO_MPI_CHECK(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    goodbye_ = MpiGoodbye(MpiGoodbye::tolerates_faults ? meeting : control_);
    if (provided >= MPI_THREAD_SERIALIZED) gate_.let_step([this](TimePoint now) { return step_peers(now); });
    for (const int peer : inputs_) add_peer(peer, false);
    for (const int peer : outputs_) add_peer(peer, true);
    return add_group(all, rank);
}

Result<std::vector<Roles>> MpiWorld::exchange_roles(int rank, int size) {
    Roles own(inputs_, outputs_, options_.tool, options_.group_size);
    own.shards = options_.shards ? 1 : 0;
    own.n_heads = static_cast<std::int32_t>(options_.heads.n_heads);
    own.n_kv_heads = static_cast<std::int32_t>(options_.heads.n_kv_heads);
    own.input_ranks = options_.input_ranks;
    own.output_ranks = options_.output_ranks;
    int* part = nullptr;
    int known = 0;
    if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, static_cast<void*>(&part), &known) == MPI_SUCCESS && known != 0)
        own.part = *part;
    std::vector<Roles> all(static_cast<std::size_t>(size));
    MPI_Request request = MPI_REQUEST_NULL;
    HETERO_MPI_CHECK(
        MPI_Iallgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD, &request),
        "MPI_Iallgather");
    HETERO_CHECK(await(request, "MPI_Iallgather"));
    log::debug("rank {} of {}: reads {}, writes {}", rank, size, inputs_text(own), outputs_text(own));
    const GroupRanks group = group_of(all, rank);
    first_to_show_ = group.first == rank;
    if (Status settled = settle_roles(all); !settled) {
        roles_refused_ = true;
        return tl::unexpected(std::move(settled).error());
    }
    inputs_ = peers_of(all, rank, true);
    outputs_ = peers_of(all, rank, false);
    read_sides_ = transport::shard_sides(all, rank, true);
    written_sides_ = transport::shard_sides(all, rank, false);
    return all;
}

LinkOptions MpiWorld::link_options(const Peer& peer, bool sending, std::uint64_t session) const {
    LinkOptions link;
    link.role = sending ? WireRole::sender : WireRole::receiver;
    link.peer = peer.port.empty() ? fmt::format("rank {}", peer.rank) : fmt::format("mpi-port:{}", peer.port);
    link.silence_s = notice_s(options_);
    link.heartbeat_s = heartbeat_s(options_);
    link.session = session;
    return link;
}

std::unique_ptr<Link> MpiWorld::link_to(const Peer& peer, bool sending, std::uint64_t session) {
    const bool joined = peer.control != MPI_COMM_NULL;
    std::unique_ptr<Channel> channel =
        std::make_unique<MpiChannel>(joined ? peer.control : control_, joined ? peer.data : data_, peer.rank, sending);
    if (options_.faults.any()) {
        const auto die = [] { std::raise(SIGKILL); };
        channel = std::make_unique<FaultyChannel>(std::move(channel), options_.faults, Clock::now, die);
    }
    return std::make_unique<Link>(std::move(channel), link_options(peer, sending, session), Clock::now());
}

void MpiWorld::add_peer(int rank, bool sending) {
    auto peer = std::make_unique<Peer>();
    peer->rank = rank;
    peer->link = link_to(*peer, sending, sending ? random_session() : 0);
    begin_conversation(*peer, sending);
    peers_.push_back(std::move(peer));
}

Status MpiWorld::join(const std::string& port, bool sending, std::function<Result<MPI_Comm>()> meet,
                      double patience_s) {
    auto peer = std::make_shared<Peer>();  // a job that is stuck may still use it
    HETERO_CHECK(run_job(
        [peer, meet = std::move(meet)]() -> Status {
            HETERO_MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
            HETERO_TRY(peer->control, meet());
            HETERO_MPI_CHECK(MPI_Comm_set_errhandler(peer->control, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
            HETERO_MPI_CHECK(MPI_Comm_dup(peer->control, &peer->data), "MPI_Comm_dup");
            HETERO_MPI_CHECK(MPI_Comm_set_errhandler(peer->data, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
            return {};
        },
        patience_s));
    auto joined = std::make_unique<Peer>();
    joined->rank = 0;
    joined->port = port;
    joined->control = peer->control;
    joined->data = peer->data;
    const auto lock = gate_.enter();
    joined->link = link_to(*joined, sending, sending ? random_session() : 0);
    begin_conversation(*joined, sending);
    peers_.push_back(std::move(joined));
    return {};
}

bool MpiWorld::Peer::transferred() const noexcept {
    return sender ? sender->committed() : !receiver || receiver->confirmed();
}

// Local where it matters: in Open MPI, MPI_Comm_free does not wait for the peer as MPI_Comm_disconnect does, and
// MPI_Finalize would wait for the peers of communicators that are left.
void MpiWorld::part(Peer& peer) noexcept {
    peer.gone = true;
    for (MPI_Comm* comm : {&peer.data, &peer.control})
        if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
}

void MpiWorld::begin_conversation(Peer& peer, bool sending) {
    if (sending) {
        peer.sender.emplace(*peer.link, options_.max_bytes_per_s);
    } else {
        peer.receiver.emplace(*peer.link);
    }
}

void MpiWorld::restart(Peer& peer, std::uint64_t session, bool verify_chunks) {
    const auto lock = gate_.enter();
    const bool sending = peer.sender.has_value();
    peer.sender.reset();
    peer.receiver.reset();
    LinkOptions options = link_options(peer, sending, session);
    options.verify_chunks = verify_chunks;
    peer.link = std::make_unique<Link>(peer.link->release(), options, Clock::now());
    begin_conversation(peer, sending);
}

Status MpiWorld::run_job(std::function<Status()> job, double patience_s) {
    auto lock = gate_.enter();
    job_result_.reset();
    job_ = std::move(job);
    gate_.wake();
    if (!gate_.wait_for(lock, patience_s, [&] { return job_result_ || phase_ != Phase::ready; }) || !job_result_) {
        job_ = nullptr;
        stuck_ = true;
        return fail(Errc::peer, "MPI did not do its part within {:.3g} s", patience_s);
    }
    return *job_result_;
}

void MpiWorld::run_pending_job(Gate::Lock& lock) {
    const std::function<Status()> job = std::move(job_);
    job_ = nullptr;
    lock.unlock();
    Status done;
    try {
        done = job();
    } catch (const std::exception& e) {
        done = fail(Errc::resource, "no memory for what MPI is to do: {}", e.what());
    }
    lock.lock();
    job_result_ = std::move(done);
    gate_.changed();
}

// Splitting takes all ranks of the job, so all do it when any of them computes with others.
Status MpiWorld::add_group(const std::vector<Roles>& all, int rank) {
    if (std::all_of(all.begin(), all.end(), [](const Roles& roles) { return roles.group_size <= 1; })) return {};
    const GroupRanks group = group_of(all, rank);
    MPI_Comm comm = MPI_COMM_NULL;
    HETERO_MPI_CHECK(MPI_Comm_split(MPI_COMM_WORLD, group.size > 1 ? group.first : MPI_UNDEFINED, rank, &comm),
                     "MPI_Comm_split");
    if (group.size == 1) return {};
    HETERO_MPI_CHECK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    std::vector<const Link*> links(static_cast<std::size_t>(group.size));
    for (int other = group.first; other < group.first + group.size; ++other) {
        if (other == rank) continue;
        auto peer = std::make_unique<Peer>();
        peer->rank = other;
        // Both ends know the session, as nobody says HELLO.
        peer->link = link_to(*peer, rank < other, static_cast<std::uint64_t>(group.first) + 1);
        links[static_cast<std::size_t>(other - group.first)] = peer->link.get();
        peers_.push_back(std::move(peer));
    }
    group_ = std::make_unique<MpiGroup>(gate_, comm, rank - group.first, group.size, std::move(links));
    return {};
}

bool MpiWorld::Peer::step(TimePoint now) {
    const bool moved = step_conversation(now);
    return (clock && clock->step(now)) || moved;
}

bool MpiWorld::Peer::step_conversation(TimePoint now) {
    if (measure) return measure->step(now);
    if (sender) return sender->step(now);
    if (receiver) return receiver->step(now);
    const bool moved = link->step(now);
    if (link->next()) link->violated("a state for a rank of its own group");
    return moved;
}

Communicator& MpiWorld::group() noexcept { return group_ ? static_cast<Communicator&>(*group_) : single_process(); }

Status MpiWorld::check_group() {
    auto lock = gate_.enter();
    if (group_)
        if (auto reason = group_->end_reason()) return tl::unexpected(std::move(*reason));
    return {};
}

bool MpiWorld::shows_error() noexcept {
    auto lock = gate_.enter();
    if (!group_) return first_to_show_;
    if (group_->failure() != Communicator::Failure::none) return group_->failure() == Communicator::Failure::here;
    gate_.wait_for(lock, linger_s, [&] { return group_->told() || !group_->others_may_tell(); });
    return !group_->told();
}

void MpiWorld::run() {
    ::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns: rests are shorter than the usual 50 us
    Status started;
    try {
        started = initialise();
    } catch (const std::exception& e) {
        started = fail(Errc::resource, "no memory to start MPI: {}", e.what());
    }
    {
        auto lock = gate_.enter();
        if (!started) start_error_ = std::move(started).error();
        phase_ = start_error_ ? Phase::refused : Phase::ready;
        gate_.changed();
    }
    if (start_error_) return leave_refused();
    move_frames();
    if (phase_ == Phase::finalizing) finalize();
}

// Under the gate. Returns whether anything moved.
bool MpiWorld::step_peers(TimePoint now) {
    bool moved = false, failed = false;
    try {
        for (const auto& peer : peers_) {
            if (peer->gone) continue;
            moved |= peer->step(now);
            const bool failure = peer->link->error().has_value();
            // What the other job does with its state, or how it ends, is its own affair.
            if (!peer->port.empty() && peer->transferred()) {
                if (failure || (peer->link->peer_left() && peer->link->drained())) part(*peer);
                continue;
            }
            failed |= failure;
        }
    } catch (const std::exception& e) {
        failed = true;
        for (const auto& peer : peers_)
            peer->link->end_with({Errc::resource, fmt::format("no memory for messages: {}", e.what())});
    }
    if (failed) end_with_group();
    if (moved || failed) gate_.changed();
    return moved;
}

// All ranks refuse the same roles. mpirun ends a job with its first rank that ends: each says why before that.
void MpiWorld::leave_refused() {
    if (!roles_refused_) return;
    {
        auto lock = gate_.enter();
        gate_.wait_idly(lock, [&] { return leaving_; });
    }
    const TimePoint begin = Clock::now();
    goodbye_ = MpiGoodbye(MPI_COMM_WORLD);
    if (!goodbye_.begin()) return;
    while (seconds_since(begin) < tell_s) {
        if (goodbye_.test() != MpiGoodbye::State::waiting) return;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

void MpiWorld::move_frames() {
    TimePoint last_moved = Clock::now();
    for (;;) {
        for (auto rest = least_rest; gate_.stepped_since(Clock::now() - stays_out);
             rest = std::min(2 * rest, stays_out))
            std::this_thread::sleep_for(rest);
        {
            auto lock = gate_.enter_last();
            if (job_) run_pending_job(lock);
            TimePoint now = Clock::now();
            do {
                now = Clock::now();
                if (step_peers(now)) last_moved = now;
            } while (gate_.goes_on(now - last_moved) && !job_ && !leaving_);
            if (leaving_ && may_end(now)) {
                if (meeting_ != Meeting::met) goodbye_.call_off();
                phase_ = meeting_ == Meeting::met ? Phase::finalizing : Phase::ended;
                gate_.changed();
                return;
            }
            const double idle = std::chrono::duration<double>(now - last_moved).count();
            if (idle > spin_s) gate_.rest(lock, std::clamp(idle * rest_share, rest_s, long_rest_s));
        }
        std::this_thread::yield();
    }
}

// For a rank that waits for a state, or for one to be taken, while its group has come to an end. The group is told by
// the one that shows the error.
void MpiWorld::end_with_group() {
    if (!group_ || leaving_) return;
    const auto failure = group_->end_reason();
    if (!failure) return;
    for (const auto& peer : peers_)
        if (peer->sender || peer->receiver) peer->link->give_up(*failure);
}

void MpiWorld::say_goodbye(TimePoint now) {
    said_goodbye_ = true;
    said_goodbye_at_ = now;
    for (const auto& peer : peers_) {
        if (peer->gone) continue;
        peer->served = peer->transferred();
        if (leave_error_) {
            peer->link->give_up(*leave_error_);
        } else if (!peer->served) {
            peer->link->give_up({Errc::peer, peer->sender ? "it ended without sending a state"
                                                          : "it ended without receiving the state"});
        }
        peer->link->say_bye();
        const LinkCounters& counted = peer->link->counters();
        log::debug("{}: {} frames sent ({} bytes), {} of them again; {} received, {} damaged, {} twice, {} stale",
                   peer->link->options().peer, counted.frames_sent, counted.bytes_sent, counted.resent,
                   counted.frames_received, counted.damaged, counted.duplicates, counted.stale);
    }
}

// In order: until every rank of the job has come this far. After an error: until the peers know, but not for long.
bool MpiWorld::may_end(TimePoint now) {
    if (!said_goodbye_) say_goodbye(now);
    bool all_drained = true, all_left = true, any_failed = leave_error_.has_value();
    for (const auto& peer : peers_) {
        if (!peer->port.empty() && peer->served) {  // once it knows that we leave, or does not care
            all_drained &= peer->gone || peer->link->drained() || seconds_since(said_goodbye_at_) > tell_s;
            continue;
        }
        all_drained &= peer->link->drained();
        all_left &= peer->link->peer_left();
        any_failed |= peer->link->error().has_value();
    }
    if (any_failed) {
        if (!failed_at_) failed_at_ = now;
        const bool told = all_drained && all_left;
        if (told && !peers_gone_) peers_gone_ = now;
        const bool by_another = !leave_error_ || leave_error_->code == Errc::peer ||
                                (group_ && group_->failure() == Communicator::Failure::elsewhere);
        const double linger = by_another ? linger_s : 0;
        return (peers_gone_ && std::chrono::duration<double>(now - *peers_gone_).count() >= linger) ||
               std::chrono::duration<double>(now - *failed_at_).count() > tell_s;
    }
    if (meeting_ == Meeting::none) {
        if (!all_drained) return false;
        meeting_ = Meeting::begun;
        if (!goodbye_.begin()) return true;
    }
    const MpiGoodbye::State state = goodbye_.test();
    if (state == MpiGoodbye::State::met) meeting_ = Meeting::met;
    return state != MpiGoodbye::State::waiting;
}

void MpiWorld::finalize() {
    for (const auto& peer : peers_)
        if (!peer->port.empty()) part(*peer);
    if (!initialised_elsewhere_) MPI_Finalize();
    auto lock = gate_.enter();
    phase_ = Phase::finalized;
    gate_.changed();
}

Result<MpiWorld::Peer*> MpiWorld::find(const Endpoint& endpoint, bool sending) {
    auto lock = gate_.enter();
    const bool joined = endpoint.kind == EndpointKind::mpi_port;
    for (const auto& peer : peers_) {
        if (sending ? !peer->sender : !peer->receiver) continue;
        if (joined ? peer->port == endpoint.path : peer->port.empty() && peer->rank == endpoint.rank) return peer.get();
    }
    return fail(Errc::internal, "{} was not prepared", to_string(endpoint));
}

Result<MpiWorld::Peer*> MpiWorld::open(const Endpoint& endpoint, bool sending) {
    HETERO_TRY(Peer * peer, find(endpoint, sending));
    auto lock = gate_.enter();
    if (std::exchange(peer->opened, true)) return fail(Errc::internal, "{} was opened twice", to_string(endpoint));
    return peer;
}

Result<MpiWorld::Measured> MpiWorld::measure(Peer& peer, SmallProbes probes) {
    auto lock = gate_.enter();
    if (peer.sender->started()) return fail(Errc::internal, "{} has a state on its way", peer.link->options().peer);
    peer.measure.emplace(*peer.link, probes, options_.max_bytes_per_s);
    gate_.nudge();
    gate_.wait(lock, [&] { return peer.measure->rate() || peer.link->error(); });
    const std::optional<LinkMeasure> done = std::exchange(peer.measure, std::nullopt);
    if (!done->rate()) return tl::unexpected<Error>(*peer.link->error());
    return Measured{*done->rate(), done->round_trips_s()};
}

TransferStats MpiWorld::transfer_stats(Peer& peer, bool sending) {
    const auto lock = gate_.enter();
    TransferStats stats = sending ? peer.sender->times().stats() : peer.receiver->times().stats();
    const LinkCounters& counters = peer.link->counters();
    stats.bytes = sending ? counters.bytes_sent : counters.bytes_received;
    return stats;
}

Result<std::optional<std::chrono::nanoseconds>> MpiWorld::clock_offset(Peer& peer) {
    auto lock = gate_.enter();
    peer.clock.emplace(*peer.link);
    gate_.nudge();
    gate_.wait(lock, [&] { return peer.clock->done() || peer.link->error(); });
    const std::optional<ClockOffset> done = std::exchange(peer.clock, std::nullopt);
    if (peer.link->error()) return tl::unexpected<Error>(*peer.link->error());
    log::debug("{}: its time line is {} ns from our clock, +- {}", peer.link->options().peer,
               done->offset() ? done->offset()->count() : 0, done->round_trip().count() / 2);
    return done->offset();
}

// Peers that we let down ourselves do not count.
Status MpiWorld::left_in_order() const {
    if (leave_error_ || phase_ != Phase::ended) return {};
    if (group_ && group_->end_reason()) return tl::unexpected<Error>(*group_->end_reason());
    for (const auto& peer : peers_)
        if (peer->served && peer->port.empty() && peer->link->error())
            return tl::unexpected<Error>(*peer->link->error());
    if (!failed_at_) return fail(Errc::peer, "MPI failed while the ranks of the job were leaving it");
    return {};
}

Status MpiWorld::leave(const Error* error) noexcept {
    const auto end_process = [&] {
        std::fflush(nullptr);
        std::_Exit(error != nullptr ? static_cast<int>(error->code) : 0);
    };
    auto lock = gate_.enter();
    if (leaving_) return {};
    if (phase_ == Phase::starting || stuck_) end_process();  // the thread does not come back from MPI
    if (phase_ == Phase::ready) {
        leaving_ = true;
        if (error != nullptr) leave_error_ = *error;
        gate_.wake();
        // In order this may take as long as the others compute; heartbeats go on, and a lost peer ends it.
        const auto ended = [&] { return phase_ != Phase::ready; };
        if (error == nullptr) {
            gate_.wait_idly(lock, ended);
        } else if (!gate_.wait_for(lock, 2 * tell_s, ended)) {
            end_process();
        }
        if (phase_ == Phase::finalizing &&
            !gate_.wait_for(lock, finalize_s, [&] { return phase_ == Phase::finalized; }))
            end_process();
    }
    leaving_ = true;
    gate_.changed();
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    return left_in_order();
}

}  // namespace hetero::transport
