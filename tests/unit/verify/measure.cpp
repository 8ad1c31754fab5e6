#include "verify/measure.h"

#include <cmath>

#include "engine/probability.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

verify::Options steps_of(std::uint64_t steps) {
    verify::Options options;
    options.steps = steps;
    options.threads = 1;
    return options;
}

std::unique_ptr<Session> session_of(const ModelPtr& model, const kv::State& state, std::size_t sequence,
                                    std::uint64_t capacity) {
    auto session = make_session(model, capacity, kv::source_dtype(state.header));
    must(engine::import_layers(*session, state.header, state.layers[sequence],
                               state.header.sequences[sequence].tokens.size()));
    return session;
}

}  // namespace

TEST_CASE("equal states do not drift") {
    const ModelPtr model = tiny_model();
    const kv::State state = state_of(model, {some_tokens(20), some_tokens(9, 5)});
    const verify::Report report = measured(model, state, state, steps_of(40));
    REQUIRE(report.steps.size() == 80);
    REQUIRE(report.fed.size() == 2);
    CHECK(report.steps[0].fed == engine::argmax(state.header.sequences[0].logits));
    for (const verify::Step& step : report.steps) {
        CHECK(step.max_abs_dp == 0);
        CHECK(step.kl == 0);
        CHECK(step.max_abs_dlogit == 0);
        CHECK(step.top1_equal());
    }
    CHECK(report.summary.n == 80);
    CHECK(report.summary.n_scored == 78);
    CHECK(report.summary.perplexity_change == 0);
    CHECK(report.attention.size() == 2 * model->config.n_layers);
    for (const verify::AttentionError& one : report.attention) {
        CHECK(one.relative_l2 == 0);
        CHECK(one.max_relative == 0);
        REQUIRE(one.head_relative_l2.size() == model->config.n_heads);
    }
}

TEST_CASE("drift is what decoding from both says, step by step") {
    const ModelPtr model = tiny_model();
    const kv::State a = state_of(model, {some_tokens(20)}), b = encoded(a, "int4:token", "int8:token");
    verify::Options options = steps_of(45);  // more than a block, and not a multiple of it
    options.forced = {some_tokens(45, 3)};
    const verify::Report report = measured(model, a, b, options);
    const auto x = session_of(model, a, 0, 65), y = session_of(model, b, 0, 65);
    REQUIRE(report.steps.size() == 45);
    double kl_sum = 0;
    for (std::size_t i = 0; i < 45; ++i) {
        const verify::Step& step = report.steps[i];
        const TokenId token = options.forced[0][i];
        CHECK(step.fed == token);
        CHECK(step.step == i);
        const auto la = must(x->decode(token)), lb = must(y->decode(token));
        long double sum_a = 0, sum_b = 0, kl = 0;
        for (std::size_t j = 0; j < la.size(); ++j) {
            sum_a += std::exp(static_cast<long double>(la[j]));
            sum_b += std::exp(static_cast<long double>(lb[j]));
        }
        double dp = 0, dlogit = 0;
        std::size_t worst = 0;
        for (std::size_t j = 0; j < la.size(); ++j) {
            const long double pa = std::exp(static_cast<long double>(la[j])) / sum_a;
            const long double pb = std::exp(static_cast<long double>(lb[j])) / sum_b;
            if (const auto d = static_cast<double>(std::fabs(pa - pb)); d > dp) {
                dp = d;
                worst = j;
            }
            dlogit = std::max(dlogit, std::fabs(static_cast<double>(la[j]) - lb[j]));
            kl += pa * std::log(pa / pb);
        }
        CHECK(dp > 0);
        CHECK(step.max_abs_dp == doctest::Approx(dp).epsilon(1e-3));
        CHECK(step.worst == static_cast<TokenId>(worst));
        CHECK(step.kl == doctest::Approx(static_cast<double>(kl)).epsilon(1e-3));
        CHECK(step.max_abs_dlogit == doctest::Approx(dlogit).epsilon(1e-3));
        CHECK(step.top_reference == engine::argmax(la));
        CHECK(step.top_candidate == engine::argmax(lb));
        kl_sum += static_cast<double>(kl);
        if (i + 1 == 45) {
            CHECK(std::isnan(step.nll_reference));
        } else {
            const auto next = static_cast<std::size_t>(options.forced[0][i + 1]);
            CHECK(step.nll_reference ==
                  doctest::Approx(static_cast<double>(std::log(sum_a) - static_cast<long double>(la[next])))
                      .epsilon(1e-5));
            CHECK(step.nll_candidate ==
                  doctest::Approx(static_cast<double>(std::log(sum_b) - static_cast<long double>(lb[next])))
                      .epsilon(1e-5));
        }
    }
    CHECK(report.summary.kl_mean == doctest::Approx(kl_sum / 45).epsilon(1e-3));
}

