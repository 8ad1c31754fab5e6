// The nine practices for unlike hardware (https://arxiv.org/abs/2606.29708), and whether a plan keeps them.
#pragma once
#include <string>
#include <vector>

#include "plan/verdict.h"

namespace hetero::plan {

struct Practice {
    int number = 0;
    std::string text;  // what it asks for
    bool kept = false;
    std::string why;
};
[[nodiscard]] std::vector<Practice> practices(const Problem& problem, const Candidate& chosen, bool certificate_given);

}  // namespace hetero::plan
