// This process's part in an MPI job. One thread makes every MPI call that may wait, from MPI_Init to MPI_Finalize, so a
// call that hangs (a rank that never starts or never ends MPI) cannot hang the tool. It also keeps transfers moving and
// sends heartbeats while the tool computes. The tool's own thread makes calls that return at once, for collectives of a
// group (mpi_group.h) and to move frames while it waits (gate.h), under the same lock.
#pragma once
#include <mpi.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/clock_offset.h"
#include "transport/endpoint.h"
#include "transport/gate.h"
#include "transport/link_measure.h"
#include "transport/mpi_goodbye.h"
#include "transport/mpi_group.h"
#include "transport/receiver.h"
#include "transport/roles.h"
#include "transport/sender.h"

namespace hetero::transport {

// Of timeout_s: to notice that a peer is lost. The rest is for telling the others and leaving.
[[nodiscard]] inline double notice_s(const TransportOptions& options) noexcept { return 0.6 * options.timeout_s; }

class MpiWorld {
public:
    struct Peer {
        int rank = -1;
        std::string port;  // mpi-port: its file; `rank` is that in the group of the communicators then
        MPI_Comm control = MPI_COMM_NULL, data = MPI_COMM_NULL;
        std::unique_ptr<Link> link;
        std::optional<Sender> sender;      // we send our state there
        std::optional<Receiver> receiver;  // we read a state from there
        // Neither: a rank of our group. The link carries heartbeats and errors.
        std::optional<LinkMeasure> measure;
        std::optional<ClockOffset> clock;
        bool step(TimePoint now);
        bool step_conversation(TimePoint now);
        bool opened = false;
        bool served = false;  // when we said goodbye its state had been transferred
        bool gone = false;    // of another job: the state has been transferred, and the ways part
        [[nodiscard]] bool transferred() const noexcept;
    };

    // Starts MPI and compares with all ranks who reads from whom. Call once.
    static Status start(const std::vector<int>& inputs, const std::vector<int>& outputs,
                        const TransportOptions& options);
    // A job of this process alone, whatever started it.
    static Status start_alone(const TransportOptions& options);
    static MpiWorld* running() noexcept;  // nullptr before start()

    // Adds a peer of another job: `meet` makes an intercommunicator with it, on the thread that makes MPI calls. If
    // that takes longer than `patience_s`, MPI cannot be used any more (stuck()).
    Status join(const std::string& port, bool sending, std::function<Result<MPI_Comm>()> meet, double patience_s);

    Result<Peer*> find(const Endpoint& endpoint, bool sending);
    Result<Peer*> open(const Endpoint& endpoint, bool sending);  // once
    // Of the way to a peer that we send to.
    struct Measured {
        LinkRate rate;
        std::vector<double> round_trips_s;  // of small frames
    };
    Result<Measured> measure(Peer& peer, SmallProbes probes);
    TransferStats transfer_stats(Peer& peer, bool sending);
    // Of a peer that we read from: its time line minus our clock; none where it does not answer.
    Result<std::optional<std::chrono::nanoseconds>> clock_offset(Peer& peer);
    // Runs `job` on the thread that makes MPI calls, while no frames move; an error if it does not end in time.
    Status run_job(std::function<Status()> job, double patience_s);
    [[nodiscard]] bool stuck() const noexcept { return stuck_; }  // in a job that did not end
    // Of the endpoint that is read or written, where several ranks hold shards there.
    [[nodiscard]] const std::optional<ShardSides>& shard_sides(bool reads) const noexcept {
        return reads ? read_sides_ : written_sides_;
    }
    [[nodiscard]] MPI_Comm data_communicator() const noexcept { return data_; }
    // Begins the conversation with an opened peer anew. Both sides do, know the session, and have drained the last one.
    void restart(Peer& peer, std::uint64_t session, bool verify_chunks);
    [[nodiscard]] Gate& gate() noexcept { return gate_; }
    [[nodiscard]] int rank() const noexcept { return rank_; }  // once it has started
    [[nodiscard]] Communicator& group() noexcept;
    [[nodiscard]] Status check_group();
    [[nodiscard]] bool shows_error() noexcept;
    // Ends the process where MPI cannot be left. See transport::leave().
    Status leave(const Error* error) noexcept;

private:
    enum class Phase { starting, refused, ready, ended, finalizing, finalized };
    MpiWorld(std::vector<int> inputs, std::vector<int> outputs, const TransportOptions& options);
    static Status begin(const std::vector<int>& inputs, const std::vector<int>& outputs,
                        const TransportOptions& options, const char* hint, Errc failure);
    void launch();
    void run();
    Status initialise();
    Result<std::vector<Roles>> exchange_roles(int rank, int size);
    Status await(MPI_Request& request, const char* what) const;
    [[nodiscard]] LinkOptions link_options(const Peer& peer, bool sending, std::uint64_t session) const;
    std::unique_ptr<Link> link_to(const Peer& peer, bool sending, std::uint64_t session);
    static void part(Peer& peer) noexcept;
    void begin_conversation(Peer& peer, bool sending);
    void run_pending_job(Gate::Lock& lock);
    void add_peer(int rank, bool sending);
    Status add_group(const std::vector<Roles>& all, int rank);
    bool step_peers(TimePoint now);
    void leave_refused();
    void move_frames();
    void end_with_group();
    [[nodiscard]] bool may_end(TimePoint now);
    void say_goodbye(TimePoint now);
    [[nodiscard]] Status left_in_order() const;
    void finalize();

    int rank_ = -1;
    std::vector<int> inputs_, outputs_;
    std::optional<ShardSides> read_sides_, written_sides_;
    TransportOptions options_;
    TimePoint started_;
    std::thread thread_;
    Gate gate_;
    Phase phase_ = Phase::starting;
    std::optional<Error> start_error_;
    MPI_Comm control_ = MPI_COMM_NULL, data_ = MPI_COMM_NULL;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::unique_ptr<MpiGroup> group_;  // null: alone
    bool first_to_show_ = true;        // an error at the start, which all ranks of a group meet alike
    bool roles_refused_ = false;       // by every rank, once each knows what all want

    bool leaving_ = false, said_goodbye_ = false;
    bool stuck_ = false;
    TimePoint said_goodbye_at_;
    std::optional<Error> leave_error_;
    std::optional<TimePoint> failed_at_, peers_gone_;  // while leaving
    MpiGoodbye goodbye_;
    enum class Meeting { none, begun, met } meeting_ = Meeting::none;  // of all ranks, at the end
    bool initialised_elsewhere_ = false;
    std::function<Status()> job_;
    std::optional<Status> job_result_;
};

}  // namespace hetero::transport