TEST_CASE("fast products are those of decoding, step by step") {
    const ModelPtr model = tiny_model();
    const kv::State a = state_of(model, {some_tokens(20)}), b = encoded(a, "int4:token", "int8:token");
    verify::Options options = steps_of(6);
    options.forced = {some_tokens(6, 3)};
    options.precision = engine::Precision::fast;
    const verify::Report report = measured(model, a, b, options);
    const auto session = [&](const kv::State& state) {
        engine::Options fast;
        fast.threads = 1;
        fast.precision = engine::Precision::fast;
        auto made = must(Session::create(model, fast, 26));
        must(engine::import_layers(*made, state.header, state.layers[0], 20));
        return made;
    };
    const auto x = session(a), y = session(b);
    for (std::size_t i = 0; i < 6; ++i) {
        const auto difference = must(engine::compare_logits(must(x->decode(options.forced[0][i])),
                                                            must(y->decode(options.forced[0][i])), "a", "b"));
        CHECK(report.steps[i].max_abs_dp == difference.max_abs_dp);
        CHECK(report.steps[i].kl == difference.kl);
    }
}

TEST_CASE("a candidate with resident codes is decoded step by step, and its attention is that of the codes") {
    const ModelPtr model = tiny_model();
    const kv::State a = state_of(model, {some_tokens(20), some_tokens(33, 7)});
    for (const auto precision : {engine::Precision::precise, engine::Precision::fast}) {
        verify::Options options = steps_of(37);
        options.forced = {some_tokens(37, 3), some_tokens(37, 4)};
        options.precision = precision;
        options.resident = engine::KvStorage(DType::f16, must(engine::resident_codecs("fp8_e4m3fn")));
        const verify::Report report = measured(model, a, a, options);
        REQUIRE(report.steps.size() == 74);
        const auto session = [&](std::size_t sequence, bool codes) {
            engine::Options made;
            made.threads = 1;
            made.precision = precision;
            if (codes) made.kv_codecs = options.resident->codecs;
            auto out = must(Session::create(model, made, 80));
            must(engine::import_layers(*out, a.header, a.layers[sequence], a.header.sequences[sequence].tokens.size()));
            return out;
        };
        double largest = 0;
        for (std::size_t s = 0; s < 2; ++s) {
            const auto x = session(s, false), y = session(s, true);
            for (std::size_t i = 0; i < 37; ++i) {
                const auto difference = must(engine::compare_logits(must(x->decode(options.forced[s][i])),
                                                                    must(y->decode(options.forced[s][i])), "a", "b"));
                const double got = report.steps[s * 37 + i].max_abs_dp;
                if (precision == engine::Precision::fast) CHECK(got == difference.max_abs_dp);
                CHECK(got == doctest::Approx(difference.max_abs_dp).epsilon(0.01));
                largest = std::max(largest, got);
            }
        }
        CHECK(largest > 1e-4);  // the codes do make a difference
        // The same as a state in the very codes, decoded so or not: what attention sees of the stored tokens is equal.
        const auto spec = [&](kv::PartId part) {
            const kv::Scheme scheme = session(0, true)->kv_scheme(part);
            return quant::to_text({scheme.codec, scheme.params});
        };
        const kv::State coded = encoded(a, spec(kv::PartId::k), spec(kv::PartId::v));
        verify::Options floats = options;
        floats.resident.reset();
        const verify::Report stored = measured(model, a, coded, floats), both = measured(model, a, coded, options);
        REQUIRE(stored.attention.size() == report.attention.size());
        for (std::size_t i = 0; i < stored.attention.size(); ++i) {
            CHECK(report.attention[i].relative_l2 > 0);
            CHECK(report.attention[i].relative_l2 == doctest::Approx(stored.attention[i].relative_l2));
            CHECK(both.attention[i].relative_l2 == report.attention[i].relative_l2);
        }
    }
}

