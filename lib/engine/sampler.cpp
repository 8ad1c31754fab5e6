#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hetero::engine {
namespace {

// Finalizer of SplitMix64.
std::uint64_t mix(std::uint64_t z) noexcept {
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
}

bool is_likelier(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

bool has_smaller_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

}  // namespace

Status check(const SamplingOptions& options) {
    const auto in_range = [](double value, double low, double high) { return value >= low && value <= high; };
    constexpr double largest = 1e6;
    if (!in_range(options.temperature, 0, largest)) {
        return fail(Errc::usage, "temperature must be from 0 to {}, not {}", largest, options.temperature);
    }
    if (!in_range(options.top_p, 0, 1) || options.top_p == 0) {
        return fail(Errc::usage, "top-p must be above 0 and at most 1, not {}", options.top_p);
    }
    if (!in_range(options.min_p, 0, 1)) return fail(Errc::usage, "min-p must be from 0 to 1, not {}", options.min_p);
    if (!in_range(options.repetition_penalty, 1 / largest, largest)) {
        return fail(Errc::usage, "the repetition penalty must be from {} to {}, not {}", 1 / largest, largest,
                    options.repetition_penalty);
    }
    return {};
}

double uniform_at(std::uint64_t seed, std::uint64_t position) noexcept {
    constexpr std::uint64_t increment = 0x9E3779B97F4A7C15U;
    const std::uint64_t bits = mix(mix(seed + increment) + (position + 1) * increment);
    return static_cast<double>(bits >> 11U) * 0x1p-53;
}

Status Sampler::penalize(std::span<const std::int32_t> seen) {
    if (options_.repetition_penalty == 1) return {};
    penalized_.assign(logits_.size(), false);
    for (const std::int32_t id : seen) {
        if (id < 0 || static_cast<std::size_t>(id) >= logits_.size()) {
            return fail(Errc::usage, "token {} is outside the vocabulary of {}", id, logits_.size());
        }
        const auto index = static_cast<std::size_t>(id);
        if (penalized_[index]) continue;
        penalized_[index] = true;
        logits_[index] = penalized(logits_[index]);
    }
    return {};
}

float Sampler::penalized(float logit) const {
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    return logit > 0 ? logit / penalty : logit * penalty;
}

// Candidates that were seen; then all in their order. False where none was.
bool Sampler::penalize_candidates(std::span<const std::int32_t> seen) {
    if (options_.repetition_penalty == 1) return false;
    std::sort(candidates_.begin(), candidates_.end(), has_smaller_id);
    penalized_.assign(candidates_.size(), false);
    bool any = false;
    for (const std::int32_t id : seen) {
        const auto found = std::lower_bound(candidates_.begin(), candidates_.end(), Candidate{0, id}, has_smaller_id);
        if (found == candidates_.end() || found->id != id) continue;
        const auto index = static_cast<std::size_t>(found - candidates_.begin());
        if (penalized_[index]) continue;
        penalized_[index] = any = true;
        found->logit = penalized(found->logit);
    }
    std::sort(candidates_.begin(), candidates_.end(), is_likelier);
    return any;
}

double Sampler::weight(const Candidate& candidate) const {
    return std::exp((static_cast<double>(candidate.logit) - max_logit_) / options_.temperature);
}

void Sampler::keep_top_k() {
    if (options_.top_k == 0 || options_.top_k >= candidates_.size()) return;
    const auto end = candidates_.begin() + options_.top_k;
    std::nth_element(candidates_.begin(), end, candidates_.end(), is_likelier);
    candidates_.erase(end, candidates_.end());
    std::sort(candidates_.begin(), candidates_.end(), has_smaller_id);
}

void Sampler::keep_top_p() {
    if (options_.top_p >= 1) return;
    double total = 0;
    for (const Candidate& candidate : candidates_) total += weight(candidate);
    // The nucleus is nearly always small: sort pieces that double in size, until they hold it.
    double sum = 0;
    std::size_t sorted = 0, kept = 0;
    while (kept < candidates_.size()) {
        if (kept == sorted) {
            const std::size_t piece = std::min(std::max<std::size_t>(64, sorted), candidates_.size() - sorted);
            const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
            std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(piece), candidates_.end(), is_likelier);
            sorted += piece;
        }
        sum += weight(candidates_[kept++]);
        if (sum >= options_.top_p * total) break;
    }
    candidates_.resize(kept);
}

