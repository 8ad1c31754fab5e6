#include <cmath>

#include "engine/generate.h"
#include "engine/score.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

const std::vector<TokenId> prompt = {1, 70, 300, 42, 411, 99};

}  // namespace

TEST_CASE("equal states do not drift") {
    const auto a = make_session(tiny_model(), 64), b = make_session(tiny_model(), 64);
    prefill(*a, prompt);
    prefill(*b, prompt);
    const auto steps = must(engine::measure_drift(*a, *b, {}, 7, 10));
    REQUIRE(steps.size() == 10);
    CHECK(steps[0].token == 7);
    for (const engine::DriftStep& step : steps) {
        CHECK(step.max_abs_dp == 0);
        CHECK(step.kl == 0);
        CHECK(step.max_abs_dlogit == 0);
        CHECK(step.top1_equal);
    }
    CHECK(a->position() == prompt.size() + 10);
}

TEST_CASE("drift is what the two distributions say, step by step") {
    // Two caches of different prompts of one length: far apart.
    const std::vector<TokenId> other = {1, 70, 300, 42, 412, 99}, forced = {5, 6, 7};
    const auto a = make_session(tiny_model(), 64), b = make_session(tiny_model(), 64);
    const auto c = make_session(tiny_model(), 64), d = make_session(tiny_model(), 64);
    prefill(*a, prompt);
    prefill(*b, other);
    prefill(*c, prompt);
    prefill(*d, other);
    const auto steps = must(engine::measure_drift(*a, *b, forced, 99, 1000));
    REQUIRE(steps.size() == forced.size());
    for (std::size_t i = 0; i < forced.size(); ++i) {
        CHECK(steps[i].token == forced[i]);
        const auto la = must(c->decode(forced[i])), lb = must(d->decode(forced[i]));
        long double sum_a = 0, sum_b = 0, kl = 0;
        for (std::size_t j = 0; j < la.size(); ++j) {
            sum_a += std::exp(static_cast<long double>(la[j]));
            sum_b += std::exp(static_cast<long double>(lb[j]));
        }
        double dp = 0, dlogit = 0;
        for (std::size_t j = 0; j < la.size(); ++j) {
            const long double pa = std::exp(static_cast<long double>(la[j])) / sum_a;
            const long double pb = std::exp(static_cast<long double>(lb[j])) / sum_b;
            dp = std::max(dp, static_cast<double>(std::fabs(pa - pb)));
            dlogit = std::max(dlogit, std::fabs(static_cast<double>(la[j]) - lb[j]));
            kl += pa * std::log(pa / pb);
        }
        CHECK(dp > 0.001);
        CHECK(steps[i].max_abs_dp == doctest::Approx(dp).epsilon(1e-9));
        CHECK(steps[i].kl == doctest::Approx(static_cast<double>(kl)).epsilon(1e-9));
        CHECK(steps[i].max_abs_dlogit == dlogit);
        CHECK(steps[i].top1_equal == (engine::argmax(la) == engine::argmax(lb)));
    }
}

TEST_CASE("the greedy continuation of the first state is what is fed") {
    const auto a = make_session(tiny_model(), 64), b = make_session(tiny_model(), 64, DType::bf16),
               c = make_session(tiny_model(), 64);
    TokenId next = engine::argmax(prefill(*a, prompt));
    prefill(*b, prompt);
    prefill(*c, prompt);
    const auto steps = must(engine::measure_drift(*a, *b, {}, next, 8));
    bool any = false;
    for (const engine::DriftStep& step : steps) {
        CHECK(step.token == next);
        next = engine::argmax(must(c->decode(next)));
        any = any || step.max_abs_dp > 0;
    }
    CHECK(any);  // bf16 against f16
}

TEST_CASE("sessions that cannot be compared are refused") {
    const auto a = make_session(tiny_model(), 16), b = make_session(tiny_model(), 16);
    prefill(*a, prompt);
    CHECK(error_of(engine::measure_drift(*a, *b, {}, 1, 4)).code == Errc::bad_input);
    prefill(*b, prompt);
    CHECK(has(error_of(engine::measure_drift(*a, *b, {}, 1, 11)), "10 positions"));
    CHECK(error_of(engine::measure_drift(*a, *b, {}, 512, 1)).code == Errc::usage);
}