TEST_CASE("the greedy continuation of the reference is what is fed, whatever the state stores of it") {
    const ModelPtr model = tiny_model();
    kv::State a = state_of(model, {some_tokens(20)});
    const verify::Report with_logits = measured(model, a, encoded(a, "int8", "int8"), steps_of(12));
    a.header.sequences[0].pending_token = with_logits.fed[0][0];
    a.header.sequences[0].logits.clear();
    const verify::Report with_pending = measured(model, a, encoded(a, "int8", "int8"), steps_of(12));
    a.header.sequences[0].pending_token = -1;
    const verify::Report with_neither = measured(model, a, encoded(a, "int8", "int8"), steps_of(12));
    const auto session = session_of(model, a, 0, 40);
    TokenId next = with_logits.fed[0][0];
    for (std::size_t i = 0; i < 12; ++i) {
        CHECK(with_logits.fed[0][i] == next);
        CHECK(with_pending.steps[i].kl == with_logits.steps[i].kl);
        CHECK(with_neither.steps[i].kl == with_logits.steps[i].kl);
        next = engine::argmax(must(session->decode(next)));
    }
    // What was fed can be fed again, without decoding.
    verify::Options again = steps_of(12);
    again.forced = with_logits.fed;
    CHECK(measured(model, a, encoded(a, "int8", "int8"), again).summary.kl_mean == with_logits.summary.kl_mean);
}

TEST_CASE("candidates measured together are those measured alone, in whatever order their sequences are") {
    const ModelPtr model = tiny_model();
    const kv::State a = state_of(model, {some_tokens(20), some_tokens(11, 7)});
    const kv::State b = encoded(a, "int8", "int4"), c = encoded(a, "int4", "int8");
    kv::State swapped = b;
    std::swap(swapped.header.sequences[0], swapped.header.sequences[1]);
    std::swap(swapped.layers[0], swapped.layers[1]);
    const std::vector<const kv::State*> candidates{&b, &c, &swapped};
    const auto reports = must(verify::measure(model, a, candidates, steps_of(10)));
    REQUIRE(reports.size() == 3);
    const verify::Report alone_b = measured(model, a, b, steps_of(10)), alone_c = measured(model, a, c, steps_of(10));
    for (std::size_t i = 0; i < 20; ++i) {
        CHECK(reports[0].steps[i].kl == alone_b.steps[i].kl);
        CHECK(reports[1].steps[i].kl == alone_c.steps[i].kl);
        CHECK(reports[2].steps[i].kl == alone_b.steps[i].kl);
    }
    CHECK(reports[0].summary.kl_mean != reports[1].summary.kl_mean);
    REQUIRE(reports[1].attention.size() == alone_c.attention.size());
    for (std::size_t i = 0; i < alone_c.attention.size(); ++i) {
        CHECK(reports[1].attention[i].relative_l2 == alone_c.attention[i].relative_l2);
    }
}

