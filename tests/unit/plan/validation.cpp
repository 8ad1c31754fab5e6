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

// Which part of the devices' rates explains the profile, and that a model with these parts reproduces it.
TEST_CASE("stages of OPT on A100 from rates of products, attention, weights and KV") {
    for (const TomlNode& row : list("opt")) {
        CAPTURE(*row.find("name")->as<std::string>());
        const auto prefill = numbers(row, "prefill"), decode = numbers(row, "decode");
        const double tp = number(row, "tp"), layers = number(row, "layers"), hidden = number(row, "hidden");
        CAPTURE(tp);
        const auto heads = static_cast<std::uint32_t>(number(row, "heads"));
        const ModelShape shape = decoder("OPT", static_cast<std::uint32_t>(layers), static_cast<std::uint32_t>(hidden),
                                         heads, heads, 128, 4 * hidden, 50272, false);
        StageRates rates;
        rates.bytes_per_weight = 2;
        rates.product_flop_per_s = 2 * shape.token_params() / tp / (prefill[1] / 1e3);
        rates.attention_flop_per_s = layers * heads * 256.0 / tp / (prefill[2] / 1e3);
        rates.weight_bytes_per_s = shape.read_params(1) * 2 / tp / (decode[0] / 1e3);
        const double kappa = must(kv_bytes_per_token(shape, {}, {}));
        rates.kv_bytes_per_s = kappa / tp / (decode[1] / 1e3);
        rates.batch_flop_per_s = 312e12;
        rates.sequence_overhead_s = decode[2] / 1e3;
        rates.exchange_bytes_per_s = 1e15;
        rates.prefill_overhead_s = prefill[0] / 1e3;
        // None of them is above what the device has (312 TFLOP/s, 2039 GB/s), nor far below.
        CHECK(rates.product_flop_per_s / 312e12 < 0.9);
        CHECK(rates.product_flop_per_s / 312e12 > 0.45);
        CHECK(rates.weight_bytes_per_s / 2039e9 < 0.8);
        CHECK(rates.weight_bytes_per_s / 2039e9 > 0.3);
        CHECK(rates.kv_bytes_per_s / 2039e9 == doctest::Approx(0.6).epsilon(0.12));
        const auto p = prefill_timing(shape, rates, static_cast<std::uint32_t>(tp), 1024);
        const auto d = decode_timing(shape, rates, static_cast<std::uint32_t>(tp), kappa, 94);
        // Shorter prompts take what reading the weights takes, which the profile's constant has in it.
        for (const double n : {256, 512, 1024, 2048}) {
            const double ms = prefill[0] + prefill[1] * n + prefill[2] * n * n;
            CHECK(off(p.seconds(n, n * n) * 1e3, ms) <= 0.15);
        }
        for (const double batch : {1, 16, 94}) {
            for (const double context : {128, 1024}) {
                const double ms = decode[0] + decode[1] * batch * context + decode[2] * batch;
                CHECK(off(d.seconds(static_cast<std::size_t>(batch), batch * context) * 1e3, ms) <= 0.15);
            }
        }
    }
}

TEST_CASE("a request alone takes its first token and its steps (Splitwise table IV)") {
    for (const TomlNode& row : list("end_to_end")) {
        CAPTURE(*row.find("name")->as<std::string>());
        sched::WorkerConfig worker;
        worker.prefill.overhead_s = number(row, "ttft_ms") / 1e3;
        worker.decode.overhead_s = number(row, "tbt_ms") / 1e3;
        worker.kv_capacity_bytes = 1;
        const auto output = static_cast<std::uint32_t>(number(row, "output_tokens"));
        const auto outcome = must(sched::simulate({{worker}, {}, {}}, {{0, 1500, 0, output}}, {1e9, 1e9}));
        CHECK(off(outcome.e2e_s.at(0) * 1e3, number(row, "e2e_ms")) <= 0.15);
    }
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
