#include "engine/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

using namespace hetero;
using engine::Sampler;
using engine::SamplingOptions;

namespace {

const std::vector<float> logits = {1.0F, 3.0F, -2.0F, 2.5F, 0.0F, 3.0F, -1.0F, 2.0F};

// Options with a temperature; the seed is always the same, draws differ by position.
SamplingOptions sampled(double temperature) {
    SamplingOptions options;
    options.temperature = temperature;
    options.seed = 7;
    return options;
}

std::vector<double> softmax(const std::vector<float>& values, double temperature) {
    std::vector<double> p;
    for (const float value : values) p.push_back(std::exp(value / temperature));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& one : p) one /= sum;
    return p;
}

std::vector<double> frequencies(const SamplingOptions& options, const std::vector<float>& values, int draws) {
    Sampler sampler(options);
    std::vector<double> counts(values.size());
    // As many different positions as draws; the tokens themselves do not matter without a penalty.
    const std::vector<std::int32_t> seen(static_cast<std::size_t>(draws), 0);
    for (int i = 0; i < draws; ++i) {
        const auto token = sampler.next(values, std::span(seen).first(static_cast<std::size_t>(i)));
        REQUIRE(token.has_value());
        counts[static_cast<std::size_t>(*token)] += 1;
    }
    for (double& count : counts) count /= draws;
    return counts;
}

std::set<std::int32_t> support(const SamplingOptions& options, const std::vector<float>& values) {
    std::set<std::int32_t> ids;
    const auto counts = frequencies(options, values, 20000);
    for (std::size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] > 0) ids.insert(static_cast<std::int32_t>(i));
    }
    return ids;
}

// Every frequency within 5 standard deviations of its probability.
void check_distribution(const SamplingOptions& options, const std::vector<double>& expected) {
    const int draws = 200000;
    const auto got = frequencies(options, logits, draws);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CHECK(std::fabs(got[i] - expected[i]) <= 5 * std::sqrt(expected[i] * (1 - expected[i]) / draws));
    }
}

std::vector<double> renormalized(std::vector<double> p, const std::set<std::size_t>& kept) {
    double sum = 0;
    for (const std::size_t i : kept) sum += p[i];
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = kept.contains(i) ? p[i] / sum : 0;
    return p;
}

}  // namespace

TEST_CASE("greedy takes the largest logit, the smallest id among equals") {
    Sampler sampler(SamplingOptions{});
    CHECK(*sampler.next(logits, {}) == 1);
    CHECK(*sampler.next(std::vector<float>{-5, -1, -3}, {}) == 1);
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(*sampler.next(std::vector<float>{-infinity, -9, -infinity}, {}) == 1);
}

TEST_CASE("draws follow the softmax at each temperature") {
    for (const double temperature : {0.5, 1.0, 2.0}) {
        CAPTURE(temperature);
        check_distribution(sampled(temperature), softmax(logits, temperature));
    }
    SamplingOptions cold = sampled(1e-6);
    CHECK(support(cold, {1, 3, 2.9F}) == std::set<std::int32_t>{1});
}