TEST_CASE("attention errors are those of softmax attention over the stored tokens") {
    for (const std::string name : {"llama/f32", "gemma2/bf16", "deepseek_v2/bf16", "mistral_swa/bf16"}) {
        CAPTURE(name);
        const ModelPtr model = tiny_model(name);
        const std::size_t n_tokens = 40;
        const kv::State a = state_of(model, {some_tokens(n_tokens)}, DType::f32), b = encoded(a, "int4", "int8");
        verify::Options options = steps_of(5);
        options.forced = {some_tokens(5, 3)};
        const verify::Report report = measured(model, a, b, options);
        REQUIRE(report.attention.size() == model->config.n_layers);
        const auto session = session_of(model, a, 0, n_tokens + 5);
        struct Sums {
            std::vector<double> error, norm;
        };
        std::vector<Sums> sums(model->config.n_layers);
        session->observe_queries([&](const engine::Queries& queries) -> Status {
            const std::uint32_t layer = queries.attention.layer;
            const model::KvLayout& layout = model->program.kv[layer];
            const bool latent = layout.kind == model::KvLayout::Kind::latent;
            const std::uint64_t stored = a.header.stored_tokens(0, layer), first = a.header.first_token(0, layer);
            const auto decode = [&](const kv::State& state, kv::PartId id) {
                return must(kv::decode_part(state.header, state.layers[0][layer].part(id), stored, id));
            };
            const std::size_t group = queries.attention.n_heads / layout.n_kv_heads;
            Sums& sum = sums[layer];
            sum.error.resize(queries.attention.n_heads);
            sum.norm.resize(queries.attention.n_heads);
            for (std::size_t token = 0; token < queries.n_tokens; ++token) {
                const std::uint64_t position = queries.first + token;
                for (std::size_t head = 0; head < queries.attention.n_heads; ++head) {
                    const float* q = queries.values + token * queries.stride + head * layout.query_dim();
                    const auto attend = [&](const kv::State& state) {
                        const auto k = decode(state, kv::PartId::k), v = decode(state, kv::PartId::v);
                        std::vector<double> out(layout.output_dim());
                        double total = 0;
                        for (std::uint64_t t = 0; t < stored; ++t) {
                            if (queries.attention.window != 0 && first + t + queries.attention.window <= position)
                                continue;
                            double score = 0;
                            const std::size_t row = t * layout.n_kv_heads + head / group;
                            for (std::size_t d = 0; d < layout.query_dim(); ++d) {
                                const double key = d < layout.head_dim_k
                                                       ? k[row * layout.head_dim_k + d]
                                                       : v[row * layout.head_dim_v + d - layout.head_dim_k];
                                score += q[d] * key;
                            }
                            score *= static_cast<double>(queries.attention.scale);
                            if (queries.attention.softcap != 0)
                                score = queries.attention.softcap * std::tanh(score / queries.attention.softcap);
                            const double weight = std::exp(score);
                            total += weight;
                            for (std::size_t d = 0; d < out.size(); ++d)
                                out[d] +=
                                    weight * (latent ? k[row * layout.head_dim_k + d] : v[row * layout.head_dim_v + d]);
                        }
                        for (double& value : out) value = total == 0 ? 0 : value / total;
                        return out;
                    };
                    const auto x = attend(a), y = attend(b);
                    for (std::size_t d = 0; d < x.size(); ++d) {
                        sum.error[head] += (x[d] - y[d]) * (x[d] - y[d]);
                        sum.norm[head] += x[d] * x[d];
                    }
                }
            }
            return {};
        });
        must(session->prefill(options.forced[0], engine::Logits::none, {}));
        for (std::uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
            const verify::AttentionError& got = report.attention[layer];
            CHECK(got.layer == layer);
            double error = 0, norm = 0;
            for (std::size_t head = 0; head < sums[layer].error.size(); ++head) {
                error += sums[layer].error[head];
                norm += sums[layer].norm[head];
                CHECK(got.head_relative_l2[head] ==
                      doctest::Approx(std::sqrt(sums[layer].error[head] / sums[layer].norm[head])).epsilon(1e-3));
            }
            CHECK(got.relative_l2 > 1e-4);
            CHECK(got.relative_l2 == doctest::Approx(std::sqrt(error / norm)).epsilon(1e-3));
            CHECK(got.max_relative >= got.relative_l2 * 0.999);
        }
    }
}

TEST_CASE("the control is the drift between f32 and f16 caches") {
    const ModelPtr model = tiny_model();
    const kv::State a = state_of(model, {some_tokens(30)}, DType::f32), b = state_of(model, {some_tokens(30)});
    verify::Options options = steps_of(20);
    options.forced = {some_tokens(20, 3)};
    const verify::Report report = measured(model, a, b, options);
    const auto control = must(verify::measure_control(model, b.header, options));
    CHECK(control.report.summary.max_abs_dp == report.summary.max_abs_dp);
    CHECK(control.report.summary.max_abs_dp > 0);
    CHECK(control.elements.max_abs > 0);
    CHECK(control.elements.max_abs < 1e-2);
    CHECK(control.report.attention.size() == model->config.n_layers);
}

