#include "verify/checks.h"

#include <cmath>

#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

// Figures of `n` steps: E_p is `dp` but in one step, where it is `worst`; so are the others.
verify::Report report_of(std::size_t n, double dp, double worst) {
    verify::Report report;
    for (std::size_t i = 0; i < n; ++i) {
        verify::Step step;
        step.step = i;
        step.max_abs_dp = i == 7 ? worst : dp;
        step.kl = step.max_abs_dp / 10;
        step.max_abs_dlogit = step.max_abs_dp * 10;
        step.top_candidate = i == 5 ? 3 : -1;
        step.nll_reference = 2;
        step.nll_candidate = i % 2 == 0 ? 2.1 : 2;
        report.steps.push_back(step);
    }
    report.summary = verify::summarise(report.steps, 1);
    report.attention.resize(2);
    report.attention[0].layer = 4;
    report.attention[0].relative_l2 = worst;
    report.attention[1].layer = 5;
    report.attention[1].relative_l2 = dp;
    return report;
}

struct Fixture {
    kv::Header header;
    kv::Comparison comparison;
    verify::Report report = report_of(300, 0.001, 0.02);
    Fixture() {
        header.sequences.emplace_back();
        comparison.max_abs = 0.5;
        comparison.p99_abs = 0.25;
        comparison.logits_max_abs = 0.125;
        comparison.logits_max_abs_dp = 0.003;
        kv::PartDifference part;
        part.sequence = "0";
        part.layer = 2;
        part.elements = 1000;
        part.relative_l2 = 0.06;
        comparison.parts.push_back(part);
    }
    [[nodiscard]] std::vector<verify::Check> hold(const verify::Bounds& bounds,
                                                  const verify::Control* control = nullptr) const {
        return verify::hold(bounds, {&header, &comparison, &report, control, {}});
    }
};

}  // namespace

TEST_CASE("the gate: p99 needs 256 values, the maximum does not") {
    CHECK(verify::apply(verify::Gate::p99, 255, 1, 2).value == 2);
    CHECK(verify::apply(verify::Gate::p99, 255, 1, 2).max_stands_in);
    CHECK(verify::apply(verify::Gate::p99, 256, 1, 2).value == 1);
    CHECK(!verify::apply(verify::Gate::p99, 256, 1, 2).max_stands_in);
    CHECK(verify::apply(verify::Gate::max, 256, 1, 2).value == 2);
}

TEST_CASE("epsilon of probabilities: the gate, the stored logits, and KL") {
    const Fixture fixture;
    verify::Bounds bounds;
    bounds.epsilon = 0.002;
    auto checks = fixture.hold(bounds);
    REQUIRE(checks.size() == 3);
    CHECK(checks[0].figure == "p99 |dp|");
    CHECK(checks[0].value == 0.001);
    CHECK(checks[0].passed());
    CHECK(checks[0].n == 300);
    CHECK(checks[0].where == "sequence 0, step 7");
    CHECK(checks[1].value == 0.003);
    CHECK(!checks[1].passed());
    CHECK(checks[2].figure == "max KL");
    CHECK(checks[2].passed());  // equal
    bounds.gate = verify::Gate::max;
    CHECK(fixture.hold(bounds)[0].value == 0.02);
    CHECK(!fixture.hold(bounds)[0].passed());
    bounds.kl_max = 0.001;
    checks = fixture.hold(bounds);
    REQUIRE(checks.size() == 3);
    CHECK(checks[2].option == "kl-max");
    CHECK(!checks[2].passed());
}

