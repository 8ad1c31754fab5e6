#include "sched/policy.h"

#include <algorithm>

namespace hetero::sched {

std::string_view sharing_name(Sharing sharing) noexcept {
    switch (sharing) {
        case Sharing::prompts_first:
            return "prompts-first";
        case Sharing::chunked:
            return "chunked";
        case Sharing::time_sliced:
            return "time-sliced";
    }
    return "?";
}

std::optional<Choice> choose(const Policy& policy, const Backlog& backlog) noexcept {
    const bool decode = backlog.sequences > 0;
    if (!backlog.prompts && !decode) return std::nullopt;
    if (!backlog.prompts) return Choice{false, true, 0, true};
    switch (policy.sharing) {
        case Sharing::prompts_first:
            return Choice{true, false, policy.max_batch_tokens, true};
        case Sharing::chunked: {
            // Many sequences must not keep prompts waiting for ever.
            const std::uint32_t room = policy.chunk_tokens - std::min(policy.chunk_tokens, backlog.sequences);
            return Choice{true, decode, std::max({room, policy.chunk_tokens / 8, 1U}), false};
        }
        case Sharing::time_sliced: {
            const bool prompts = !decode || backlog.prompts_turn != backlog.turn_is_over;
            return Choice{prompts, !prompts, policy.chunk_tokens, false};
        }
    }
    return std::nullopt;
}

}  // namespace hetero::sched