TEST_CASE("top-k, top-p and min-p keep what they should, renormalized") {
    SamplingOptions top_k = sampled(1);
    top_k.top_k = 3;
    CHECK(support(top_k, logits) == std::set<std::int32_t>{1, 3, 5});
    check_distribution(top_k, renormalized(softmax(logits, 1), {1, 3, 5}));
    top_k.top_k = 1;  // of two equal ones, the smaller id
    CHECK(support(top_k, logits) == std::set<std::int32_t>{1});
    top_k.top_k = 100;
    check_distribution(top_k, softmax(logits, 1));

    // p: 1 and 5 have 0.314 each, 3 has 0.190, 7 has 0.116.
    SamplingOptions top_p = sampled(1);
    for (const auto& [share, kept] : std::vector<std::pair<double, std::set<std::size_t>>>{
             {0.1, {1}}, {0.34, {1, 5}}, {0.62, {1, 5}}, {0.7, {1, 3, 5}}, {0.9, {1, 3, 5, 7}}}) {
        CAPTURE(share);
        top_p.top_p = share;
        check_distribution(top_p, renormalized(softmax(logits, 1), kept));
    }

    SamplingOptions min_p = sampled(1);
    min_p.min_p = 0.5;  // p >= 0.157
    check_distribution(min_p, renormalized(softmax(logits, 1), {1, 3, 5}));
    min_p.min_p = 1;
    check_distribution(min_p, renormalized(softmax(logits, 1), {1, 5}));

    // Together, in this order: top-k leaves 1, 5, 3 (0.384, 0.384, 0.233), of which top-p 0.7 needs two.
    SamplingOptions both = sampled(1);
    both.top_k = 3;
    both.top_p = 0.7;
    check_distribution(both, renormalized(softmax(logits, 1), {1, 5}));
}

TEST_CASE("top-p over a flat, large vocabulary") {
    std::vector<float> flat(5000);
    for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = 0.001F * static_cast<float>((i * 37) % flat.size());
    SamplingOptions options = sampled(1);
    options.top_p = 0.5;
    // The cut by a plain sort.
    std::vector<std::size_t> order(flat.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return flat[a] > flat[b]; });
    const auto p = softmax(flat, 1);
    double sum = 0;
    float cut = 0;
    for (const std::size_t id : order) {
        cut = flat[id];
        sum += p[id];
        if (sum >= 0.5) break;
    }
    float lowest = 10;
    for (const std::int32_t id : support(options, flat)) lowest = std::min(lowest, flat[static_cast<std::size_t>(id)]);
    CHECK(lowest >= cut);
    CHECK(lowest < cut + 0.01F);
}

TEST_CASE("the repetition penalty divides positive and multiplies negative logits, once per token") {
    SamplingOptions options;
    options.repetition_penalty = 2;
    Sampler sampler(options);
    CHECK(*sampler.next(std::vector<float>{3.0F, 2.0F, 1.4F}, std::vector<std::int32_t>{0}) == 1);
    CHECK(*sampler.next(std::vector<float>{3.0F, 1.4F, -1.0F}, std::vector<std::int32_t>{0, 0, 0}) == 0);
    CHECK(*sampler.next(std::vector<float>{-1.0F, -1.5F}, std::vector<std::int32_t>{0}) == 1);
    CHECK(*sampler.next(std::vector<float>{-1.0F, -2.5F}, std::vector<std::int32_t>{0}) == 0);
    const auto outside = sampler.next(std::vector<float>{1, 2}, std::vector<std::int32_t>{2});
    REQUIRE_FALSE(outside.has_value());
    CHECK(outside.error().code == Errc::usage);
}

TEST_CASE("a draw depends on seed and position alone") {
    Sampler one(sampled(1)), two(sampled(1));
    const std::vector<std::int32_t> seen(100, 3);
    std::vector<std::int32_t> forward, backward;
    for (std::size_t i = 0; i < 100; ++i) forward.push_back(*one.next(logits, std::span(seen).first(i)));
    for (std::size_t i = 100; i-- > 0;) backward.insert(backward.begin(), *two.next(logits, std::span(seen).first(i)));
    CHECK(forward == backward);
    SamplingOptions reseeded = sampled(1);
    reseeded.seed = 8;
    Sampler other(reseeded);
    std::vector<std::int32_t> different;
    for (std::size_t i = 0; i < 100; ++i) different.push_back(*other.next(logits, std::span(seen).first(i)));
    CHECK(different != forward);
}