TEST_CASE("every other bound holds its own figure") {
    const Fixture fixture;
    verify::Bounds bounds;
    const auto only = [&](std::optional<double> verify::Bounds::*bound, double value) {
        bounds = {};
        bounds.*bound = value;
        const auto checks = fixture.hold(bounds);
        REQUIRE(checks.size() == 1);
        return checks[0];
    };
    CHECK(only(&verify::Bounds::kl, 1).value == doctest::Approx((299 * 1e-4 + 2e-3) / 300));
    CHECK(only(&verify::Bounds::kl_max, 1).value == 0.002);
    CHECK(only(&verify::Bounds::logit, 1).value == 0.2);
    CHECK(only(&verify::Bounds::attention, 1).value == 0.02);
    CHECK(only(&verify::Bounds::attention, 1).where == "sequence 0, layer 4");
    CHECK(only(&verify::Bounds::perplexity, 1).value == doctest::Approx(std::expm1(0.05)));
    CHECK(only(&verify::Bounds::elem, 1).value == 0.5);
    CHECK(only(&verify::Bounds::rms, 1).value == 0.06);
    CHECK(only(&verify::Bounds::rms, 1).where == "sequence 0, layer 2, K");
    const verify::Check top1 = only(&verify::Bounds::top1, 299.0 / 300);
    CHECK(top1.value == doctest::Approx(299.0 / 300));
    CHECK(top1.passed());
    CHECK(top1.where == "sequence 0, step 5");
    CHECK(!only(&verify::Bounds::top1, 0.999).passed());
    CHECK(!only(&verify::Bounds::elem, 0.49).passed());
    bounds = {};
    bounds.epsilon = 1;
    bounds.elements = true;
    CHECK(fixture.hold(bounds)[0].figure == "p99 |d|");
    CHECK(fixture.hold(bounds)[0].value == 0.25);
    CHECK(fixture.hold(bounds)[1].value == 0.125);
}

TEST_CASE("a bound that the control itself does not pass is not resolved") {
    const Fixture fixture;
    verify::Control control;
    control.report = report_of(300, 0.0005, 0.004);
    verify::Bounds bounds;
    bounds.epsilon = 0.0005;
    bounds.gate = verify::Gate::max;
    bounds.top1 = 0.999;
    bounds.kl_max = 0.01;
    bounds.elem = 1e-9;
    const auto checks = fixture.hold(bounds, &control);
    REQUIRE(checks.size() == 5);
    CHECK(checks[0].option == "elem");
    CHECK(checks[0].resolved());  // no computation lies between stored values
    CHECK(checks[1].option == "epsilon");
    CHECK(checks[1].control == 0.004);
    CHECK(!checks[1].resolved());
    CHECK(checks[3].option == "kl-max");
    CHECK(checks[3].control == 0.0004);
    CHECK(checks[3].resolved());
    CHECK(checks[4].option == "top1");
    CHECK(!checks[4].resolved());  // the control agrees in 299 of 300
    // A stated floor takes the place of what was measured.
    CHECK(!verify::hold(bounds, {&fixture.header, &fixture.comparison, &fixture.report, nullptr, 0.001})[1].resolved());
}

TEST_CASE("NaN passes no bound") {
    Fixture fixture;
    fixture.report.steps[3].kl = std::numeric_limits<double>::quiet_NaN();
    fixture.report.summary = verify::summarise(fixture.report.steps, 1);
    verify::Bounds bounds;
    bounds.kl = bounds.kl_max = 1e9;
    for (const verify::Check& check : fixture.hold(bounds)) CHECK(!check.passed());
}

TEST_CASE("the certificate is Pinsker's inequality") {
    verify::Summary summary;
    summary.kl_max = 2e-4;
    CHECK(verify::certificate(summary, 0.01).holds());
    CHECK(verify::certificate(summary, 0.01).bound == doctest::Approx(2e-4));
    summary.kl_max = 2.1e-4;
    CHECK(!verify::certificate(summary, 0.01).holds());
    // A pair of distributions that attains it nearly: p = (1/2, 1/2), p' = (1/2 + d, 1/2 - d).
    const double d = 1e-3;
    summary.kl_max = -0.5 * std::log1p(-4 * d * d);
    CHECK(!verify::certificate(summary, d * 0.999).holds());
    CHECK(verify::certificate(summary, d * 1.001).holds());
}
