// What the timed probes share.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/threads.h"
#include "hw/section.h"

namespace hetero::hw {

// Best time of a call of `run` within the budget, at least one.
template <class Run>
double best_seconds(double budget_s, Run run) {
    double best = std::numeric_limits<double>::infinity(), used = 0;
    do {
        const auto start = std::chrono::steady_clock::now();
        run();
        const double seconds = seconds_since(start);
        best = std::min(best, seconds);
        used += seconds;
    } while (used < budget_s);
    return best;
}

// Raises the rates (NAME_per_s, numbers or lists of them) of `best` to those of the same entries measured again. An
// entry that failed in either has failed.
inline void keep_best(std::vector<Json>& best, std::vector<Json> again) {
    for (std::size_t i = 0; i < best.size() && i < again.size(); ++i) {
        if (again[i].value("executable", true) != best[i].value("executable", true)) {
            if (best[i].value("executable", true)) best[i] = std::move(again[i]);
            continue;
        }
        for (auto& [name, value] : best[i].items()) {
            if (!name.ends_with("_per_s") || !again[i].contains(name)) continue;
            const Json& other = again[i].at(name);
            if (value.is_number() && other.is_number() && other > value) value = other;
            for (std::size_t j = 0; value.is_array() && other.is_array() && j < std::min(value.size(), other.size());
                 ++j)
                if (other[j] > value[j]) value[j] = other[j];
        }
    }
}

// Of two passes, some time apart, the better figure counts: a neighbour on the machine rarely spoils both.
template <class Measure>
std::vector<Json> measured_twice(const Context& context, Measure measure) {
    std::vector<Json> rates = measure();
    if (!context.options.quick) keep_best(rates, measure());
    return rates;
}

// Calls measure(pool) with one thread and with all, and gathers the entries of both.
template <class Measure>
Json with_one_and_all_threads(const Context& context, Measure measure) {
    return measured_twice(context, [&] {
        std::vector<Json> rates;
        for (const int threads : {1, context.threads}) {
            if (threads == 1 && !rates.empty()) break;
            ThreadPool pool(threads);
            for (Json& entry : measure(pool)) rates.push_back(std::move(entry));
        }
        return rates;
    });
}

// Memory at a multiple of 64 bytes, not touched yet. Throws std::bad_alloc.
template <class T>
class Aligned {
public:
    explicit Aligned(std::size_t n) : n_(n), memory_(std::aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64)) {
        if (!memory_) throw std::bad_alloc();
    }
    [[nodiscard]] T* data() const { return static_cast<T*>(memory_.get()); }
    [[nodiscard]] std::size_t size() const { return n_; }
    [[nodiscard]] std::span<T> span() const { return {data(), n_}; }

private:
    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    std::size_t n_;
    std::unique_ptr<void, Free> memory_;
};

}  // namespace hetero::hw
