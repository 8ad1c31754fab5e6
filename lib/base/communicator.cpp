#include "base/communicator.h"

#include <chrono>
#include <cstring>

#include "base/clock.h"

namespace hetero {
namespace {

using Clock = std::chrono::steady_clock;

// How a rank tells the others how it fares: the code (0: well), the length of the text, the text.
constexpr std::size_t verdict_bytes = 1024, max_text_bytes = verdict_bytes - 2 * sizeof(std::uint32_t);

}  // namespace

Result<std::span<const std::byte>> Communicator::counted(std::span<const std::byte> mine,
                                                         std::span<const std::size_t> bytes, To to) {
    if (bytes.size() != static_cast<std::size_t>(size()) || bytes[static_cast<std::size_t>(rank())] != mine.size())
        return fail(Errc::internal, "a gather of {} parts, {} bytes from here, among {} ranks", bytes.size(),
                    mine.size(), size());
    if (size() == 1) return mine;
    const Clock::time_point start = Clock::now();
    auto result = collect(mine, bytes, to);
    counters_.seconds += seconds_since(start);
    ++counters_.calls;
    if (result && !result->empty()) counters_.bytes += result->size() - mine.size();
    return result;
}

Result<std::span<const std::byte>> Communicator::all_gather(std::span<const std::byte> mine,
                                                            std::span<const std::size_t> bytes) {
    return counted(mine, bytes, To::all);
}

Result<std::span<const std::byte>> Communicator::gather(std::span<const std::byte> mine,
                                                        std::span<const std::size_t> bytes) {
    return counted(mine, bytes, To::root);
}

Status Communicator::broadcast(std::vector<std::byte>& bytes) {
    if (size() == 1) return {};
    const Clock::time_point start = Clock::now();
    std::uint64_t count = bytes.size();
    HETERO_CHECK(spread(std::as_writable_bytes(std::span(&count, 1))));
    if (!is_root()) {
        try {
            bytes.resize(count);
        } catch (const std::exception&) {
            return fail(Errc::resource, "out of memory: rank 0 hands out {} bytes", count);
        }
    }
    Status done = spread(bytes);
    counters_.seconds += seconds_since(start);
    ++counters_.calls;
    if (!is_root()) counters_.bytes += sizeof count + count;
    return done;
}

Status Communicator::agree(const Status& mine) {
    if (size() == 1) return mine;
    std::vector<std::byte> verdict(verdict_bytes);
    if (!mine) {
        const auto code = static_cast<std::uint32_t>(mine.error().code);
        const auto length = static_cast<std::uint32_t>(std::min(mine.error().message.size(), max_text_bytes));
        std::memcpy(verdict.data(), &code, sizeof code);
        std::memcpy(verdict.data() + sizeof code, &length, sizeof length);
        std::memcpy(verdict.data() + sizeof code + sizeof length, mine.error().message.data(), length);
    }
    const std::vector<std::size_t> sizes(static_cast<std::size_t>(size()), verdict_bytes);
    HETERO_TRY(const std::span<const std::byte> all, all_gather(verdict, sizes));
    for (int other = 0; other < size(); ++other) {
        const std::byte* at = all.data() + static_cast<std::size_t>(other) * verdict_bytes;
        std::uint32_t code = 0, length = 0;
        std::memcpy(&code, at, sizeof code);
        if (code == 0) continue;
        set_failure(other == rank() ? Failure::here : Failure::elsewhere);
        if (other == rank()) return mine;
        std::memcpy(&length, at + sizeof code, sizeof length);
        return tl::unexpected(
            Error{static_cast<Errc>(code), std::string(reinterpret_cast<const char*>(at + sizeof code + sizeof length),
                                                       std::min<std::size_t>(length, max_text_bytes))});
    }
    return {};
}

Communicator& single_process() noexcept {
    static SingleProcess single;
    return single;
}

}  // namespace hetero
