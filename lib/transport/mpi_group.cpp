#include "transport/mpi_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "transport/mpi_call.h"

namespace hetero::transport {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks that compute alike arrive together: most collectives are over within microseconds. A rank that has to wait for
// longer leaves its core to others.
constexpr auto spin = std::chrono::milliseconds(1), nap_until = std::chrono::milliseconds(50);
constexpr auto nap = std::chrono::microseconds(20), sleep = std::chrono::microseconds(1000);
constexpr std::size_t piece_bytes = 64U << 20;  // of a broadcast

}  // namespace

MpiGroup::MpiGroup(Gate& gate, MPI_Comm comm, int rank, int size, std::vector<const Link*> links)
    : gate_(gate),
      comm_(comm),
      rank_(rank),
      size_(size),
      links_(std::move(links)),
      counts_(static_cast<std::size_t>(size)),
      places_(static_cast<std::size_t>(size)) {}

std::optional<Error> MpiGroup::end_reason() const {
    std::optional<Error> lost;
    for (const Link* link : links_) {
        if (link == nullptr) continue;
        if (const auto& reason = link->peer_reason())
            return Error{reason->code, fmt::format("{} gave up: {}", link->options().peer, reason->message)};
        if (!lost && link->error()) lost = link->error();
    }
    return lost;
}

bool MpiGroup::told() const noexcept {
    return std::any_of(links_.begin(), links_.end(),
                       [](const Link* link) { return link != nullptr && link->peer_reason().has_value(); });
}

bool MpiGroup::others_may_tell() const noexcept {
    return std::any_of(links_.begin(), links_.begin() + rank_,
                       [](const Link* link) { return !link->error() && !link->peer_left(); });
}

// A rank that has left in order has made all its calls, and what it sent is on its way; but for how long it is waited
// for has an end.
Status MpiGroup::check(double waited_s) {
    auto failed = end_reason();
    for (const Link* link : links_) {
        if (!failed && link != nullptr && link->peer_left() && waited_s > link->options().silence_s)
            failed = Error{Errc::peer, link->options().peer + " has ended"};
    }
    if (!failed) return {};
    if (told()) set_failure(Failure::elsewhere);
    return tl::unexpected(std::move(*failed));
}

Status MpiGroup::complete(MPI_Request& request, const char* what, Gate::Lock& lock) {
    const Clock::time_point start = Clock::now();
    for (;;) {
        int done = 0;
        HETERO_MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
        if (done != 0) return {};
        const auto waited = Clock::now() - start;
        HETERO_CHECK(check(std::chrono::duration<double>(waited).count()));
        lock.unlock();
        if (waited < spin) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(waited < nap_until ? nap : sleep);
        }
        lock.lock();
    }
}

Result<std::span<const std::byte>> MpiGroup::collect(std::span<const std::byte> mine,
                                                     std::span<const std::size_t> bytes, To to) {
    std::size_t total = 0;
    for (std::size_t r = 0; r < bytes.size(); ++r) {
        places_[r] = static_cast<int>(total);
        counts_[r] = static_cast<int>(bytes[r]);
        total += bytes[r];
        if (total > std::numeric_limits<int>::max())
            return fail(Errc::internal, "a gather of {} bytes and more", total);
    }
    const bool receives = to == To::all || is_root();
    std::byte* own = nullptr;
    try {
        auto& buffer = receives ? all_ : mine_;
        const std::size_t needed = std::max<std::size_t>(receives ? total : mine.size(), 1);
        if (buffer.size() < needed) buffer.resize(needed);
        own = buffer.data() + (receives ? places_[static_cast<std::size_t>(rank_)] : 0);
    } catch (const std::exception&) {
        return fail(Errc::resource, "out of memory: {} bytes to gather", total);
    }
    if (!mine.empty()) std::memcpy(own, mine.data(), mine.size());

    MPI_Request request = MPI_REQUEST_NULL;
    auto lock = gate_.enter();
    HETERO_CHECK(check(0));
    if (to == To::all) {
        HETERO_MPI_CHECK(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, all_.data(), counts_.data(), places_.data(),
                                         MPI_BYTE, comm_, &request),
                         "MPI_Iallgatherv");
    } else if (is_root()) {
        HETERO_MPI_CHECK(MPI_Igatherv(MPI_IN_PLACE, 0, MPI_BYTE, all_.data(), counts_.data(), places_.data(), MPI_BYTE,
                                      0, comm_, &request),
                         "MPI_Igatherv");
    } else {
        HETERO_MPI_CHECK(MPI_Igatherv(mine_.data(), static_cast<int>(mine.size()), MPI_BYTE, nullptr, nullptr, nullptr,
                                      MPI_BYTE, 0, comm_, &request),
                         "MPI_Igatherv");
    }
    HETERO_CHECK(complete(request, to == To::all ? "MPI_Iallgatherv" : "MPI_Igatherv", lock));
    return receives ? std::span<const std::byte>(all_.data(), total) : std::span<const std::byte>();
}

Status MpiGroup::spread(std::span<std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
        const auto piece = bytes.subspan(at, std::min(piece_bytes, bytes.size() - at));
        try {
            if (all_.size() < piece.size()) all_.resize(piece.size());
        } catch (const std::exception&) {
            return fail(Errc::resource, "out of memory: {} bytes to hand out", piece.size());
        }
        if (is_root()) std::memcpy(all_.data(), piece.data(), piece.size());
        MPI_Request request = MPI_REQUEST_NULL;
        auto lock = gate_.enter();
        HETERO_CHECK(check(0));
        HETERO_MPI_CHECK(MPI_Ibcast(all_.data(), static_cast<int>(piece.size()), MPI_BYTE, 0, comm_, &request),
                         "MPI_Ibcast");
        HETERO_CHECK(complete(request, "MPI_Ibcast", lock));
        lock.unlock();
        if (!is_root()) std::memcpy(piece.data(), all_.data(), piece.size());
    }
    return {};
}

}  // namespace hetero::transport
