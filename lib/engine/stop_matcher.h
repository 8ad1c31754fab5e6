// Finds stop strings in text that comes in pieces, and holds back what may still become one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace hetero::engine {

class StopMatcher {
public:
    explicit StopMatcher(std::vector<std::string> stops);  // empty strings are left out

    // Appends; returns what can be shown: all before the stop string that is complete first, or all that no stop string
    // can begin in. How the text is cut into pieces does not matter.
    [[nodiscard]] std::string push(std::string_view piece);
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }
    [[nodiscard]] std::string finish();  // what was held back; nothing after a stop

private:
    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace hetero::engine
