// Frames over two MPI communicators: one for headers and small payloads, one for chunks. A chunk's bytes go from the
// sender's buffer straight into the layer they belong to.
#pragma once
#include <mpi.h>

#include <deque>
#include <map>
#include <vector>

#include "transport/channel.h"
#include "transport/send_window.h"

namespace hetero::transport {

// All MPI calls happen in receive() and progress(), which whoever moves frames calls under the gate; the other methods
// only take notes. Every message is probed for its size before a receive is posted: Open MPI 4.1 writes beyond the
// buffer when a message of its rendezvous protocol is longer than the receive (seen with the vader BTL).
// Whether this MPI says that it sends from a GPU's memory (Open MPI: MPIX_Query_cuda_support). After MPI_Init.
[[nodiscard]] bool mpi_reads_device_memory() noexcept;

class MpiChannel final : public Channel {
public:
    // `sends_state`: which of the two directions of a transfer this side is; a pair of ranks may have one of each.
    MpiChannel(MPI_Comm control, MPI_Comm data, int peer, bool sends_state);
    // Receives may still be in the hands of MPI: the object must live until MPI_Finalize or the end of the process.
    ~MpiChannel() override = default;

    Status send(const HeaderBytes& head, Payload payload) override;
    [[nodiscard]] bool reads_device_memory() const noexcept override { return mpi_reads_device_memory(); }
    Status expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) override;
    [[nodiscard]] bool withdraw(std::uint32_t slot) override { return places_.erase(slot) != 0; }
    Result<std::optional<Arrival>> receive() override;
    void progress() override;
    void set_in_flight(std::uint64_t bytes) noexcept override { in_flight_bytes_ = bytes; }
    [[nodiscard]] bool sent_all() override { return outbox_.empty() && sending_.empty(); }
    void cancel() noexcept override;

private:
    static constexpr std::size_t message_bytes = 1024;  // header and inline payload: below every eager limit
    static constexpr std::size_t inline_bytes = message_bytes - frame_header_bytes;

    struct Outgoing {
        HeaderBytes head;
        Payload payload;
    };
    struct Sending {
        std::shared_ptr<const void> owner;
        std::uint64_t bytes;  // 0 on the control communicator
    };
    struct Place {
        std::span<std::byte> bytes;
        std::shared_ptr<void> owner;
    };
    struct Incoming {
        Arrival arrival;
        std::optional<Place> place;  // a chunk's payload goes there
        bool apart = false;          // the payload comes in messages of its own
        bool unplaced = false;       // a chunk that had no place when its header came
        std::uint32_t slot = 0;      // of a chunk
        int tag = 0;
        std::uint64_t length = 0, matched = 0;
        std::vector<MPI_Request> requests;
    };

    Status finish_sends();
    Status start_sends();
    Status take_control();
    bool find_place(Incoming& frame);
    Status take_payload(Incoming& frame);
    Result<bool> complete(Incoming& frame);
    Result<bool> front_is_complete();
    [[nodiscard]] bool may_start(const Outgoing& frame) const noexcept;
    Status send_bytes(std::span<const std::byte> bytes, MPI_Comm comm, int tag,
                      const std::shared_ptr<const void>& owner);

    MPI_Comm control_, data_;
    int peer_;
    int tag_out_, tag_in_;
    std::deque<Outgoing> outbox_;
    std::vector<MPI_Request> sending_;
    std::vector<Sending> kept_;        // beside sending_
    std::uint64_t sending_bytes_ = 0;  // on the data communicator
    std::uint64_t in_flight_bytes_ = SendWindow{}.in_flight_bytes;
    std::vector<int> sent_indices_;          // of MPI_Testsome
    std::map<std::uint32_t, Place> places_;  // by slot
    std::vector<std::byte> control_message_;
    MPI_Request control_request_ = MPI_REQUEST_NULL;
    bool foreign_ = false;  // the peer sends what no frame can be: nothing more is read from it
    std::deque<Incoming> inbox_;
    std::shared_ptr<void> delivered_owner_;  // keeps the last delivered place alive until the next call
    bool cancelled_ = false;
};

}  // namespace hetero::transport