TEST_CASE("logits that are no numbers never pass as small drift") {
    auto broken = std::make_shared<model::Model>(*tiny_model());
    auto& head = std::get<model::Head>(broken->program.ops.back());
    head.norm.weight.values[3] = std::numeric_limits<float>::quiet_NaN();
    const auto a = make_session(tiny_model(), 16), b = make_session(broken, 16);
    must(a->prefill(prompt, engine::Logits::none, {}));
    must(b->prefill(prompt, engine::Logits::none, {}));
    const Error error = error_of(engine::measure_drift(*a, *b, {}, 1, 4));
    CHECK(error.code == Errc::bad_input);
    CHECK(has(error, "step 0"));
    CHECK(has(error, "second state"));
    CHECK(error_of(engine::score(*b, prompt)).code == Errc::bad_input);
}

TEST_CASE("scoring: windows do not overlap, and their first token is not scored") {
    std::vector<TokenId> text;
    for (int i = 0; i < 25; ++i) text.push_back((i * 97 + 13) % 512);
    const auto session = make_session(tiny_model(), 10, DType::f32);
    std::vector<std::uint64_t> progress;
    const auto score = must(engine::score(*session, text, 8, [&](std::uint64_t done) { progress.push_back(done); }));
    CHECK(progress == std::vector<std::uint64_t>{8, 16, 24, 25});
    CHECK(session->position() == 0);
    REQUIRE(score.scored == 21);
    REQUIRE(score.token_nll.size() == 21);
    double sum = 0;
    std::size_t at = 0;
    for (std::size_t begin = 0; begin < text.size(); begin += 8) {
        const auto reference = make_session(tiny_model(), 10, DType::f32);
        for (std::size_t i = begin; i + 1 < std::min(begin + 8, text.size()); ++i, ++at) {
            const auto logits = must(reference->decode(text[i]));
            const double nll = must(engine::log_sum_exp(logits)) - logits[static_cast<std::size_t>(text[i + 1])];
            CHECK(score.token_nll[at] == doctest::Approx(nll).epsilon(1e-4));
            sum += nll;
        }
    }
    CHECK(score.nll_sum == doctest::Approx(sum).epsilon(1e-4));
    CHECK(score.perplexity() == doctest::Approx(std::exp(sum / 21)).epsilon(1e-3));
}

TEST_CASE("scoring with BOS: it begins every window, and every token is scored") {
    std::vector<TokenId> text;
    for (int i = 0; i < 17; ++i) text.push_back((i * 97 + 13) % 512);
    constexpr TokenId bos = 1;
    const auto session = make_session(tiny_model(), 10, DType::f32);
    const auto score = must(engine::score(*session, text, 9, {}, bos));
    REQUIRE(score.scored == 17);
    std::size_t at = 0;
    for (std::size_t begin = 0; begin < text.size(); begin += 8) {
        const auto reference = make_session(tiny_model(), 10, DType::f32);
        TokenId fed = bos;
        for (std::size_t i = begin; i < std::min(begin + 8, text.size()); ++i, ++at) {
            const auto logits = must(reference->decode(fed));
            fed = text[i];
            const double nll = must(engine::log_sum_exp(logits)) - logits[static_cast<std::size_t>(fed)];
            CHECK(score.token_nll[at] == doctest::Approx(nll).epsilon(1e-4));
        }
    }
    CHECK(at == 17);
    CHECK(must(engine::score(*session, std::vector<TokenId>{5}, 8, {}, bos)).scored == 1);
}

TEST_CASE("texts and windows that cannot be scored are refused") {
    const auto session = make_session(tiny_model(), 10);
    CHECK(error_of(engine::score(*session, std::vector<TokenId>{1})).code == Errc::usage);
    CHECK(error_of(engine::score(*session, prompt, 1)).code == Errc::usage);
    CHECK(error_of(engine::score(*session, std::vector<TokenId>(20, 1), 12)).code == Errc::usage);
    CHECK(error_of(engine::score(*session, std::vector<TokenId>{1, 600})).code == Errc::usage);
    must(engine::score(*session, std::vector<TokenId>(20, 1), 11));  // the last of a window is only predicted
}

TEST_CASE("log of the sum of exponentials") {
    CHECK(must(engine::log_sum_exp(std::vector<float>{0, 0})) == doctest::Approx(std::log(2.0)).epsilon(1e-15));
    CHECK(must(engine::log_sum_exp(std::vector<float>{1000, 1000, -1000})) ==
          doctest::Approx(1000 + std::log(2.0)).epsilon(1e-15));
    const Error error = error_of(engine::log_sum_exp(std::vector<float>{0, -std::numeric_limits<float>::infinity()}));
    CHECK(has(error, "token 1"));
}
