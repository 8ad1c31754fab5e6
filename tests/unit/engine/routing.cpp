// Routing against a second way to say it: experts sorted by what the rule sees of them, group by group.
#include "engine/routing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

using namespace hetero;
using engine::Routed;
using model::RoutingRule;

namespace {

struct Choice {
    std::vector<std::size_t> experts;
    std::vector<double> weights;
};

// The n highest, ties to the lower index, ascending.
std::vector<std::size_t> highest(const std::vector<double>& values, std::size_t n) {
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
    order.resize(n);
    std::sort(order.begin(), order.end());
    return order;
}

Choice naive(const RoutingRule& rule, const std::vector<float>& bias, const std::vector<float>& logits) {
    const std::size_t n = logits.size();
    std::vector<double> scores(n);
    if (rule.score == RoutingRule::Score::softmax) {
        double sum = 0;
        for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
        for (std::size_t i = 0; i < n; ++i) scores[i] = std::exp(static_cast<double>(logits[i])) / sum;
    } else {
        for (std::size_t i = 0; i < n; ++i) scores[i] = 1 / (1 + std::exp(-static_cast<double>(logits[i])));
    }
    // In f32, as the rule compares them: so that ties are ties.
    std::vector<double> seen(n);
    for (std::size_t i = 0; i < n; ++i) {
        scores[i] = static_cast<float>(scores[i]);
        seen[i] = bias.empty() ? scores[i] : static_cast<double>(static_cast<float>(scores[i]) + bias[i]);
    }
    const std::size_t size = n / rule.n_groups;
    std::vector<double> groups;
    for (std::size_t group = 0; group < rule.n_groups; ++group) {
        std::vector<double> members(seen.begin() + static_cast<std::ptrdiff_t>(group * size),
                                    seen.begin() + static_cast<std::ptrdiff_t>((group + 1) * size));
        std::sort(members.rbegin(), members.rend());
        const bool two = rule.group_score == RoutingRule::GroupScore::highest_two;
        groups.push_back(two && size > 1
                             ? static_cast<double>(static_cast<float>(members[0]) + static_cast<float>(members[1]))
                             : members[0]);
    }
    const auto kept = highest(groups, rule.top_groups);
    for (std::size_t i = 0; i < n; ++i) {
        if (!std::binary_search(kept.begin(), kept.end(), i / size)) seen[i] = -1e30;
    }
    Choice choice;
    choice.experts = highest(seen, rule.top_k);
    double sum = 0;
    for (const std::size_t expert : choice.experts) sum += scores[expert];
    for (const std::size_t expert : choice.experts) {
        choice.weights.push_back(scores[expert] / (rule.normalize ? sum : 1) * static_cast<double>(rule.scale));
    }
    return choice;
}

std::vector<Routed> routed(const RoutingRule& rule, const std::vector<float>& bias, std::vector<float> logits) {
    std::vector<float> work(2 * logits.size());
    std::vector<Routed> out(rule.top_k);
    REQUIRE(engine::route(rule, bias, logits, work, out));
    return out;
}

}  // namespace

TEST_CASE("random scores, with and without ties, are routed as the rule says") {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 2);
    int ties = 0;
    for (int round = 0; round < 4000; ++round) {
        RoutingRule rule;
        rule.score = round % 2 == 0 ? RoutingRule::Score::softmax : RoutingRule::Score::sigmoid;
        rule.group_score = round % 3 == 0 ? RoutingRule::GroupScore::highest : RoutingRule::GroupScore::highest_two;
        rule.n_groups = 1U << (random() % 4);
        const std::uint32_t size = 2 + random() % 7;
        const std::size_t experts = std::size_t{rule.n_groups} * size;
        rule.top_groups = 1 + random() % rule.n_groups;
        rule.top_k = 1 + random() % std::min(rule.top_groups * size, 8U);
        rule.normalize = random() % 2 == 0;
        rule.scale = random() % 2 == 0 ? 1.0F : 2.5F;
        const bool coarse = round % 5 < 2;  // few values: many ties
        std::vector<float> logits(experts), bias;
        for (float& logit : logits) logit = coarse ? static_cast<float>(random() % 3) : normal(random);
        if (random() % 2 == 0) {
            for (std::size_t i = 0; i < experts; ++i) {
                bias.push_back(coarse ? static_cast<float>(random() % 2) : normal(random) / 4);
            }
        }
        CAPTURE(round);
        const Choice expected = naive(rule, bias, logits);
        const std::vector<Routed> got = routed(rule, bias, logits);
        for (std::size_t i = 0; i < got.size(); ++i) {
            CHECK(got[i].expert == expected.experts[i]);
            CHECK(static_cast<double>(got[i].weight) == doctest::Approx(expected.weights[i]).epsilon(1e-6));
        }
        ties += coarse ? 1 : 0;
    }
    CHECK(ties > 1000);
}

TEST_CASE("where scores are equal, the lower number is chosen") {
    RoutingRule rule;
    rule.top_k = 2;
    CHECK(routed(rule, {}, {1, 1, 1, 1}) == std::vector<Routed>{{0, 0.25F}, {1, 0.25F}});
    rule.n_groups = 2;
    CHECK(routed(rule, {}, {1, 1, 1, 1}) == std::vector<Routed>{{0, 0.25F}, {1, 0.25F}});
    CHECK(routed(rule, {}, {1, 1, 1, 1.5F})[0].expert == 2);
}

TEST_CASE("a bias moves the choice and not the weights") {
    RoutingRule rule;
    rule.score = RoutingRule::Score::sigmoid;
    rule.top_k = 1;
    const auto chosen = routed(rule, {0, 0, 5}, {0, 0, 0});
    CHECK(chosen[0].expert == 2);
    CHECK(chosen[0].weight == 0.5F);
}

TEST_CASE("scores far apart, and such as vanish, stay finite") {
    RoutingRule rule;
    rule.top_k = 2;
    rule.normalize = true;
    const auto apart = routed(rule, {}, {-1e30F, 1e30F, 0});
    CHECK(apart[1].weight == 1);
    CHECK(apart[0].weight == 0);
    rule.score = RoutingRule::Score::sigmoid;
    for (const Routed& one : routed(rule, {}, {-1000, -1000, -1000})) CHECK(std::isfinite(one.weight));
}

TEST_CASE("a score that is no number is not routed") {
    RoutingRule rule;
    rule.top_k = 1;
    for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::vector<float> scores = {1, odd, 2}, work(6);
        std::vector<Routed> out(1);
        CHECK_FALSE(engine::route(rule, {}, scores, work, out));
    }
}