TEST_CASE("the uniform numbers are fixed, in range and uniform") {
    // SplitMix64's published first outputs from state 0, reached through the seed whose mixed form is 0.
    const std::uint64_t seed_of_zero = 0 - 0x9E3779B97F4A7C15U;
    CHECK(engine::uniform_at(seed_of_zero, 0) == static_cast<double>(0xE220A8397B1DCDAFU >> 11U) * 0x1p-53);
    CHECK(engine::uniform_at(seed_of_zero, 1) == static_cast<double>(0x6E789E6AA1B965F4U >> 11U) * 0x1p-53);
    for (const std::uint64_t seed : {0ULL, 1ULL, ~0ULL}) {
        int buckets[16] = {};
        const int draws = 160000;
        for (int i = 0; i < draws; ++i) {
            const double u = engine::uniform_at(seed, static_cast<std::uint64_t>(i));
            REQUIRE(u >= 0);
            REQUIRE(u < 1);
            ++buckets[static_cast<int>(u * 16)];
        }
        double chi2 = 0;
        for (const int count : buckets) chi2 += (count - draws / 16.0) * (count - draws / 16.0) / (draws / 16.0);
        CHECK(chi2 < 50);  // 15 degrees of freedom: 1e-5
    }
}

namespace {

// What a device finds of a row; its total is off by `error`.
struct Found {
    Found(const std::vector<float>& row, const engine::LikeliestWanted& wanted, double error) {
        for (std::size_t i = 0; i < row.size(); ++i) tokens.push_back({row[i], static_cast<std::int32_t>(i)});
        std::stable_sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
        const double largest = tokens[0].logit;
        for (const float value : row)
            if (wanted.temperature != 0) total += std::exp((static_cast<double>(value) - largest) / wanted.temperature);
        total *= 1 + error;
        tokens.resize(std::min<std::size_t>(wanted.count, tokens.size()));
    }
    [[nodiscard]] engine::Likeliest all() const { return {tokens, total}; }
    std::vector<engine::Candidate> tokens;
    double total = 0;
};

}  // namespace

TEST_CASE("the likeliest tokens give what all logits give, or nothing") {
    std::uint64_t state = 1;
    const auto uniform = [&] { return engine::uniform_at(9, state++); };
    struct Case {
        double temperature, top_p, min_p;
        std::uint32_t top_k;
        double decided;  // at least that share of the rows
        double penalty = 1;
    };
    for (const Case& one : {Case{0, 1, 0, 0, 1},
                            {0, 0.5, 0.1, 7, 1},
                            {0.8, 1, 0, 40, 1},
                            {0.8, 0.9, 0, 40, 1},
                            {0.8, 0.9, 0.02, 256, 1},
                            {0.7, 0.9, 0, 0, 0.5},
                            {1.5, 0.95, 0.01, 0, 0},
                            {0.8, 1, 0.05, 0, 0.5},
                            {0, 1, 0, 0, 0.7, 1.3},
                            {0, 1, 0, 0, 0.5, 1e6},
                            {0.8, 1, 0, 40, 0.7, 1.1},
                            {0.8, 0.9, 0.02, 40, 0.5, 2},
                            {0.8, 1, 0.05, 0, 0.4, 1.3}}) {
        CAPTURE(one.temperature);
        CAPTURE(one.top_p);
        CAPTURE(one.min_p);
        CAPTURE(one.top_k);
        CAPTURE(one.penalty);
        SamplingOptions options = sampled(one.temperature);
        options.top_p = one.top_p;
        options.min_p = one.min_p;
        options.top_k = one.top_k;
        options.repetition_penalty = one.penalty;
        Sampler sampler(options);
        const engine::LikeliestWanted wanted = sampler.wanted();
        REQUIRE(wanted.count != 0);
        std::size_t decided = 0, wrong = 0;
        constexpr std::size_t rows = 200;
        for (std::size_t i = 0; i < rows; ++i) {
            std::vector<float> row(i % 4 == 3 ? 30 : 3000);
            // Some peaked, some flat, some with many equals.
            for (float& x : row) {
                x = static_cast<float>(-std::log(1 - uniform()) * (i % 3 == 0 ? 0.3 : 2));
                if (i % 2 == 0) x = std::round(4 * x) / 4;
                if (i % 5 == 0) x -= 3;
            }
            std::vector<std::int32_t> seen(i);  // among them the likeliest, and some twice
            for (std::int32_t& id : seen) {
                id = static_cast<std::int32_t>(uniform() * static_cast<double>(row.size()));
                if (uniform() < 0.1)
                    id = static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
            }
            const Found found(row, wanted, i % 2 == 0 ? 1e-9 : -1e-9);
            if (i % 7 == 0)  // all that there are
                for (const engine::Candidate& token : found.tokens) seen.push_back(token.id);
            const auto token = sampler.next(found.all(), seen);
            decided += token.has_value();
            wrong += token.has_value() && *token != *sampler.next(row, seen);
        }
        CHECK(wrong == 0);
        CHECK(static_cast<double>(decided) >= one.decided * rows);
    }
}

