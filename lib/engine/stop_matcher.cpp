#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace hetero::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(std::string_view piece) {
    if (stopped_) return {};
    held_ += piece;
    // The one that is complete first, as if the text had come byte by byte; of two that end together, the longer.
    std::size_t begin = std::string::npos, end = std::string::npos;
    for (const std::string& stop : stops_) {
        const std::size_t at = held_.find(stop);
        if (at == std::string::npos) continue;
        if (end == std::string::npos || at + stop.size() < end || (at + stop.size() == end && at < begin)) {
            begin = at;
            end = at + stop.size();
        }
    }
    if (begin != std::string::npos) {
        stopped_ = true;
        return std::exchange(held_, {}).substr(0, begin);
    }
    // The longest end of the text that is the beginning of a stop string.
    std::size_t keep = 0;
    for (const std::string& stop : stops_) {
        std::size_t length = std::min(held_.size(), stop.size() - 1);
        while (length > keep && !held_.ends_with(std::string_view(stop).substr(0, length))) --length;
        keep = std::max(keep, length);
    }
    std::string shown = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return shown;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace hetero::engine
