// Errors of tasks that several threads do.
#pragma once
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

#include "base/result.h"

namespace hetero::engine {

// The error of the first token, whichever thread met one first.
class FirstError {
public:
    void note(std::size_t token, Error error) {
        const std::lock_guard lock(mutex_);
        if (!error_ || token < token_) {
            token_ = token;
            error_ = std::move(error);
        }
    }
    [[nodiscard]] Status status() {
        if (error_) return tl::unexpected<Error>(std::move(*error_));
        return {};
    }

private:
    std::mutex mutex_;
    std::size_t token_ = 0;
    std::optional<Error> error_;
};

}  // namespace hetero::engine
