#include "transport/mpi_world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>

#include "base/log.h"
#include "transport/blocked_signals.h"
#include "transport/mpi_call.h"
#include "transport/mpi_channel.h"

namespace hetero::transport {
namespace {

using Clock = std::chrono::steady_clock;

// The whole of timeout_s: most of it to notice, the rest to tell the others and leave.
constexpr double notice_fraction = 0.6;
constexpr double tell_s = 1.0;  // at most, after an error: until the peers have left too
constexpr double linger_s =
    0.3;  // a rank that ends because of another lets that one end first: its status is the job's
constexpr double finalize_s = 2.0;
constexpr double spin_s = 500e-6, rest_s = 50e-6, long_rest_s = 1e-3, idle_s = 20e-3;

double seconds_since(TimePoint from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

constexpr int max_roles = 7;

// Which ranks a rank reads from and writes to, as every rank tells every other.
struct Roles {
    std::uint32_t magic = 0x52564B48;  // "HKVR"
    std::uint32_t version = wire_version;
    std::int32_t inputs[max_roles], outputs[max_roles];  // -1: none
};

bool names(const std::int32_t (&ranks)[max_roles], int rank) {
    return std::find(std::begin(ranks), std::end(ranks), rank) != std::end(ranks);
}

std::string list(const std::int32_t (&ranks)[max_roles]) {
    std::string out;
    for (const std::int32_t rank : ranks)
        if (rank >= 0) out += fmt::format("{}mpi:{}", out.empty() ? "" : " and ", rank);
    return out.empty() ? "no mpi: endpoint" : out;
}

// A tool writes after it has read, so ranks that read from each other in a ring would wait for ever: there must be an
// order in which every rank comes after those it reads from.
Status check_order(const std::vector<Roles>& all) {
    const int size = static_cast<int>(all.size());
    std::vector<int> unread(all.size());  // inputs that are not ready
    std::vector<int> ready;
    for (int rank = 0; rank < size; ++rank) {
        const auto& inputs = all[static_cast<std::size_t>(rank)].inputs;
        unread[static_cast<std::size_t>(rank)] =
            static_cast<int>(std::count_if(std::begin(inputs), std::end(inputs), [](int peer) { return peer >= 0; }));
        if (unread[static_cast<std::size_t>(rank)] == 0) ready.push_back(rank);
    }
    for (std::size_t done = 0; done < ready.size(); ++done) {
        for (const std::int32_t peer : all[static_cast<std::size_t>(ready[done])].outputs)
            if (peer >= 0 && --unread[static_cast<std::size_t>(peer)] == 0) ready.push_back(peer);
    }
    for (int rank = 0; rank < size; ++rank) {
        if (unread[static_cast<std::size_t>(rank)] > 0)
            return fail(Errc::usage,
                        "rank {} reads {} and writes {}: what it reads comes out of a ring of ranks, so none can begin",
                        rank, list(all[static_cast<std::size_t>(rank)].inputs),
                        list(all[static_cast<std::size_t>(rank)].outputs));
    }
    return {};
}

Status check_roles(const std::vector<Roles>& all) {
    const int size = static_cast<int>(all.size());
    for (int rank = 0; rank < size; ++rank) {
        const Roles& roles = all[static_cast<std::size_t>(rank)];
        if (roles.magic != Roles{}.magic || roles.version != wire_version)
            return fail(Errc::peer, "rank {} is not a hetero tool of this version", rank);
        for (const bool reads : {true, false}) {
            for (const std::int32_t peer : reads ? roles.inputs : roles.outputs) {
                if (peer < 0) continue;
                const char* verb = reads ? "reads" : "writes";
                if (peer >= size)
                    return fail(Errc::usage, "rank {} {} mpi:{}, but this job has ranks 0 to {}", rank, verb, peer,
                                size - 1);
                if (peer == rank) return fail(Errc::usage, "rank {} {} mpi:{}, which is itself", rank, verb, peer);
                const Roles& other = all[static_cast<std::size_t>(peer)];
                if (!names(reads ? other.outputs : other.inputs, rank))
                    return fail(Errc::usage, "rank {} {} mpi:{}, but rank {} {} {}", rank, verb, peer, peer,
                                reads ? "writes" : "reads", list(reads ? other.outputs : other.inputs));
            }
        }
    }
    return check_order(all);
}

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
    const char* launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    if (std::none_of(std::begin(launchers), std::end(launchers), [](const char* name) { return std::getenv(name); }))
        return fail(Errc::usage, "mpi:{}: this process was not started by mpirun (or srun --mpi=pmix)",
                    inputs.empty() ? outputs.front() : inputs.front());
    try {
        g_world = new MpiWorld(inputs, outputs, options);
        g_world->launch();
    } catch (const std::exception& e) {
        g_world = nullptr;
        return fail(Errc::resource, "no thread for MPI: {}", e.what());
    }
    auto lock = g_world->gate_.enter();
    g_world->gate_.wait_for(lock, notice_fraction * options.timeout_s + 0.2,
                            [] { return g_world->phase_ != Phase::starting; });
    if (g_world->phase_ == Phase::starting)
        return fail(
            Errc::peer,
            "MPI did not start within {:.3g} s: every rank of the job has to use an mpi: endpoint; one that does "
            "not, or that has ended, keeps the others waiting (--timeout allows more time)",
            notice_fraction * options.timeout_s);
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
        if (seconds_since(started_) > notice_fraction * options_.timeout_s)
            return fail(
                Errc::peer,
                "the ranks did not meet within {:.3g} s ({}): is each of them a hetero tool with an mpi: endpoint?",
                notice_fraction * options_.timeout_s, what);
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
        HETERO_MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    }
    HETERO_MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int rank = 0, size = 0;
    HETERO_MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    HETERO_MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    HETERO_CHECK(exchange_roles(rank, size));
    for (MPI_Comm* comm : {&control_, &data_}) {
        MPI_Request request = MPI_REQUEST_NULL;
        HETERO_MPI_CHECK(MPI_Comm_idup(MPI_COMM_WORLD, comm, &request), "MPI_Comm_idup");
        HETERO_CHECK(await(request, "MPI_Comm_idup"));
        HETERO_MPI_CHECK(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    for (const int peer : inputs_) add_peer(peer, false);
    for (const int peer : outputs_) add_peer(peer, true);
    return {};
}

Status MpiWorld::exchange_roles(int rank, int size) {
    Roles own;
    std::fill(std::begin(own.inputs), std::end(own.inputs), -1);
    std::fill(std::begin(own.outputs), std::end(own.outputs), -1);
    std::copy(inputs_.begin(), inputs_.end(), own.inputs);
    std::copy(outputs_.begin(), outputs_.end(), own.outputs);
    std::vector<Roles> all(static_cast<std::size_t>(size));
    MPI_Request request = MPI_REQUEST_NULL;
    HETERO_MPI_CHECK(
        MPI_Iallgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD, &request),
        "MPI_Iallgather");
    HETERO_CHECK(await(request, "MPI_Iallgather"));
    log::debug("rank {} of {}: reads {}, writes {}", rank, size, list(own.inputs), list(own.outputs));
    return check_roles(all);
}

void MpiWorld::add_peer(int rank, bool sending) {
    LinkOptions link;
    link.role = sending ? WireRole::sender : WireRole::receiver;
    link.peer = fmt::format("rank {}", rank);
    link.silence_s = notice_fraction * options_.timeout_s;
    link.heartbeat_s = std::min(0.5, options_.timeout_s / 20);
    if (sending) link.session = random_session();
    auto peer = std::make_unique<Peer>();
    peer->rank = rank;
    peer->link =
        std::make_unique<Link>(std::make_unique<MpiChannel>(control_, data_, rank, sending), link, Clock::now());
    if (sending) {
        peer->sender.emplace(*peer->link);
    } else {
        peer->receiver.emplace(*peer->link);
    }
    peers_.push_back(std::move(peer));
}

void MpiWorld::run() {
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
        if (start_error_) return;
    }
    try {
        move_frames();
    } catch (const std::exception& e) {
        auto lock = gate_.enter();
        for (const auto& peer : peers_)
            peer->link->end_with({Errc::resource, fmt::format("no memory for messages: {}", e.what())});
        phase_ = Phase::ended;
        gate_.changed();
    }
    if (phase_ == Phase::finalizing) finalize();
}

void MpiWorld::move_frames() {
    TimePoint last_moved = Clock::now();
    for (;;) {
        {
            auto lock = gate_.enter_last();
            const TimePoint now = Clock::now();
            bool moved = false, failed = false;
            for (const auto& peer : peers_) {
                moved |= peer->sender ? peer->sender->step(now) : peer->receiver->step(now);
                failed |= peer->link->error().has_value();
            }
            if (moved) last_moved = now;
            if (moved || failed) gate_.changed();
            if (leaving_ && may_end(now)) {
                phase_ = barrier_started_ && barrier_ == MPI_REQUEST_NULL ? Phase::finalizing : Phase::ended;
                gate_.changed();
                return;
            }
            const double idle = std::chrono::duration<double>(now - last_moved).count();
            if (idle > spin_s) gate_.rest(lock, idle > idle_s ? long_rest_s : rest_s);
        }
        std::this_thread::yield();
    }
}

void MpiWorld::say_goodbye() {
    said_goodbye_ = true;
    for (const auto& peer : peers_) {
        peer->served = peer->sender ? peer->sender->committed() : peer->receiver->confirmed();
        if (leave_error_) {
            peer->link->give_up(*leave_error_);
        } else if (!peer->served) {
            peer->link->give_up({Errc::peer, peer->sender ? "it ended without sending a state"
                                                          : "it ended without receiving the state"});
        }
        peer->link->say_bye();
    }
}

// In order: until every rank of the job has come this far. After an error: until the peers know, but not for long.
bool MpiWorld::may_end(TimePoint now) {
    if (!said_goodbye_) say_goodbye();
    bool all_drained = true, all_left = true, any_failed = leave_error_.has_value();
    for (const auto& peer : peers_) {
        all_drained &= peer->link->drained();
        all_left &= peer->link->peer_left();
        any_failed |= peer->link->error().has_value();
    }
    if (any_failed) {
        if (!failed_at_) failed_at_ = now;
        const bool told = all_drained && all_left;
        if (told && !peers_gone_) peers_gone_ = now;
        const double linger = leave_error_ && leave_error_->code != Errc::peer ? 0 : linger_s;
        return (peers_gone_ && std::chrono::duration<double>(now - *peers_gone_).count() >= linger) ||
               std::chrono::duration<double>(now - *failed_at_).count() > tell_s;
    }
    if (!barrier_started_) {
        if (!all_drained) return false;
        barrier_started_ = true;
        if (MPI_Ibarrier(control_, &barrier_) != MPI_SUCCESS) return true;
    }
    int done = 0;
    return MPI_Test(&barrier_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
}

void MpiWorld::finalize() {
    if (!initialised_elsewhere_) MPI_Finalize();
    auto lock = gate_.enter();
    phase_ = Phase::finalized;
    gate_.changed();
}

Result<MpiWorld::Peer*> MpiWorld::open(int rank, bool sending) {
    auto lock = gate_.enter();
    for (const auto& peer : peers_) {
        if (peer->rank != rank || peer->sender.has_value() != sending) continue;
        if (peer->opened) return fail(Errc::internal, "mpi:{} was opened twice", rank);
        peer->opened = true;
        return peer.get();
    }
    return fail(Errc::internal, "mpi:{} was not prepared", rank);
}

// Peers that we let down ourselves do not count.
Status MpiWorld::left_in_order() const {
    if (leave_error_ || phase_ != Phase::ended) return {};
    for (const auto& peer : peers_)
        if (peer->served && peer->link->error()) return tl::unexpected<Error>(*peer->link->error());
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
    if (phase_ == Phase::starting) end_process();  // the thread is stuck in MPI_Init
    if (phase_ == Phase::ready) {
        leaving_ = true;
        if (error != nullptr) leave_error_ = *error;
        gate_.nudge();
        // In order this may take as long as the others compute; heartbeats go on, and a lost peer ends it.
        const auto ended = [&] { return phase_ != Phase::ready; };
        if (error == nullptr) {
            gate_.wait(lock, ended);
        } else if (!gate_.wait_for(lock, 2 * tell_s, ended)) {
            end_process();
        }
        if (phase_ == Phase::finalizing &&
            !gate_.wait_for(lock, finalize_s, [&] { return phase_ == Phase::finalized; }))
            end_process();
    }
    leaving_ = true;
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    return left_in_order();
}

}  // namespace hetero::transport
