// The cost model against published measurements (testdata/plan).
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "base/statistics.h"
#include "base/toml_reader.h"
#include "base/units.h"
#include "plan/cost.h"
#include "plan/fit.h"
#include "plan/served.h"
#include "plan/stage_profile.h"
#include "unit/plan/support.h"

using namespace hetero;
using namespace hetero::plan;
using namespace hetero::test;

namespace {

double off(double predicted, double measured) { return std::fabs(predicted / measured - 1); }

const TomlNode& rows() {
    static const TomlNode document = [] {
        const std::string path = HETERO_TESTDATA "/plan/validation.toml";
        return must(parse_toml(must(read_text_file(path, 1U << 20, "rows")), path));
    }();
    return document;
}

double number(const TomlNode& row, const char* key) {
    const TomlNode* node = row.find(key);
    REQUIRE(node != nullptr);
    if (const auto* whole = node->as<std::int64_t>()) return static_cast<double>(*whole);
    REQUIRE(node->as<double>() != nullptr);
    return *node->as<double>();
}

std::vector<double> numbers(const TomlNode& row, const char* key) {
    std::vector<double> out;
    const TomlNode* list = row.find(key);
    REQUIRE(list != nullptr);
    for (const TomlNode& one : *list->as<TomlNode::Array>())
        out.push_back(one.as<double>() != nullptr ? *one.as<double>() : static_cast<double>(*one.as<std::int64_t>()));
    return out;
}

const TomlNode::Array& list(const char* key) {
    const TomlNode* node = rows().find(key);
    REQUIRE(node != nullptr);
    return *node->as<TomlNode::Array>();
}

const ModelShape llama3_70b = decoder("Llama-3-70B", 80, 8192, 64, 8, 128, 28672, 128256);

}  // namespace

