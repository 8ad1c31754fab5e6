// The ranks of a group as threads of one process.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/communicator.h"

namespace hetero::test {

class ThreadGroup {
public:
    explicit ThreadGroup(int size) : parts_(static_cast<std::size_t>(size)) {}

    // Calls body(communicator of the rank) in one thread for each rank; rethrows what one of them threw. A rank that
    // has ended leaves the others without: their calls fail.
    void run(const std::function<void(Communicator&)>& body) {
        std::vector<std::thread> threads;
        std::exception_ptr thrown;
        for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
            threads.emplace_back([&, rank] {
                Member member(*this, static_cast<int>(rank));
                try {
                    body(member);
                } catch (...) {
                    const std::lock_guard lock(mutex_);
                    if (!thrown) thrown = std::current_exception();
                }
                const std::lock_guard lock(mutex_);
                left_ = left_.value_or(static_cast<int>(rank));
                met_.notify_all();
            });
        }
        for (std::thread& thread : threads) thread.join();
        left_.reset();
        if (thrown) std::rethrow_exception(thrown);
    }

private:
    class Member final : public Communicator {
    public:
        Member(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}
        [[nodiscard]] int rank() const noexcept override { return rank_; }
        [[nodiscard]] int size() const noexcept override { return static_cast<int>(group_.parts_.size()); }

    protected:
        Result<std::span<const std::byte>> collect(std::span<const std::byte> mine, std::span<const std::size_t> bytes,
                                                   To to) override {
            group_.parts_[static_cast<std::size_t>(rank_)] = mine;
            HETERO_CHECK(group_.meet());
            all_.clear();
            if (to == To::all || is_root()) {
                for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
                    const auto part = group_.parts_[rank];
                    if (part.size() != bytes[rank])
                        return fail(Errc::internal, "rank {} gave {} bytes", rank, part.size());
                    all_.insert(all_.end(), part.begin(), part.end());
                }
            }
            HETERO_CHECK(group_.meet());  // nobody reads any more
            return std::span<const std::byte>(all_);
        }
        Status spread(std::span<std::byte> bytes) override {
            if (is_root()) group_.parts_[0] = bytes;
            HETERO_CHECK(group_.meet());
            if (!is_root() && !bytes.empty()) std::memcpy(bytes.data(), group_.parts_[0].data(), bytes.size());
            return group_.meet();
        }

    private:
        ThreadGroup& group_;
        int rank_;
        std::vector<std::byte> all_;
    };

    Status meet() {
        std::unique_lock lock(mutex_);
        const std::uint64_t round = round_;
        if (++there_ == parts_.size()) {
            there_ = 0;
            ++round_;
            met_.notify_all();
            return {};
        }
        const bool met = met_.wait_for(lock, std::chrono::seconds(60), [&] { return round_ != round || left_; });
        if (round_ != round) return {};
        if (!met) return fail(Errc::peer, "the ranks did not meet");
        return fail(Errc::peer, "rank {} has left", *left_);
    }

    std::mutex mutex_;
    std::condition_variable met_;
    std::size_t there_ = 0;
    std::uint64_t round_ = 0;
    std::optional<int> left_;
    std::vector<std::span<const std::byte>> parts_;  // [rank]
};

}  // namespace hetero::test
