// Measurements on a model with random weights.
#include "calib/measure.h"

#include <doctest/doctest.h>

#include <cmath>

#include "calib/campaign.h"
#include "engine/probability.h"
#include "kv/convert.h"
#include "support/temp_dir.h"
#include "unit/engine/support.h"

using namespace hetero;
using namespace hetero::test;
using calib::Assignment;
using calib::Bench;
using calib::Text;
using kv::PartId;

namespace {

Text make_text(const std::string& name, std::size_t n, std::size_t prompt, unsigned seed) {
    Text text{name, {}, prompt};
    for (std::size_t i = 0; i < n; ++i) text.tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7 + seed) % 512));
    return text;
}

std::unique_ptr<Bench> make_bench(int threads = 2) {
    const auto model = tiny_model();
    auto bench = Bench::create(model, engine::identity_of(*model, {}),
                               {make_text("a", 60, 40, 1), make_text("b", 50, 45, 5)}, threads);
    REQUIRE_MESSAGE(bench.has_value(), bench.error().message);
    return std::move(*bench);
}

kv::Scheme scheme(std::string_view spec, std::uint32_t sinks = 0) {
    return kv::scheme_from_spec(*quant::parse_spec(spec), sinks, 0, kernels::DType::f16);
}

Assignment alike(const Bench& bench, std::string_view k, std::string_view v) {
    return calib::uniform(bench.identity().n_layers, scheme(k), scheme(v));
}

std::vector<calib::Step> measured(Bench& bench, std::size_t text, std::uint64_t steps, const Assignment& assignment) {
    auto out = bench.measure(text, steps, assignment);
    REQUIRE_MESSAGE(out.has_value(), out.error().message);
    return *out;
}

}  // namespace

TEST_CASE("the unquantized state does not drift from itself, and fewer bits drift further") {
    const auto bench = make_bench();
    for (const calib::Step& step : measured(*bench, 0, 20, alike(*bench, "f16", "f16"))) {
        CHECK(step.kl == 0);
        CHECK(step.max_abs_dp == 0);
        CHECK(step.top1_equal);
    }
    const auto kl = [&](std::string_view k, std::string_view v) {
        return calib::summarise(measured(*bench, 0, 20, alike(*bench, k, v))).kl_mean;
    };
    const double eight = kl("wf8", "had:int8"), four = kl("wf4", "had:int4"), two = kl("wf2", "had:int2");
    CHECK(eight > 0);
    CHECK(four > 4 * eight);
    CHECK(two > 4 * four);
}

TEST_CASE("feeding all tokens at once measures what decoding them one by one does") {
    const auto bench = make_bench(1);
    const Assignment assignment = alike(*bench, "int4:channel:g32:asym", "int4");
    const auto fast = measured(*bench, 0, 20, assignment);

    const auto model = tiny_model();
    const Text text = make_text("a", 60, 40, 1);
    engine::Options options;
    options.threads = 1;
    const auto a = must(engine::Session::create(model, options, 60)),
               b = must(engine::Session::create(model, options, 60));
    REQUIRE(a->prefill(std::span(text.tokens).first(40), engine::Logits::none, {}).has_value());
    kv::Header header;
    header.identity = bench->identity();
    header.k_schemes.assign(header.identity.n_layers, {});
    header.v_schemes = header.k_schemes;
    header.sequences.emplace_back();
    header.sequences[0].tokens.assign(text.tokens.begin(), text.tokens.begin() + 40);
    kv::Header stored = header;
    stored.k_schemes = assignment.k;
    stored.v_schemes = assignment.v;
    for (std::uint32_t layer = 0; layer < header.identity.n_layers; ++layer) {
        kv::Layer value = must(a->export_layer(layer));
        for (const PartId part : {PartId::k, PartId::v}) {
            const auto values = must(kv::decode_part(header, value.part(part), 40, part));
            value.part(part) = must(kv::encode_part(header, assignment.of(part)[layer], 40, part, values));
        }
        REQUIRE(b->import_layer(stored, layer, value, 40).has_value());
    }
    REQUIRE(fast.size() == 20);
    for (std::size_t i = 0; i < fast.size(); ++i) {
        CAPTURE(i);
        const TokenId token = text.tokens[40 + i];
        const std::span<const float> logits = must(a->decode(token));
        const auto slow = must(engine::compare_logits(logits, must(b->decode(token)), "a", "b"));
        CHECK(fast[i].max_abs_dp == doctest::Approx(slow.max_abs_dp).epsilon(0.02));
        CHECK(fast[i].kl == doctest::Approx(slow.kl).epsilon(0.02));
        CHECK(fast[i].top1_equal == slow.top1_equal());
    }
    // The first steps do not depend on how many follow, nor figures on what was measured before or on threads.
    const auto other = make_bench(3);
    measured(*other, 1, 5, assignment);
    const auto ten = measured(*other, 0, 10, assignment);
    CHECK(std::equal(ten.begin(), ten.end(), fast.begin()));
}

