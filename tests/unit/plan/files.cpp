// Traces and stage profiles, hostile ones too; fits.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "plan/deploy.h"
#include "plan/fit.h"
#include "plan/shape.h"
#include "plan/stage_profile.h"
#include "plan/trace.h"
#include "support/misspelt.h"
#include "support/results.h"

using namespace hetero;
using namespace hetero::plan;
using namespace hetero::test;

TEST_CASE("a Mooncake trace: leading blocks seen before are cached") {
    const Trace trace =
        must(parse_trace(R"({"timestamp": 1000, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 3]})"
                         "\n"
                         R"({"timestamp": 3000, "input_length": 1400, "output_length": 5, "hash_ids": [1, 2, 9]})"
                         "\n\n"
                         R"({"timestamp": 2000, "input_length": 600, "output_length": 1, "hash_ids": [7, 1]})",
                         "t"));
    REQUIRE(trace.requests.size() == 3);
    CHECK(trace.format == TraceFormat::mooncake);
    CHECK(trace.requests[0].arrival_s == 0);
    CHECK(trace.requests[1].prompt_tokens == 600);
    CHECK(trace.requests[1].cached_tokens == 0);
    CHECK(trace.requests[2].arrival_s == 2);
    CHECK(trace.requests[2].cached_tokens == 1024);
    CHECK(trace.retained_tokens == 1024);
    CHECK(trace.duration_s == 2);
}

TEST_CASE("splitwise CSV, with either set of columns") {
    const Trace azure = must(parse_trace(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.5,374,44\r\n2023-11-17 00:17:04.0,10,1\r\n",
        "t"));
    REQUIRE(azure.requests.size() == 2);
    CHECK(azure.requests[1].arrival_s == doctest::Approx(6 * 3600 + 0.5));
    CHECK(azure.requests[0].output_tokens == 44);
    const Trace simulated =
        must(parse_trace("request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_"
                         "size\n0,2,0,0.5,1,100,7\n",
                         "t"));
    CHECK(simulated.requests[0].prompt_tokens == 100);
    CHECK(simulated.mean_output_tokens == 7);
}

TEST_CASE("an OpenAI batch") {
    const Trace trace = must(parse_trace(
        R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "12345678"}], "max_tokens": 9}})",
        "t"));
    CHECK(trace.requests.at(0).prompt_tokens == 2);
    CHECK(trace.requests.at(0).output_tokens == 9);
}