TEST_CASE("bytes of KV per token of published models at 16 bits") {
    struct Case {
        ModelShape shape;
        double bytes;
    };
    for (const Case& one : {
             Case{decoder("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152), 23040},
             Case{decoder("Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256), 131072},
             Case{decoder("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936), 147456},
             Case{decoder("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936), 262144},
             Case{llama3_70b, 327680},
             Case{decoder("Llama-3.1-405B", 126, 16384, 128, 8, 128, 53248, 128256), 516096},
             Case{decoder("Qwen3-235B", 94, 4096, 64, 4, 128, 0, 151936), 192512},
             Case{decoder("OPT-66B", 64, 9216, 72, 72, 128, 36864, 50272, false), 2359296},
         }) {
        CAPTURE(one.shape.name);
        CHECK(must(kv_bytes_per_token(one.shape, {}, {})) == one.bytes);
    }
    ModelShape deepseek;
    deepseek.n_layers = 61;
    deepseek.n_kv_heads = 1;
    deepseek.latent = true;
    deepseek.head_dim_k = 512;
    deepseek.head_dim_v = 64;
    CHECK(must(kv_bytes_per_token(deepseek, {}, {})) == 70272);
    CHECK(kv_replication(deepseek, 8) == 8);
    CHECK(kv_replication(llama3_70b, 4) == 1);
    CHECK(kv_replication(decoder("Qwen3-235B", 94, 4096, 64, 4, 128, 0, 1), 8) == 2);
    // Scales and zeros count: int8 with an f16 scale per head of 128, int4 with both per 32.
    const auto int8 = must(quant::parse_spec("int8:token")), int4 = must(quant::parse_spec("int4:token:g32:asym"));
    CHECK(must(kv_bytes_per_token(llama3_70b, int8, int8)) == doctest::Approx(327680 / 2 * 1.015625));
    CHECK(must(kv_bytes_per_token(llama3_70b, int4, int4)) == doctest::Approx(327680 / 2 * 0.625));
}

TEST_CASE("512 tokens of OPT-66B are 1.13 GiB, 90 Gb/s at 10 requests/s (DistServe 3.3)") {
    const double bytes = 512 * must(kv_bytes_per_token(decoder("OPT-66B", 64, 9216, 72, 72, 128, 36864, 1), {}, {}));
    CHECK(bytes / (1 << 30) == doctest::Approx(1.13).epsilon(0.005));
    CHECK(bytes * 8 * 10 / (1 << 30) == doctest::Approx(90).epsilon(0.005));
}

TEST_CASE("bandwidth from which reuse pays, Llama-3-70B, 8192 tokens (Mooncake FAST'25 eq. 2)") {
    // Its count of operations: l (4 n^2 d + 22 n d^2), at 8 devices of 312 and 989 TFLOP/s.
    const double n = 8192, d = 8192, flop = 80 * (4 * n * n * d + 22 * n * d * d);
    const double bytes = n * 327680;
    CHECK(prefill_kv_bytes_per_s(bytes, flop / (8 * 312e12)) / 1e9 == doctest::Approx(5.86).epsilon(0.01));
    CHECK(prefill_kv_bytes_per_s(bytes, flop / (8 * 989e12)) / 1e9 == doctest::Approx(18.57).epsilon(0.01));
    // Ours counts the half of the square that causal attention computes, and weights as the model has them.
    StageRates unit;
    unit.product_flop_per_s = unit.attention_flop_per_s = unit.weight_bytes_per_s = 1;
    CHECK(off(prefill_timing(llama3_70b, unit, 1, n).seconds(n, n * n), flop) < 0.1);
}

TEST_CASE("1.62 requests/s of 512 tokens are 827 tokens/s (arXiv 2606.29708)") {
    // Steady decode turns out as many tokens as come in, in batches as large as Little's law has them.
    sched::WorkerConfig worker;
    worker.decode.overhead_s = 0.02;
    worker.kv_capacity_bytes = 1;
    worker.policy.max_sequences = 256;
    const auto steady = [&](double rate_per_s) {
        std::vector<sched::Request> requests;
        for (int i = 0; i < 4096; ++i) requests.push_back({i / rate_per_s, 64000, 0, 512});
        return must(sched::simulate({{worker}, {}, {}}, requests, {1e9, 1e9}));
    };
    const sched::Outcome outcome = steady(1.62), saturated = steady(1000);
    CHECK(off(static_cast<double>(outcome.output_tokens) / outcome.duration_s, 827) < 0.005);
    CHECK(off(outcome.batch_mean, 1.62 * 511 * 0.02) < 0.01);
    CHECK(off(saturated.batch_mean, 256) < 0.01);
}

TEST_CASE("transfers over real links") {
    for (const TomlNode& row : list("transfer")) {
        CAPTURE(*row.find("name")->as<std::string>());
        const auto tokens = numbers(row, "tokens"), ms = numbers(row, "ms");
        REQUIRE(tokens.size() == ms.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            CAPTURE(tokens[i]);
            const double bytes = tokens[i] * number(row, "bytes_per_token");
            sched::LinkTiming link;
            link.latency_s = number(row, "latency_ms") / 1e3;
            link.bytes_per_s = number(row, "gb_per_s") * 1e9;
            CHECK(off(link.transfer(bytes, tokens[i], 0).whole_s * 1e3, ms[i]) <= number(row, "within"));
        }
        // The published latency and rate are the least squares of the measurements.
        std::vector<Row> points;
        for (std::size_t i = 0; i < tokens.size(); ++i)
            points.push_back({{1, tokens[i] * number(row, "bytes_per_token")}, ms[i] / 1e3});
        const auto fitted = must(fit(points));
        CHECK(off(fitted[0], number(row, "latency_ms") / 1e3) < 0.015);
        CHECK(off(1 / fitted[1], number(row, "gb_per_s") * 1e9) < 0.005);
    }
}

TEST_CASE("prefill over two orders of length, from a fit of the model's form") {
    for (const TomlNode& row : list("prefill")) {
        CAPTURE(*row.find("name")->as<std::string>());
        const auto tokens = numbers(row, "tokens"), ms = numbers(row, "ms");
        StageProfile profile;
        for (std::size_t i = 0; i < tokens.size(); ++i) profile.prefill.push_back({tokens[i], 0, ms[i] / 1e3});
        const sched::PrefillTiming timing = must(fit_prefill(profile));
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            CAPTURE(tokens[i]);
            CHECK(off(timing.seconds(tokens[i], tokens[i] * tokens[i]) * 1e3, ms[i]) <= 0.15);
        }
    }
}

namespace {

// OPT of `row` on A100, and what its stages reach by the coefficients that were measured.
struct MeasuredOpt {
    ModelShape shape;
    StageRates rates;
    std::uint32_t tp = 1;
    double kv_bytes_per_token = 0;
    std::vector<double> prefill, decode;  // ms
};
constexpr double a100_flop_per_s = 312e12, a100_bytes_per_s = 2039e9;

MeasuredOpt measured_opt(const TomlNode& row) {
    MeasuredOpt out;
    out.prefill = numbers(row, "prefill");
    out.decode = numbers(row, "decode");
    const double tp = number(row, "tp"), layers = number(row, "layers"), hidden = number(row, "hidden");
    const auto heads = static_cast<std::uint32_t>(number(row, "heads"));
    out.tp = static_cast<std::uint32_t>(tp);
    out.shape = decoder("OPT", static_cast<std::uint32_t>(layers), static_cast<std::uint32_t>(hidden), heads, heads,
                        128, 4 * hidden, 50272, false);
    out.kv_bytes_per_token = must(kv_bytes_per_token(out.shape, {}, {}));
    out.rates.bytes_per_weight = 2;
    out.rates.product_flop_per_s = 2 * out.shape.token_params() / tp / (out.prefill[1] / 1e3);
    out.rates.attention_flop_per_s = layers * heads * 256.0 / tp / (out.prefill[2] / 1e3);
    out.rates.weight_bytes_per_s = out.shape.read_params(1) * 2 / tp / (out.decode[0] / 1e3);
    out.rates.kv_bytes_per_s = out.kv_bytes_per_token / tp / (out.decode[1] / 1e3);
    out.rates.batch_flop_per_s = a100_flop_per_s;
    out.rates.sequence_overhead_s = out.decode[2] / 1e3;
    out.rates.exchange_bytes_per_s = 1e15;
    out.rates.prefill_overhead_s = out.prefill[0] / 1e3;
    return out;
}

}  // namespace

// Which part of the devices' rates explains the profile, and that a model with these parts reproduces it.
TEST_CASE("stages of OPT on A100 from rates of products, attention, weights and KV") {
    for (const TomlNode& row : list("opt")) {
        CAPTURE(*row.find("name")->as<std::string>());
        const MeasuredOpt opt = measured_opt(row);
        CAPTURE(opt.tp);
        const std::vector<double> of_peak{opt.rates.product_flop_per_s / a100_flop_per_s,
                                          opt.rates.weight_bytes_per_s / a100_bytes_per_s,
                                          opt.rates.kv_bytes_per_s / a100_bytes_per_s};
        if (row.find("of_peak") != nullptr) {
            const auto published = numbers(row, "of_peak");
            for (std::size_t i = 0; i < of_peak.size(); ++i) CHECK(off(of_peak[i], published[i]) < 0.015);
        }
        // None of them is above what the device has, nor far below.
        CHECK(of_peak[0] < 0.9);
        CHECK(of_peak[0] > 0.45);
        CHECK(of_peak[1] < 0.8);
        CHECK(of_peak[1] > 0.3);
        CHECK(of_peak[2] == doctest::Approx(0.6).epsilon(0.12));
        const auto p = prefill_timing(opt.shape, opt.rates, opt.tp, 1024);
        const auto d = decode_timing(opt.shape, opt.rates, opt.tp, opt.kv_bytes_per_token, 94);
        for (const double n : {1, 16, 64, 128, 256, 512, 1024, 2048}) {
            CAPTURE(n);
            const double ms = opt.prefill[0] + opt.prefill[1] * n + opt.prefill[2] * n * n;
            CHECK(off(p.seconds(n, n * n) * 1e3, ms) <= 0.15);
        }
        for (const double batch : {1, 16, 94}) {
            for (const double context : {128, 1024}) {
                const double ms = opt.decode[0] + opt.decode[1] * batch * context + opt.decode[2] * batch;
                CHECK(off(d.seconds(static_cast<std::size_t>(batch), batch * context) * 1e3, ms) <= 0.15);
            }
        }
    }
}

// Splitwise, table IV, for two kinds of requests on two machines. What products, attention, weights and KV reach of
// their peaks on eight devices is OPT-66B's; overheads are one of prefill and one of steps for each machine.
TEST_CASE("stages of Llama-2-70B on A100 and H100 from what OPT-66B reached") {
    const ModelShape shape = decoder("Llama-2-70B", 80, 8192, 64, 8, 128, 28672, 32000);
    const double kv_bytes = must(kv_bytes_per_token(shape, {}, {}));
    const TomlNode& opt_66b_tp8 = list("opt").back();
    REQUIRE(number(opt_66b_tp8, "tp") == 8);
    std::map<std::string, std::vector<const TomlNode*>> machines;
    for (const TomlNode& row : list("end_to_end")) machines[*row.find("machine")->as<std::string>()].push_back(&row);
    REQUIRE(machines.size() == 2);
    for (const auto& [machine, rows] : machines) {
        CAPTURE(machine);
        REQUIRE(rows.size() == 2);
        StageRates rates = measured_opt(opt_66b_tp8).rates;
        const double flop = number(*rows[0], "tflop_per_s") * 1e12 / a100_flop_per_s;
        const double bytes = number(*rows[0], "gb_per_s") * 1e9 / a100_bytes_per_s;
        for (double* rate : {&rates.product_flop_per_s, &rates.attention_flop_per_s, &rates.batch_flop_per_s})
            *rate *= flop;
        for (double* rate : {&rates.weight_bytes_per_s, &rates.kv_bytes_per_s}) *rate *= bytes;
        rates.prefill_overhead_s = 0;
        auto p = prefill_timing(shape, rates, 8, 1024);
        auto d = decode_timing(shape, rates, 8, kv_bytes, 1);
        std::vector<Row> steps;
        double prompt = 0;
        for (const TomlNode* row : rows) {
            const double n = number(*row, "prompt_tokens");
            p.overhead_s += (number(*row, "ttft_ms") / 1e3 - p.per_token_s * n - p.per_pair_s * n * n) / 2;
            steps.push_back({{1}, number(*row, "tbt_ms") / 1e3});
            prompt += n / 2;
        }
        d.overhead_s += must(fit(steps))[0] - d.seconds(1, prompt);
        CHECK(p.overhead_s > 0);
        CHECK(d.overhead_s > 0);
        for (const TomlNode* row : rows) {
            CAPTURE(*row->find("work")->as<std::string>());
            const double n = number(*row, "prompt_tokens"), o = number(*row, "output_tokens");
            const double ttft_ms = number(*row, "ttft_ms"), tbt_ms = number(*row, "tbt_ms");
            CHECK(off(p.seconds(n, n * n) * 1e3, ttft_ms) <= 0.15);
            CHECK(off(d.seconds(1, n + o / 2) * 1e3, tbt_ms) <= 0.15);
            // A request that takes the medians of its stages takes the median of a whole one.
            sched::WorkerConfig worker;
            worker.prefill.overhead_s = ttft_ms / 1e3;
            worker.decode.overhead_s = tbt_ms / 1e3;
            worker.kv_capacity_bytes = 1;
            const auto alone = must(
                sched::simulate({{worker}, {}, {}},
                                {{0, static_cast<std::uint32_t>(n), 0, static_cast<std::uint32_t>(o)}}, {1e9, 1e9}));
            CHECK(off(alone.e2e_s.at(0) * 1e3, number(*row, "e2e_ms")) <= 0.15);
        }
    }
    // The whole request cannot follow from one step time of a machine as well: on A100 that would have to be 0.85 of 52
    // ms or more for code, and for chat, whose prefill takes 0.85 of 155 ms or more, what is left of 1.15 of 4957 ms.
    const auto& a100 = machines.at("A100");
    const double least_ms = 0.85 * number(*a100[0], "tbt_ms");
    const double most_ms = (1.15 * number(*a100[1], "e2e_ms") - 0.85 * number(*a100[1], "ttft_ms")) /
                           (number(*a100[1], "output_tokens") - 1);
    CHECK(least_ms > most_ms);
}

TEST_CASE("break-even of quantizing for the link") {
    // What a state takes that shrinks to `ratio` for the link alone, of what it takes as it is.
    const auto quantized = [](double ratio, double codec_gb_per_s, double link_gb_per_s) {
        Problem p = problem(llama3_70b, {side("g", measured(gpu("G", 500, 2000, 200)), 2)}, 256, 16, link_gb_per_s);
        p.simulated_requests = 1;
        add_int8(p, ratio, codec_gb_per_s);
        double plain_s = 0, quantized_s = 0;
        for (const Candidate& candidate : must(search(p)).candidates) {
            if (!is_split(candidate.kind) || candidate.resident.quantized) continue;
            (candidate.wire.quantized ? quantized_s : plain_s) = candidate.transfer_alone_s;
        }
        REQUIRE(plain_s > 0);
        REQUIRE(quantized_s > 0);
        return quantized_s / plain_s;
    };
    // (1 - ratio) / (1 / Q_p + 1 / Q_d), with 20 GB/s on either side.
    CHECK(quantized(0.508, 20, 4.92 * 0.995) < 1);
    CHECK(quantized(0.508, 20, 4.92 * 1.005) > 1);
    CHECK(quantized(0.5, 1e9, 1e6) < 1);
    CHECK(quantized(1.1, 20, 1e-3) > 1);
    CHECK(prefill_kv_bytes_per_s(147456, 1 / 40000.0) / 1e9 == doctest::Approx(5.9).epsilon(0.01));
}

// Runs of serving systems that AIConfigurator publishes (Apache-2.0, see testdata/README.md).
TEST_CASE("time per token of serving systems, held out from the fit") {
    const std::string text = must(read_text_file(HETERO_TESTDATA "/plan/served.csv", 1U << 20, "runs"));
    struct Group {
        std::vector<ServedRun> fitted, held_out;
        double tflop_per_s = 0, gb_per_s = 0;
        std::string dtype;
    };
    std::map<std::string, Group> groups;
    std::size_t begin = text.find('\n') + 1;
    while (begin < text.size()) {
        const std::size_t end = text.find('\n', begin);
        std::vector<std::string> cells;
        std::size_t at = begin;
        while (at <= end) {
            const std::size_t comma = std::min(text.find(',', at), end);
            cells.push_back(text.substr(at, comma - at));
            at = comma + 1;
        }
        begin = end + 1;
        REQUIRE(cells.size() == 11);
        const auto value = [&](std::size_t i) { return must(parse_finite(cells[i])); };
        const ServedRun run{value(4), value(5), value(6), value(7), value(9) / 1e3};
        Group& group = groups[cells[0] + " " + cells[1] + " " + cells[2] + " " + cells[3]];
        (cells[10] == "fit" ? group.fitted : group.held_out).push_back(run);
        // Dense rates of the data sheets.
        const double bf16 = cells[1] == "b200" ? 2250 : 989;
        group.tflop_per_s = bf16 * (cells[3] == "fp4" ? 4 : cells[3] == "fp8" ? 2 : 1);
        group.gb_per_s = cells[1] == "b200" ? 7700 : cells[1] == "h200" ? 4800 : 3350;
        group.dtype = cells[3] == "fp4" ? "fp4_e2m1" : cells[3] == "fp8" ? "fp8_e4m3fn" : "bf16";
    }
    REQUIRE(groups.size() == 10);
    std::vector<double> errors, default_errors;
    for (const auto& [name, group] : groups) {
        CAPTURE(name);
        REQUIRE(group.fitted.size() == 24);
        const ServedTiming timing = must(fit_served(group.fitted));
        const ModelShape shape =
            name.starts_with("Qwen3-32B") ? decoder("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936) : llama3_70b;
        const hw::Device device = gpu("sheet", group.tflop_per_s, group.gb_per_s, 80, 8, group.dtype.c_str());
        DeviceRates rates = must(rates_of(device, shape, group.dtype, "f16"));
        rates.rates.exchange_bytes_per_s = 450e9 * UsualFractions{}.exchange;
        const double kappa = must(kv_bytes_per_token(shape, {}, {}));
        for (const ServedRun& run : group.held_out) {
            errors.push_back(off(timing.tpot_s(run), run.tpot_s));
            const auto tp = static_cast<std::uint32_t>(run.tp);
            const auto prefill = prefill_timing(shape, rates.rates, tp, run.prompt_tokens);
            const auto decode = decode_timing(shape, rates.rates, tp, kappa, 512);
            const double context = run.prompt_tokens + run.output_tokens / 2;
            const double seconds = decode.seconds(static_cast<std::size_t>(run.batch), run.batch * context) +
                                   run.batch / run.output_tokens *
                                       prefill.seconds(run.prompt_tokens, run.prompt_tokens * run.prompt_tokens);
            default_errors.push_back(off(seconds, run.tpot_s));
        }
    }
    CHECK(errors.size() >= 300);
    MESSAGE("TPOT of " << errors.size() << " runs held out: mean error " << mean(errors) * 100 << " %, 90th percentile "
                       << percentile(errors, 90) * 100 << " %; with default constants " << mean(default_errors) * 100
                       << " %");
    CHECK(mean(errors) <= 0.12);
    CHECK(percentile(errors, 90) <= 0.25);
    CHECK(mean(default_errors) <= 0.40);
}
