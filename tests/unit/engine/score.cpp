#include "engine/score.h"

#include <cmath>

#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

const std::vector<TokenId> prompt = {1, 70, 300, 42, 411, 99};

}  // namespace

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

TEST_CASE("logits that are no numbers are not scored") {
    auto broken = std::make_shared<model::Model>(*tiny_model());
    auto& head = std::get<model::Head>(broken->program.ops.back());
    head.norm.weight.values[3] = std::numeric_limits<float>::quiet_NaN();
    const auto session = make_session(broken, 16);
    CHECK(error_of(engine::score(*session, prompt)).code == Errc::bad_input);
}

TEST_CASE("two predictions of the next token") {
    const float step = std::log(1.5F);  // p = (1/2, 1/2), p' = (3/5, 2/5)
    const auto out = must(engine::compare_logits(std::vector<float>{1, 1}, std::vector<float>{step, 0}, "a", "b"));
    CHECK(out.max_abs_dp == doctest::Approx(0.1).epsilon(1e-7));
    CHECK(out.worst == 0);
    CHECK(out.p_a == doctest::Approx(0.5).epsilon(1e-12));
    CHECK(out.p_b == doctest::Approx(0.6).epsilon(1e-7));
    CHECK(out.kl == doctest::Approx(0.020411).epsilon(1e-4));
    CHECK(out.max_abs_dp <= std::sqrt(out.kl / 2));  // Pinsker
    CHECK(out.max_abs_dlogit == 1);
    CHECK(out.top_a == 0);
    CHECK(out.log_sum_a - 1.0 == doctest::Approx(std::log(2.0)).epsilon(1e-12));
    // A constant added to all logits changes no probability.
    const std::vector<float> base{0.5F, -2, 3, 1}, shifted{8.5F, 6, 11, 9};
    const auto same = must(engine::compare_logits(base, shifted, "a", "b"));
    CHECK(same.max_abs_dp == 0);
    CHECK(same.kl == 0);
    CHECK(same.max_abs_dlogit == 8);
    CHECK(same.top1_equal());
}

TEST_CASE("log of the sum of exponentials") {
    CHECK(must(engine::log_sum_exp(std::vector<float>{0, 0})) == doctest::Approx(std::log(2.0)).epsilon(1e-15));
    CHECK(must(engine::log_sum_exp(std::vector<float>{1000, 1000, -1000})) ==
          doctest::Approx(1000 + std::log(2.0)).epsilon(1e-15));
    const Error error = error_of(engine::log_sum_exp(std::vector<float>{0, -std::numeric_limits<float>::infinity()}));
    CHECK(has(error, "token 1"));
}
