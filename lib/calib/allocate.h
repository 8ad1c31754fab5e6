// The cheapest way to take one option for each of many parts: a multiple-choice knapsack, solved exactly.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace hetero::calib {

struct Option {
    std::uint64_t cost = 0;  // bytes
    double loss = 0;         // finite, >= 0; losses of parts add up
};

struct FrontPoint {
    std::uint64_t cost = 0;
    double loss = 0;
    std::vector<std::uint32_t> chosen;  // [part]: index of the option
};

// All choices for which no other is both cheaper (or as cheap) and better: cost rises, loss falls along the result.
// Dynamic programming over costs in units of their greatest common divisor; where that would need more than
// `max_units` of them, larger units are used and costs round up, so that points may be missed but none is wrong.
// usage: no parts, a part without options, a loss that is negative or not finite; resource: no memory.
Result<std::vector<FrontPoint>> pareto_front(std::span<const std::vector<Option>> parts,
                                             std::size_t max_units = std::size_t{1} << 17);

// The best point of a front that costs at most `budget`; nullptr where none does.
[[nodiscard]] const FrontPoint* within(std::span<const FrontPoint> front, std::uint64_t budget) noexcept;

}  // namespace hetero::calib
