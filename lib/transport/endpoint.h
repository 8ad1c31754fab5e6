// Endpoints: where a tool reads or writes a KV state. PATH, "-" (stdin or stdout), "mpi:RANK", "mpi:FIRST-LAST",
// "mpi-port:FILE".
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/atomic_file.h"
#include "kv/reshard_plan.h"
#include "kv/stream.h"
#include "transport/faults.h"
#include "transport/link_rate.h"
#include "transport/transfer_times.h"

namespace hetero::transport {

class Resume;  // resume.h

enum class EndpointKind { file, pipe, mpi, mpi_port };

struct Endpoint {
    EndpointKind kind = EndpointKind::file;
    std::string path;  // file; mpi_port: where the two jobs find each other
    int rank = -1;     // mpi: the peer's rank in MPI_COMM_WORLD
    int ranks = 1;     // mpi: so many from `rank` on, which hold the shards of one state ("mpi:3-5")
    // Messages to another process, by hkv-mpi, which takes them meanwhile: what is sent early arrives early.
    [[nodiscard]] bool is_link() const noexcept { return kind == EndpointKind::mpi || kind == EndpointKind::mpi_port; }
};

// "mpi:" with something that is not a rank is a usage error; "./mpi:3" is a file.
Result<Endpoint> parse_endpoint(std::string_view text);
std::string to_string(const Endpoint& endpoint);

inline constexpr std::uint64_t min_pipe_memory_bytes = 1024;

struct TransportOptions {
    // A lost peer ends this process within so long: six tenths to notice, the rest to tell the others and for mpirun to
    // end the job. A peer that is alive and computes is waited for.
    double timeout_s = 10;
    // mpi-port: only. How long to wait for the other job to come; 0: as long as timeout_s.
    double meet_s = 0;
    // A pipe's image above this is spooled to a temporary file. At least min_pipe_memory_bytes.
    std::uint64_t max_memory_bytes = 1ULL << 30;
    io::Overwrite overwrite = io::Overwrite::refuse;
    // mpi: the receiver rejects a state of another model before any data moves, naming fields and both values. Callers
    // check files and pipes themselves, by Source::header().
    std::optional<kv::Identity> expected_identity;
    // Above 1: this process is one of so many that compute one model together (group.h), each started with the same
    // options. Only the first of them has endpoints.
    int group_size = 1;
    // Of such a group each rank has one shard of a state (kv/reshard_plan.h), and endpoints. The heads of that state,
    // where they are known: they have to be where one side of an mpi: endpoint is several ranks and this one writes.
    bool shards = false;
    kv::HeadCounts heads;
    // Each rank of such a group reads of the files of shards the heads that it computes with.
    bool own_heads = false;
    int input_ranks = 1, output_ranks = 1;  // of the mpi: endpoints; prepare() fills them in
    std::string tool;                       // its name: all ranks of a group run the same
    // mpi: only. Drills: what this process sends suffers these. At most so many bytes a second to each peer; 0: no
    // limit.
    Faults faults;
    std::uint64_t max_bytes_per_s = 0;
    // Of a state that goes from mpi: into a file as it is: the same object for source and sink.
    std::shared_ptr<Resume> resume;
    // mpi: the sender is told by confirm() that its state has arrived, not by Source::finish(): for what is stored or
    // passed on, so that no sender counts as delivered what was lost after all.
    bool confirm_later = false;
};

// What can be known before long work: output directory writable, overwriting allowed, "-" not a terminal, input and
// output not the same file, MPI compiled in and running, rank within the world and not our own. Starts MPI when an
// endpoint or a group needs it, and only then; checks with the peers that both sides name each other, and that a group
// is complete. In a group the first rank alone checks files and pipes, and all get its verdict.
Status prepare(const std::vector<Endpoint>& inputs, const std::vector<Endpoint>& outputs,
               const TransportOptions& options);

Result<std::unique_ptr<kv::Source>> open_source(const Endpoint& endpoint, const TransportOptions& options);
Result<std::unique_ptr<kv::Sink>> open_sink(const Endpoint& endpoint, const TransportOptions& options);

// With confirm_later, after Source::finish(), when what was read is where it should be.
Status confirm(const Endpoint& input);
// Bytes of the state that were left out, for an earlier transfer had brought them.
[[nodiscard]] std::uint64_t resumed_bytes(const Endpoint& endpoint);

// What the way to an output can carry, by probing it for some milliseconds: after prepare(), before open_sink(),
// whether or not the other side is ready to read. Nothing for a file or a pipe.
Result<std::optional<LinkRate>> measure_link(const Endpoint& endpoint);

// Whether what goes to an output is sent from where it lies, also in a GPU's memory (kv::RemoteLayer): after prepare().
[[nodiscard]] bool reads_device_memory(const Endpoint& output);

// Of the state that this process has sent to an output (`sending`) or read from an input; none for a file or a pipe.
[[nodiscard]] std::optional<TransferStats> transfer_stats(const Endpoint& endpoint, bool sending);
// Puts this process on the time line of the peer that an input is read from (base/trace.h), by some small probes; does
// nothing for a file or a pipe. After open_source(), when that peer has done the same with the one before it.
Status join_time_line(const Endpoint& input);

// Tells every peer of this process that it gave up and why (so that they end too), then leaves MPI. With no error: an
// orderly end, which waits until every rank of the job has come this far, however long it computes. Does nothing where
// MPI was not started. Call once, last, when the error has been printed: where MPI cannot be left any more (another
// rank never started it, or died), it ends the process itself, with the error's code as status.
// An error: the orderly end did not come about, for a peer was lost or gave up after its state had been transferred.
Status leave(const Error* error) noexcept;

// Holds up what processes need to meet by mpi-port:FILE, beyond the life of one of them: for a process that forks
// others which receive states in turn, and does not start MPI itself. They use it while the object lives.
Result<std::shared_ptr<const void>> start_port_service(const TransportOptions& options);

}  // namespace hetero::transport
