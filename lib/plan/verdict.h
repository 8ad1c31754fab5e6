// Whether to split: the rules, in the order in which they are asked.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plan/search.h"

namespace hetero::plan {

enum class Verdict : std::uint8_t { split, split_unverified, colocate, refuse };
[[nodiscard]] std::string_view verdict_name(Verdict verdict) noexcept;  // "SPLIT-UNVERIFIED"

struct Decision {
    Verdict verdict = Verdict::refuse;
    std::vector<std::string> reasons, warnings;
    // Places in the result's list; nullopt: there is none.
    std::optional<std::size_t> chosen, best_split, best_colocated;
};

// Margin below which a split is too close to call: about the error of the model.
inline constexpr double least_gain = 1.10;
// Of the goal for the first token, what may go to the link and to conversion.
inline constexpr double most_visible = 0.25;

[[nodiscard]] Decision decide(const Problem& problem, const SearchResult& result);

}  // namespace hetero::plan