// The same where only the likeliest are candidates and `total` is that of all, nearly; false where it cannot be told.
bool Sampler::keep_top_p_of(double total) {
    constexpr double error = 1e-8;  // of the total and of the sums in f64
    double sum = 0;
    for (std::size_t kept = 0; kept < candidates_.size(); ++kept) {
        sum += weight(candidates_[kept]);
        if (sum < options_.top_p * total * (1 - error)) continue;
        candidates_.resize(kept + 1);
        return sum > options_.top_p * total * (1 + error);
    }
    return false;
}

void Sampler::keep_min_p() {
    if (options_.min_p <= 0) return;
    std::erase_if(candidates_, [this](const Candidate& one) { return weight(one) < options_.min_p; });
}

std::int32_t Sampler::draw(std::int32_t best, std::uint64_t position) const {
    double total = 0;
    for (const Candidate& candidate : candidates_) total += weight(candidate);
    const double target = uniform_at(options_.seed, position) * total;
    double sum = 0;
    std::int32_t chosen = best;  // where rounding leaves the target beyond the sum
    for (const Candidate& candidate : candidates_) {
        const double share = weight(candidate);
        if (share == 0) continue;
        sum += share;
        chosen = candidate.id;
        if (target < sum) break;
    }
    return chosen;
}

LikeliestWanted Sampler::wanted() const noexcept {
    constexpr std::uint32_t most = LikeliestWanted::most;
    // With a penalty all that are wanted at most, as some of them fall; where it raises logits, any token may rise, and
    // the total of what is penalized is not known.
    const bool penalizes = options_.repetition_penalty != 1;
    if (options_.repetition_penalty < 1) return {};
    if (options_.temperature == 0) return {penalizes ? most : 1, 0};
    if (options_.top_k != 0 && options_.top_k <= most) return {penalizes ? most : options_.top_k, options_.temperature};
    if (options_.top_k != 0 || (options_.top_p >= 1 && options_.min_p <= 0)) return {};
    if (penalizes && options_.top_p < 1) return {};
    return {most, options_.temperature};
}

std::optional<std::int32_t> Sampler::next(const Likeliest& likeliest, std::span<const std::int32_t> seen) {
    if (!std::isfinite(likeliest.tokens.front().logit)) return std::nullopt;
    candidates_.assign(likeliest.tokens.begin(), likeliest.tokens.end());
    // No other token has a higher logit than this, and none has after the penalty.
    const Candidate least = candidates_.back();
    const bool changed = penalize_candidates(seen);
    const Candidate best = candidates_.front();
    if (changed && !(best.logit > least.logit)) return std::nullopt;
    if (options_.temperature == 0) return best.id;
    max_logit_ = best.logit;
    // From here on in the order in which next() has them of all logits: sums in another one have other bits.
    if (options_.top_k != 0) {
        if (candidates_.size() > options_.top_k) candidates_.resize(options_.top_k);
        if (changed && !(candidates_.back().logit > least.logit)) return std::nullopt;
        std::sort(candidates_.begin(), candidates_.end(), has_smaller_id);
        keep_top_p();
    } else if (options_.top_p < 1) {
        if (!keep_top_p_of(likeliest.total)) return std::nullopt;
    } else {
        if (weight(least) >= options_.min_p) return std::nullopt;
        std::sort(candidates_.begin(), candidates_.end(), has_smaller_id);
    }
    keep_min_p();
    return draw(best.id, seen.size());
}

Result<std::int32_t> Sampler::next(std::span<const float> logits, std::span<const std::int32_t> seen) {
    logits_.assign(logits.begin(), logits.end());
    HETERO_CHECK(penalize(seen));
    std::size_t best = 0;
    max_logit_ = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < logits_.size(); ++i) {
        if (std::isnan(logits_[i]) || logits_[i] == std::numeric_limits<float>::infinity()) {
            return fail(Errc::bad_input, "the logit of token {} at position {} is {}", i, seen.size(),
                        std::isnan(logits_[i]) ? "not a number" : "infinite");
        }
        if (logits_[i] > max_logit_) {
            max_logit_ = logits_[i];
            best = i;
        }
    }
    if (!std::isfinite(max_logit_)) {
        return fail(Errc::bad_input, "no token at position {} has a finite logit", seen.size());
    }
    if (options_.temperature == 0) return static_cast<std::int32_t>(best);

    candidates_.clear();
    candidates_.reserve(logits_.size());
    for (std::size_t i = 0; i < logits_.size(); ++i) candidates_.push_back({logits_[i], static_cast<std::int32_t>(i)});
    keep_top_k();
    keep_top_p();
    keep_min_p();
    return draw(static_cast<std::int32_t>(best), seen.size());
}

}  // namespace hetero::engine