TEST_CASE("a share that rounding might decide is left to all logits") {
    SamplingOptions options = sampled(1);
    options.top_p = 0.5;
    Sampler sampler(options);
    const std::vector<float> row(8, 0.0F);  // four are exactly half
    const std::vector<std::int32_t> seen(3, 0);
    CHECK_FALSE(sampler.next(Found(row, sampler.wanted(), 0).all(), seen).has_value());
    options.top_p = 0.51;
    Sampler other(options);
    CHECK(other.next(Found(row, other.wanted(), 0).all(), seen) == *other.next(row, seen));
}

TEST_CASE(
    "a penalty that raises or that shares hang on, a draw from all and more than 256 candidates need all logits") {
    SamplingOptions options;
    options.repetition_penalty = 0.9;
    CHECK(Sampler(options).wanted().count == 0);
    options = sampled(1);
    options.repetition_penalty = 1.1;
    options.top_p = 0.9;
    CHECK(Sampler(options).wanted().count == 0);
    CHECK(Sampler(sampled(1)).wanted().count == 0);
    options = sampled(1);
    options.top_k = 257;
    CHECK(Sampler(options).wanted().count == 0);
    CHECK(Sampler(SamplingOptions{}).wanted().count == 1);
}

TEST_CASE("logits that are no numbers are refused") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (const double temperature : {0.0, 1.0}) {
        for (const std::vector<float>& bad :
             {std::vector<float>{1, nan, 2}, {1, infinity}, {-infinity, -infinity}, {}}) {
            Sampler sampler(sampled(temperature));
            const auto token = sampler.next(bad, {});
            REQUIRE_FALSE(token.has_value());
            CHECK(token.error().code == Errc::bad_input);
        }
    }
}

TEST_CASE("options out of range are usage errors that name the option") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto error = [](const std::function<void(SamplingOptions&)>& change) {
        SamplingOptions options;
        change(options);
        const Status status = engine::check(options);
        REQUIRE_FALSE(status.has_value());
        CHECK(status.error().code == Errc::usage);
        return status.error().message;
    };
    for (const double bad : {-0.1, nan, std::numeric_limits<double>::infinity()}) {
        CHECK(error([&](SamplingOptions& o) { o.temperature = bad; }).find("temperature") != std::string::npos);
        CHECK(error([&](SamplingOptions& o) { o.min_p = bad; }).find("min-p") != std::string::npos);
        CHECK(error([&](SamplingOptions& o) { o.top_p = bad; }).find("top-p") != std::string::npos);
        CHECK(error([&](SamplingOptions& o) { o.repetition_penalty = bad; }).find("penalty") != std::string::npos);
    }
    CHECK(error([](SamplingOptions& o) { o.top_p = 0; }).find("top-p") != std::string::npos);
    CHECK(error([](SamplingOptions& o) { o.top_p = 1.01; }).find("top-p") != std::string::npos);
    CHECK(error([](SamplingOptions& o) { o.repetition_penalty = 0; }).find("penalty") != std::string::npos);
    CHECK(engine::check(SamplingOptions{}).has_value());
}
