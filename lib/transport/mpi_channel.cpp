#include "transport/mpi_channel.h"

#include <algorithm>
#include <array>

#include "transport/mpi_call.h"

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace hetero::transport {
namespace {

constexpr int tag_from_sender = 1, tag_from_receiver = 2;  // control; on the data communicator: payloads of OFFER
constexpr int tag_chunks = 64;                             // + slot; below the 32,767 that the standard promises
constexpr std::size_t piece_bytes = 64U << 20;             // larger payloads are several messages: MPI counts are int
constexpr std::size_t max_sending = 256;                   // requests at a time

}  // namespace

tl::unexpected<Error> mpi_failure(const char* call, int code) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
    return fail(Errc::peer, "{}: {}", call, std::string_view(text.data(), static_cast<std::size_t>(length)));
}

bool mpi_reads_device_memory() noexcept {
#ifdef MPIX_CUDA_AWARE_SUPPORT  // whatever it is: the library may be another than that of the headers
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}

MpiChannel::MpiChannel(MPI_Comm control, MPI_Comm data, int peer, bool sends_state)
    : control_(control),
      data_(data),
      peer_(peer),
      tag_out_(sends_state ? tag_from_sender : tag_from_receiver),
      tag_in_(sends_state ? tag_from_receiver : tag_from_sender) {}

Status MpiChannel::send(const HeaderBytes& head, Payload payload) {
    outbox_.push_back({head, std::move(payload)});
    return {};
}

Status MpiChannel::expect(std::uint32_t slot, std::span<std::byte> place, std::shared_ptr<void> owner) {
    places_[slot] = {place, std::move(owner)};
    return {};
}

void MpiChannel::cancel() noexcept {
    cancelled_ = true;
    places_.clear();
}

Status MpiChannel::send_bytes(std::span<const std::byte> bytes, MPI_Comm comm, int tag,
                              const std::shared_ptr<const void>& owner) {
    for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
        const auto piece = bytes.subspan(at, std::min(piece_bytes, bytes.size() - at));
        MPI_Request request = MPI_REQUEST_NULL;
        HETERO_MPI_CHECK(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, peer_, tag, comm, &request),
                         "MPI_Isend");
        sending_.push_back(request);
        kept_.push_back({owner, comm == data_ ? piece.size() : 0});
        sending_bytes_ += kept_.back().bytes;
    }
    return {};
}

// MPI has two payloads at least, whatever their size: one is there when the other has left.
bool MpiChannel::may_start(const Outgoing& frame) const noexcept {
    return sending_.size() < max_sending &&
           (sending_bytes_ < in_flight_bytes_ || sending_bytes_ <= frame.payload.bytes.size());
}

Status MpiChannel::start_sends() {
    while (!outbox_.empty() && may_start(outbox_.front())) {
        Outgoing frame = std::move(outbox_.front());
        outbox_.pop_front();
        const auto decoded = decode_frame(frame.head);
        const bool chunk = decoded && decoded->kind == FrameKind::chunk;
        const bool apart = chunk || frame.payload.bytes.size() > inline_bytes;
        const auto inlined = apart ? std::span<const std::byte>() : frame.payload.bytes;
        auto message = std::make_shared_for_overwrite<std::array<std::byte, message_bytes>>();
        const auto end = std::copy(inlined.begin(), inlined.end(),
                                   std::copy(frame.head.begin(), frame.head.end(), message->begin()));
        HETERO_CHECK(send_bytes({message->begin(), end}, control_, tag_out_, message));
        if (apart)
            HETERO_CHECK(send_bytes(frame.payload.bytes, data_,
                                    chunk ? tag_chunks + static_cast<int>(decoded->slot) : tag_out_,
                                    frame.payload.owner));
    }
    return {};
}

Status MpiChannel::finish_sends() {
    if (sending_.empty()) return {};
    sent_indices_.resize(sending_.size());
    int done = 0;
    HETERO_MPI_CHECK(MPI_Testsome(static_cast<int>(sending_.size()), sending_.data(), &done, sent_indices_.data(),
                                  MPI_STATUSES_IGNORE),
                     "MPI_Testsome");
    if (done == MPI_UNDEFINED || done == 0) return {};
    std::size_t kept = 0;
    for (std::size_t i = 0; i < sending_.size(); ++i) {
        if (sending_[i] == MPI_REQUEST_NULL) {
            sending_bytes_ -= kept_[i].bytes;
            continue;
        }
        if (kept != i) {
            sending_[kept] = sending_[i];
            kept_[kept] = std::move(kept_[i]);
        }
        ++kept;
    }
    sending_.resize(kept);
    kept_.resize(kept);
    return {};
}