TEST_CASE("states and options that cannot be measured are refused") {
    const ModelPtr model = tiny_model();
    const kv::State a = state_of(model, {some_tokens(20)});
    kv::State other = a;
    other.header.sequences[0].id = "other";
    const kv::State* candidates[] = {&other};
    CHECK(has(error_of(verify::measure(model, a, candidates, steps_of(4))), "no sequence '0'"));
    other = state_of(model, {some_tokens(21)});
    CHECK(error_of(verify::measure(model, a, candidates, steps_of(4))).code == Errc::bad_input);
    CHECK(has(error_of(verify::measure(model, a, {}, steps_of(1U << 20))), "context"));
    CHECK(error_of(verify::measure(model, a, {}, steps_of(0))).code == Errc::usage);
    verify::Options forced = steps_of(4);
    forced.forced = {{1, 2, 3}};
    CHECK(error_of(verify::measure(model, a, {}, forced)).code == Errc::usage);
    forced.forced = {{1, 2, 3, 512}};
    CHECK(error_of(verify::measure(model, a, {}, forced)).code == Errc::usage);
}

TEST_CASE("logits that are no numbers never pass as small drift") {
    auto broken = std::make_shared<model::Model>(*tiny_model());
    const kv::State a = state_of(tiny_model(), {some_tokens(20)});
    auto& head = std::get<model::Head>(broken->program.ops.back());
    head.norm.weight.values[3] = std::numeric_limits<float>::quiet_NaN();
    const kv::State* candidates[] = {&a};
    verify::Options options = steps_of(4);
    options.forced = {{1, 2, 3, 4}};
    const Error error = error_of(verify::measure(broken, a, candidates, options));
    CHECK(error.code == Errc::bad_input);
    CHECK(has(error, "step 0"));
    CHECK(has(error, "first state"));
}

TEST_CASE("summaries: intervals hold the figure, blocks do not cross sequences, and NaN stays NaN") {
    std::vector<verify::Step> steps;
    for (std::uint32_t sequence = 0; sequence < 4; ++sequence) {
        for (std::uint64_t i = 0; i < 100; ++i) {
            verify::Step step;
            step.sequence = sequence;
            step.step = i;
            step.kl = static_cast<double>((i * 37 + sequence * 11) % 100);
            step.max_abs_dp = step.kl / 1000;
            step.top_candidate = i % 50 == 49 ? 1 : -1;
            step.nll_reference = 2 + static_cast<double>(i % 3);
            step.nll_candidate = step.nll_reference + 0.01;
            steps.push_back(step);
        }
    }
    const verify::Summary summary = verify::summarise(steps, 1);
    CHECK(summary.n == 400);
    CHECK(summary.kl_mean == doctest::Approx(49.5));
    CHECK(summary.kl_mean_interval.low < 49.5);
    CHECK(summary.kl_mean_interval.low > 40);
    CHECK(summary.kl_mean_interval.high > 49.5);
    CHECK(summary.p99_abs_dp == doctest::Approx(0.098));
    CHECK(summary.top1 == 0.98);
    CHECK(summary.top1_interval.low == doctest::Approx(0.9610).epsilon(1e-3));
    CHECK(summary.top1_interval.high == doctest::Approx(0.9898).epsilon(1e-3));
    CHECK(summary.perplexity_change == doctest::Approx(std::expm1(0.01)));
    CHECK(summary.perplexity_change_interval.low ==
          doctest::Approx(std::expm1(0.01)));  // the change is the same everywhere
    CHECK(verify::summarise(steps, 1).kl_mean_interval.low == summary.kl_mean_interval.low);
    CHECK(verify::summarise(steps, 2).kl_mean_interval.low != summary.kl_mean_interval.low);
    CHECK(verify::within(steps, 0.0895).value == 0.9);
    steps[7].kl = std::numeric_limits<double>::quiet_NaN();
    CHECK(std::isnan(verify::summarise(steps, 1).kl_mean));
    CHECK(std::isnan(verify::summarise(steps, 1).kl_max));
}