TEST_CASE("traces that are not well are refused by their line") {
    struct Case {
        const char *text, *part;
    };
    for (const auto& [text, part] : {
             Case{"", "no requests"},
             Case{"\n\n", "no requests"},
             Case{"{\"timestamp\": 1, \"input_lenght\": 3}", "the nearest one is 'input_length'"},
             Case{"{\"timestamp\": 1, \"input_length\": 3}", "'output_length' is missing"},
             Case{"{\"timestamp\": -1, \"input_length\": 3, \"output_length\": 3}", "'timestamp' is -1"},
             Case{"{\"timestamp\": 1, \"input_length\": 1e300, \"output_length\": 3}", "expected 0 to"},
             Case{"{\"timestamp\": 1, \"input_length\": 3, \"output_length\": 3, \"hash_ids\": [\"x\"]}", "whole"},
             Case{"{\"timestamp\": \"1\", \"input_length\": 3, \"output_length\": 3}", "must be a number"},
             Case{"{{", "no JSON object"},
             Case{"{\"custom_id\": \"a\"}", "'body'"},
             Case{"{\"custom_id\": \"a\", \"body\": {}}", "neither"},
             Case{"arrival_timestmp,prompt_size,token_size\n", "'arrival_timestamp'"},
             Case{"arrival_timestamp,prompt_size,token_size\n1,2\n", "2 values, expected 3"},
             Case{"arrival_timestamp,prompt_size,token_size\nnan,2,3\n", "no time"},
             Case{"arrival_timestamp,prompt_size,token_size\n1,-2,3\n", "no number of tokens"},
             Case{"arrival_timestamp,prompt_size\n1,2\n", "not all there"},
             Case{"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03,1,1\n", "no time"},
         }) {
        CAPTURE(text);
        const Error error = error_of(parse_trace(text, "t.jsonl"));
        CHECK(error.code == Errc::bad_input);
        CHECK(has(error, part));
        CHECK(has(error, "t.jsonl"));
    }
    CHECK(has(error_of(parse_trace(std::string(100'000, '['), "t")), "t"));
    CHECK(has(error_of(parse_trace("{\"a\":" + std::string(100'000, '['), "t")), "no JSON object"));
}

TEST_CASE("bytes changed at random: an error or a trace, never anything else") {
    const std::vector<std::string> seeds{
        "{\"timestamp\": 1000, \"input_length\": 1500, \"output_length\": 20, \"hash_ids\": [1, 2, 3]}\n"
        "{\"timestamp\": 2000, \"input_length\": 15, \"output_length\": 2, \"hash_ids\": [1]}\n",
        "arrival_timestamp,prompt_size,token_size\n0.5,100,7\n2023-11-16 18:17:03.97,5,5\n",
        "stage_profile = 1\n[[prefill]]\ntokens = 64\nseconds = 0.5\n[[decode]]\ncontext_tokens = 5\nstep_seconds = "
        "1\n"};
    std::mt19937 random(1);
    std::size_t refused = 0;
    for (int i = 0; i < 6000; ++i) {
        std::string text = seeds[static_cast<std::size_t>(i) % seeds.size()];
        for (unsigned n = random() % 4 + 1; n > 0; --n) {
            const std::size_t at = random() % text.size();
            switch (random() % 3) {
                case 0:
                    text[at] = static_cast<char>(random());
                    break;
                case 1:
                    text.erase(at, random() % 8);
                    break;
                default:
                    text.insert(at, text.substr(random() % text.size(), random() % 12));
            }
            if (text.empty()) text.assign(1, 'x');
        }
        if (const auto trace = parse_trace(text, "t"); trace) {
            for (const auto& request : trace->requests) {
                REQUIRE(request.prompt_tokens > request.cached_tokens);
                REQUIRE(request.output_tokens > 0);
                REQUIRE(request.arrival_s >= 0);
            }
        } else {
            ++refused;
        }
        static_cast<void>(parse_stage_profile(text, "s"));
    }
    CHECK(refused > 1000);
}

TEST_CASE("any key of a trace, a stage profile or a deployment plan misspelt is refused, and the nearest one named") {
    std::size_t slips = 0;
    const auto look = [&](const std::string& sound, const char* before, const char* after, auto parse) {
        REQUIRE(parse(sound).has_value());
        const auto all = misspelt(sound, before, after, 3);
        CHECK(all.size() > 1);
        for (const auto& [key, text] : all) {
            CAPTURE(key);
            const Error error = error_of(parse(text));
            CHECK(error.code == Errc::bad_input);
            CHECK(has(error, "nearest one is '" + key + "'"));
            ++slips;
        }
    };
    const auto trace = [](const std::string& text) { return parse_trace(text, "t"); };
    look("{\"timestamp\": 1000, \"input_length\": 1500, \"output_length\": 20, \"hash_ids\": [1, 2, 3]}\n", "\"",
         "\":", trace);
    look("{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1\", \"body\": {\"prompt\": 1, \"messages\": []}}",
         ", \"", "\": \"", trace);
    look(
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,2,0,0.5,1,9,7\n",
        ",", ",", trace);
    look(
        "stage_profile = 1\nmodel = \"m\"\n[[prefill]]\ntokens = 64\nseconds = 0.5\n[[decode]]\ncontext_tokens = 5\n"
        "sequences = 2\nstep_seconds = 1\n",
        "\n", " = ", [](const std::string& text) { return parse_stage_profile(text, "s"); });
    DeploymentPlan plan;
    plan.prefill = plan.decode.emplace() = {"a", "f16", 1, 1, 1, {"h"}, 5};
    plan.more.push_back({plan.prefill, "both"});
    look(to_toml(plan), "\n", " = ", [](const std::string& text) { return parse_deployment_plan(text, "p"); });
    CHECK(slips > 40);
}

TEST_CASE("stage profiles are read strictly, and their coefficients found again") {
    std::string text = "stage_profile = 1\nmodel = \"m\"\n";
    for (const double n : {64, 256, 1024})
        text += fmt::format("[[prefill]]\ntokens = {}\nseconds = {}\n", n, 0.01 + 1e-4 * n + 2e-8 * n * n);
    for (const double s : {100, 900})
        text += fmt::format("[[decode]]\ncontext_tokens = {}\nstep_seconds = {}\n", s, 0.005 + 1e-6 * s);
    const StageProfile profile = must(parse_stage_profile(text, "s.toml"));
    const auto prefill = must(fit_prefill(profile));
    CHECK(prefill.seconds(2048, 2048.0 * 2048) == doctest::Approx(0.01 + 0.2048 + 2e-8 * 2048 * 2048));
    const auto decode = must(fit_decode(profile, {}));
    CHECK(decode.seconds(1, 2048) == doctest::Approx(0.005 + 2.048e-3));
    // In chunks of 512 each has its overhead.
    std::string chunked = "stage_profile = 1\nchunk_tokens = 512\n";
    for (const double n : {64, 300, 900, 1300})
        chunked += fmt::format("[[prefill]]\ntokens = {}\nseconds = {}\n", n, 0.02 * std::ceil(n / 512) + 1e-4 * n);
    const auto pieces = must(fit_prefill(must(parse_stage_profile(chunked, "s.toml"))));
    CHECK(pieces.seconds(512, 512.0 * 512) == doctest::Approx(0.02 + 0.0512));
    CHECK(pieces.seconds(513, 513.0 * 513) == doctest::Approx(0.04 + 0.0513));
    CHECK(has(error_of(parse_stage_profile("stage_profile = 1\n[[prefil]]\ntokens = 1\n", "s")), "'prefill'"));
    CHECK(has(error_of(parse_stage_profile("stage_profile = 1\n[[prefill]]\ntokens = 1\nseconds = 0\n", "s")),
              "above 0"));
    CHECK(has(error_of(fit_prefill({})), "two lengths"));
}

TEST_CASE("fits are least squares without negative coefficients") {
    const std::vector<Row> exact{{{1, 1}, 3}, {{1, 2}, 5}, {{1, 10}, 21}};
    const auto x = must(fit(exact));
    CHECK(x[0] == doctest::Approx(1));
    CHECK(x[1] == doctest::Approx(2));
    // The free solution has a slope below 0.
    const std::vector<Row> falling{{{1, 1}, 3}, {{1, 2}, 2.9}, {{1, 3}, 2.8}};
    const auto flat = must(fit(falling));
    CHECK(flat[1] == 0);
    CHECK(flat[0] == doctest::Approx(2.9).epsilon(0.01));
    CHECK(error_of(fit({})).code == Errc::usage);
    CHECK(error_of(fit(std::vector<Row>{{{1}, 0}})).code == Errc::usage);
}

TEST_CASE("shapes counted from a configuration are those of the weights") {
    for (const char* name : {"llama-f32", "qwen2-q8_0", "qwen3-q4_0", "mixtral-f32"}) {
        CAPTURE(name);
        const auto model = must(describe_model(std::string(HETERO_TESTDATA "/golden/tiny/gguf/") + name + ".gguf"));
        double matrices = 0;
        for (const std::string& tensor : model.model->weights->names()) {
            const auto* view = model.model->weights->find(tensor);
            REQUIRE(view != nullptr);
            double elements = 1;
            for (const std::uint64_t n : view->shape) elements *= static_cast<double>(n);
            if (view->shape.size() > 1) matrices += elements;
        }
        CHECK(model.shape.stored_params == matrices);
        CHECK(model.shape.stored_bytes > 0);
        CHECK_FALSE(model.shape.stored_dtype.empty());
    }
    for (const char* name : {"deepseek_v2", "deepseek_v3", "gemma2", "gpt_neox", "phi3", "qwen3_moe"}) {
        CAPTURE(name);
        const std::string folder = std::string(HETERO_TESTDATA "/golden/tiny/") + name + "/bf16";
        const auto model = must(describe_model(folder));
        const auto alone = must(describe_model(folder + "/config.json"));
        CHECK(alone.model == nullptr);
        CHECK(alone.shape.stored_params == model.shape.stored_params);
        double matrices = 0;
        for (const std::string& tensor : model.model->weights->names()) {
            const auto* view = model.model->weights->find(tensor);
            REQUIRE(view != nullptr);
            if (view->shape.size() > 1)
                matrices += static_cast<double>(view->shape[0]) * static_cast<double>(view->shape[1]);
        }
        CHECK(model.shape.stored_params == matrices);
    }
}