TEST_CASE("a layer's part can be stored apart from the others, and its noise is that of its values") {
    const auto bench = make_bench();
    Assignment one = alike(*bench, "f16", "f16");
    one.v[1] = scheme("int2:g16");
    const double alone = calib::summarise(measured(*bench, 0, 20, one)).kl_mean;
    CHECK(alone > 0);
    one.k[0] = scheme("int2:channel:g32:asym");
    CHECK(calib::summarise(measured(*bench, 0, 20, one)).kl_mean != alone);
    const double two = must(bench->noise(0, 1, PartId::v, scheme("int2:g16")));
    const double four = must(bench->noise(0, 1, PartId::v, scheme("int4:g16")));
    CHECK(must(bench->noise(0, 1, PartId::v, scheme("f16"))) == 0);
    CHECK(two > 10 * four);
    CHECK(must(bench->noise(0, 1, PartId::v, scheme("int2:g16", 40))) == 0);  // all 40 tokens are sinks
}

TEST_CASE("bits count codes, scales, zeros and kept tokens") {
    const auto bench = make_bench();  // prompts of 40 and 45 tokens
    const std::uint32_t dim = bench->identity().head_dim_k;
    const Assignment plain = alike(*bench, "f16", "f16");
    CHECK(bench->bits_per_value(plain) == 16);
    Assignment mixed = calib::uniform(bench->identity().n_layers, scheme("int8:channel:g32:asym"), scheme("int8", 5));
    const double k = 8 + 32.0 * (2 + 2) / 85, v = ((85 - 10) * (8 + 16.0 / dim) + 10 * 16) / 85;
    CHECK(bench->bits_per_value(mixed) == doctest::Approx((k + v) / 2).epsilon(1e-12));
}

TEST_CASE("f16 KV has noise of its own") {
    const auto bench = make_bench();
    const auto floor = bench->floor(0, 20);
    REQUIRE(floor.has_value());
    const kv::DriftFigures figures = calib::summarise(*floor);
    CHECK(figures.positions == 20);
    CHECK(figures.kl_mean > 0);
    CHECK(figures.dp_max < 0.01);
}

TEST_CASE("texts that do not fit are refused") {
    const auto model = tiny_model();
    const auto create = [&](const Text& text) {
        return Bench::create(model, engine::identity_of(*model, {}), {text}, 1).has_value();
    };
    CHECK_FALSE(create(make_text("no prompt", 10, 0, 1)));
    CHECK_FALSE(create(make_text("no step", 10, 10, 1)));
    CHECK_FALSE(create(make_text("too long", model->config.context_length + 1, 10, 1)));
}

TEST_CASE("a campaign measures once, and slices of it find each other's work") {
    const TempDir folder;
    const auto bench = make_bench();
    const std::vector<calib::Job> jobs = {{calib::Job::Kind::floor, {}},
                                          {calib::Job::Kind::drift, alike(*bench, "int4:channel:g32:asym", "int4")},
                                          {calib::Job::Kind::drift, alike(*bench, "int8", "f16")}};
    const auto run = [&](calib::Journal* journal, std::size_t& calls) {
        calib::Campaign campaign(*bench, journal, "test 1");
        calls = 0;
        return must(campaign.run(jobs, {0, 1}, 20, [&] { ++calls; }));
    };
    std::size_t calls = 0;
    const auto without = run(nullptr, calls);
    CHECK(calls == 6);
    CHECK(without[1].steps.size() == 25);  // the second text has 5 steps
    CHECK(without[1].figures.positions == 25);
    CHECK(without[2].figures.kl_mean < without[1].figures.kl_mean);
    for (std::size_t index = 0; index < 4; ++index) {
        auto journal = must(calib::Journal::open(folder / "j", std::to_string(index)));
        calib::Campaign campaign(*bench, &journal, "test 1");
        REQUIRE(campaign.run_slice(jobs, {0, 1}, 20, {index, 4}, {}).has_value());
    }
    auto merged = must(calib::Journal::open(folder / "j", "merge"));
    CHECK(merged.size() == 6);
    const auto with = run(&merged, calls);
    CHECK(merged.size() == 6);
    for (std::size_t job = 0; job < jobs.size(); ++job) CHECK(with[job].steps == without[job].steps);
    calib::Campaign other(*bench, &merged, "test 2");
    must(other.run(jobs, {0}, 20, {}));
    CHECK(merged.size() == 9);  // another version of the program measures anew
}