Status MpiChannel::take_control() {
    while (!foreign_) {
        if (control_request_ == MPI_REQUEST_NULL) {
            int there = 0, count = 0;
            MPI_Status status{};
            HETERO_MPI_CHECK(MPI_Iprobe(peer_, tag_in_, control_, &there, &status), "MPI_Iprobe");
            if (there == 0) return {};
            HETERO_MPI_CHECK(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
            const auto size = static_cast<std::size_t>(count);
            if (size < frame_header_bytes || size > message_bytes) {
                foreign_ = true;
                inbox_.emplace_back();  // 64 zeros: no frame
                return {};
            }
            control_message_.resize(size);
            HETERO_MPI_CHECK(
                MPI_Irecv(control_message_.data(), count, MPI_BYTE, peer_, tag_in_, control_, &control_request_),
                "MPI_Irecv");
        }
        int done = 0;
        HETERO_MPI_CHECK(MPI_Test(&control_request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (done == 0) return {};

        Incoming frame;
        const auto body = control_message_.begin() + frame_header_bytes;
        std::copy(control_message_.begin(), body, frame.arrival.head.begin());
        if (const auto header = decode_frame(frame.arrival.head)) {
            frame.length = header->length;
            if (header->kind == FrameKind::chunk) {
                frame.apart = true;
                frame.tag = tag_chunks + static_cast<int>(header->slot);
                frame.slot = header->slot;
                frame.unplaced = !find_place(frame);
            } else if (header->length > inline_bytes) {
                frame.apart = true;
                frame.tag = tag_in_;
            }
        }
        if (!frame.apart) frame.arrival.inline_payload.assign(body, control_message_.end());
        inbox_.push_back(std::move(frame));
        if (inbox_.size() == 1 && !inbox_.front().apart) return {};  // it waits for nothing: nor does whoever answers
    }
    return {};
}

bool MpiChannel::find_place(Incoming& frame) {
    const auto place = places_.find(frame.slot);
    if (place == places_.end() || place->second.bytes.size() != frame.length) return false;
    frame.place = std::move(place->second);
    places_.erase(place);
    return true;
}

// Posts receives for what has been announced and is on its way.
Status MpiChannel::take_payload(Incoming& frame) {
    while (frame.apart && !frame.unplaced && frame.matched < frame.length && !cancelled_) {
        if (!frame.place && !frame.requests.empty()) return {};  // that buffer grows piece by piece
        int there = 0, count = 0;
        MPI_Status status{};
        HETERO_MPI_CHECK(MPI_Iprobe(peer_, frame.tag, data_, &there, &status), "MPI_Iprobe");
        if (there == 0) return {};
        HETERO_MPI_CHECK(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
        const auto size = static_cast<std::uint64_t>(count);
        const std::uint64_t expected = std::min<std::uint64_t>(frame.length - frame.matched, piece_bytes);
        if (size != expected) return fail(Errc::peer, "a payload of {} bytes where {} were announced", size, expected);
        if (!frame.place) frame.arrival.inline_payload.resize(static_cast<std::size_t>(frame.matched + size));
        std::byte* at = (frame.place ? frame.place->bytes.data() : frame.arrival.inline_payload.data()) + frame.matched;
        frame.requests.push_back(MPI_REQUEST_NULL);
        HETERO_MPI_CHECK(MPI_Irecv(at, count, MPI_BYTE, peer_, frame.tag, data_, &frame.requests.back()), "MPI_Irecv");
        frame.matched += size;
    }
    return {};
}

Result<bool> MpiChannel::complete(Incoming& frame) {
    HETERO_CHECK(take_payload(frame));
    if (!frame.requests.empty()) {
        int done = 0;
        HETERO_MPI_CHECK(
            MPI_Testall(static_cast<int>(frame.requests.size()), frame.requests.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
        if (done == 0) return false;
        frame.requests.clear();
    }
    return !frame.apart || frame.matched == frame.length || cancelled_;
}

void MpiChannel::progress() {
    int there = 0;
    static_cast<void>(MPI_Iprobe(peer_, tag_in_, control_, &there, MPI_STATUS_IGNORE));  // receive() meets the error
}

Result<bool> MpiChannel::front_is_complete() {
    Incoming& frame = inbox_.front();
    // A chunk that came twice: its place may have been given again, because the first one was damaged. If not, its
    // bytes are read all the same, or the peer could not end the message.
    if (frame.unplaced) {
        find_place(frame);
        frame.unplaced = false;
    }
    return complete(frame);
}

Result<std::optional<Arrival>> MpiChannel::receive() {
    HETERO_CHECK(finish_sends());
    HETERO_CHECK(start_sends());
    const bool known = !inbox_.empty();
    bool is_complete = false;
    if (known) {
        HETERO_TRY(is_complete, front_is_complete());
    }
    if (!is_complete) HETERO_CHECK(take_control());
    if (!known && !inbox_.empty()) {
        HETERO_TRY(is_complete, front_is_complete());
    }
    if (!is_complete) {
        // Then those behind it are fetched too. In shared memory a fetch is a copy that this call makes: the next one
        // has to wait until this one, still in cache, has been verified.
        for (std::size_t i = 1; i < inbox_.size(); ++i) HETERO_CHECK(take_payload(inbox_[i]));
        return std::optional<Arrival>{};
    }
    Incoming& frame = inbox_.front();
    delivered_owner_.reset();
    std::optional<Arrival> out = std::move(frame.arrival);
    if (frame.place && frame.matched == frame.length) {
        out->placed = true;
        out->placed_bytes = frame.place->bytes;
        delivered_owner_ = std::move(frame.place->owner);
    }
    inbox_.pop_front();
    return out;
}

}  // namespace hetero::transport
