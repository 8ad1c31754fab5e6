// Who holds how many bytes of KV memory on one worker: what is reserved is never more than there is, and every byte has
// an owner until it is released.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "sched/request.h"

namespace hetero::sched {

class Ledger {
public:
    explicit Ledger(std::uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

    // False, and nothing changes, where it does not fit, or `owner` holds memory already.
    [[nodiscard]] bool reserve(RequestId owner, std::uint64_t bytes) {
        if (bytes > capacity_ - used_ || !held_.emplace(owner, bytes).second) return false;
        used_ += bytes;
        peak_ = std::max(peak_, used_);
        return true;
    }
    // Back to `bytes`, of those that `owner` holds: staging that ends with a transfer. False where it holds fewer.
    bool shrink(RequestId owner, std::uint64_t bytes) {
        const auto found = held_.find(owner);
        if (found == held_.end() || found->second < bytes) return false;
        used_ -= found->second - bytes;
        found->second = bytes;
        return true;
    }
    // False where `owner` holds nothing.
    bool release(RequestId owner) {
        const auto found = held_.find(owner);
        if (found == held_.end()) return false;
        used_ -= found->second;
        held_.erase(found);
        return true;
    }

    [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return capacity_; }
    [[nodiscard]] std::uint64_t used_bytes() const noexcept { return used_; }
    [[nodiscard]] std::uint64_t peak_bytes() const noexcept { return peak_; }
    [[nodiscard]] std::size_t owners() const noexcept { return held_.size(); }

private:
    std::uint64_t capacity_, used_ = 0, peak_ = 0;
    std::unordered_map<RequestId, std::uint64_t> held_;
};

}  // namespace hetero::sched
