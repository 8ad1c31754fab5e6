#include "engine/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hetero::engine {
namespace {

constexpr float never = -std::numeric_limits<float>::infinity();
// Keeps the quotient finite where all chosen scores vanish (DeepSeek-V3, https://arxiv.org/abs/2412.19437).
constexpr double smallest_sum = 1e-20;

void softmax(std::span<float> scores) {
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const float score : scores) sum += std::exp(score - top);
    for (float& score : scores) score = static_cast<float>(std::exp(score - top) / sum);
}

void sigmoid(std::span<float> scores) {
    for (float& score : scores) score = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(score))));
}

float group_score(model::RoutingRule::GroupScore kind, std::span<const float> group) {
    float first = never, second = never;
    for (const float score : group) {
        if (score > first) {
            second = first;
            first = score;
        } else if (score > second) {
            second = score;
        }
    }
    return kind == model::RoutingRule::GroupScore::highest ? first : first + second;
}

// Takes the experts of all groups but the top ones out of the choice.
void keep_top_groups(const model::RoutingRule& rule, std::span<float> eligible, std::span<float> groups) {
    const std::size_t size = eligible.size() / groups.size();
    for (std::size_t group = 0; group < groups.size(); ++group) {
        groups[group] = group_score(rule.group_score, eligible.subspan(group * size, size));
    }
    for (std::size_t dropped = rule.top_groups; dropped < groups.size(); ++dropped) {
        std::size_t worst = 0;
        for (std::size_t group = 1; group < groups.size(); ++group) {
            if (groups[group] <= groups[worst]) worst = group;  // of equal ones the last
        }
        groups[worst] = std::numeric_limits<float>::infinity();
        std::fill_n(eligible.begin() + static_cast<std::ptrdiff_t>(worst * size), size, never);
    }
}

}  // namespace

bool route(const model::RoutingRule& rule, std::span<const float> bias, std::span<float> scores, std::span<float> work,
           std::span<Routed> out) {
    for (const float score : scores) {
        if (!std::isfinite(score)) return false;
    }
    if (rule.score == model::RoutingRule::Score::softmax) {
        softmax(scores);
    } else {
        sigmoid(scores);
    }
    const std::span<float> eligible = work.first(scores.size());
    for (std::size_t expert = 0; expert < scores.size(); ++expert) {
        eligible[expert] = bias.empty() ? scores[expert] : scores[expert] + bias[expert];
    }
    if (rule.n_groups > 1) keep_top_groups(rule, eligible, work.subspan(scores.size(), rule.n_groups));
    for (Routed& one : out) {
        const auto best = std::max_element(eligible.begin(), eligible.end());
        one.expert = static_cast<std::uint32_t>(best - eligible.begin());
        one.weight = scores[one.expert];
        *best = never;
    }
    std::sort(out.begin(), out.end(), [](const Routed& a, const Routed& b) { return a.expert < b.expert; });
    double sum = smallest_sum;
    for (const Routed& one : out) sum += one.weight;
    for (Routed& one : out) {
        const double weight = rule.normalize ? one.weight / sum : one.weight;
        one.weight = static_cast<float>(weight * static_cast<double>(rule.scale));
    }
    return true;
}

}  // namespace hetero::engine
