// Two models over one text: how far their predictions differ, and how well each predicts.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/result.h"
#include "engine/score.h"
#include "engine/session.h"

namespace hetero::engine {

struct SideBySide {
    Score a, b;
    std::uint64_t compared = 0;      // positions, those with a token to predict
    double kl_mean = 0, kl_max = 0;  // KL(a || b), nats
    double max_abs_dlogit = 0, max_abs_dp = 0;
    std::uint64_t top1_equal = 0;  // positions
};

// Windows, BOS and errors as in score(). The caches of both are overwritten, and empty afterwards. The models must have
// the same tokens: bad_input where the vocabularies differ in size.
Result<SideBySide> score_side_by_side(Session& a, Session& b, std::span<const TokenId> tokens,
                                      std::uint32_t window_tokens = 1024,
                                      const std::function<void(std::uint64_t done)>& on_progress = {},
                                      std::optional<TokenId> bos = std::nullopt);

}  // namespace hetero::engine
