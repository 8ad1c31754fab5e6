// What is decided for deployments whose answer is known.
#include <doctest/doctest.h>

#include "plan/deploy.h"
#include "plan/practices.h"
#include "plan/verdict.h"
#include "unit/plan/support.h"

using namespace hetero;
using namespace hetero::plan;
using namespace hetero::test;

namespace {

struct Answer {
    SearchResult result;
    Decision decision;
};
Answer ask(const Problem& problem) {
    Answer out{must(search(problem)), {}};
    out.decision = decide(problem, out.result);
    CHECK_FALSE(out.decision.reasons.empty());
    return out;
}

const ModelShape qwen_7b = decoder("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, 152064);
const ModelShape llama_70b = decoder("Llama-70B", 80, 8192, 64, 8, 128, 28672, 128256);

}  // namespace

TEST_CASE("more devices than can be played, and rates without measure, are refused") {
    auto many = problem(qwen_7b, {side("a", gpu("g", 1000, 4800, 141, 8), 2049)}, 100, 10, 10);
    CHECK(has(error_of(search(many)), "16392 devices are too many"));
    auto fast = problem(qwen_7b, {side("a", gpu("g", 1000, 4800, 141, 8), 1)}, 100, 10, 10);
    fast.workload.rate_per_s = std::numeric_limits<double>::infinity();
    CHECK(has(error_of(search(fast)), "finite"));
}

// Mooncake's documentation, Qwen2.5-7B GPTQ-Int4 on A10, 2048/512 at 4 requests/s, TP2: one prefill and one decode
// instance 1112 ms to the first token, two with both stages 310 ms.
TEST_CASE("a split that loses the first token is not chosen") {
    hw::Device a10 = gpu("A10", 125, 600, 24, 4, "int4");
    Problem p = problem(qwen_7b, {side("a10", a10, 1, "int4")}, 2048, 512, 5);
    p.workload.rate_per_s = 4;
    p.goals.ttft_s = 0.6;
    p.goals.itl_s = 0.05;
    const Answer answer = ask(p);
    CHECK(answer.decision.verdict == Verdict::colocate);
    REQUIRE(answer.decision.chosen.has_value());
    CHECK_FALSE(is_split(answer.result.candidates[*answer.decision.chosen].kind));
    // One pair of TP2 by itself is overloaded by such prompts, or nearly.
    for (const Candidate& candidate : answer.result.candidates) {
        if (!is_split(candidate.kind) || !candidate.played || candidate.groups[0].tp != 2 ||
            candidate.groups[0].instances != 1)
            continue;
        CHECK(candidate.figures->ttft_mean_s > 0.31);
    }
}

// vllm-neuron issue 26: Trainium prefill, H100 decode, Qwen3-0.6B: 24 ms of prefill, 2139 ms in all.
TEST_CASE("a model of 0.6 billion parameters stays on one device") {
    const ModelShape shape = decoder("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936);
    Problem p =
        problem(shape, {side("trn", gpu("Trainium", 95, 820, 32), 1), side("h100", gpu("H100", 989, 3350, 80), 1)},
                1024, 128, 1);
    p.workload.rate_per_s = 1;
    p.goals.ttft_s = 0.2;
    p.goals.itl_s = 0.02;
    CHECK(ask(p).decision.verdict == Verdict::colocate);
}

TEST_CASE("a link too slow for the state: colocate") {
    const hw::Device device = measured(gpu("G", 500, 2000, 80));
    Problem p = problem(qwen_7b, {side("g", device, 4)}, 4096, 256, 0.05);
    p.goals.ttft_s = 1;
    p.goals.itl_s = 0.05;
    CHECK(ask(p).decision.verdict == Verdict::colocate);
}

TEST_CASE("a prefill side that computes too slowly: colocate on the other") {
    const hw::Device weak = measured(gpu("weak", 2, 100, 80)), strong = measured(gpu("strong", 500, 2000, 80));
    Problem p = problem(qwen_7b, {side("weak", weak, 1), side("strong", strong, 1)}, 4096, 256, 25);
    p.goals.ttft_s = 2;
    p.goals.itl_s = 0.05;
    const Answer answer = ask(p);
    CHECK(answer.decision.verdict == Verdict::colocate);
    CHECK(answer.result.candidates[*answer.decision.chosen].groups[0].side == 1);
}

TEST_CASE("compute beside bandwidth, and gaps that prompts would tear: split, once all is measured") {
    hw::Device dense = measured(gpu("dense", 800, 900, 80)), wide = measured(gpu("wide", 120, 3200, 80));
    Problem p = problem(qwen_7b, {side("dense", dense, 2), side("wide", wide, 2)}, 8192, 256, 50);
    p.goals.ttft_s = 2;
    p.goals.itl_s = 0.014;
    p.goals.attainment = 0.95;
    const Answer answer = ask(p);
    CHECK(answer.decision.verdict == Verdict::split);
    REQUIRE(answer.decision.chosen.has_value());
    const Candidate& chosen = answer.result.candidates[*answer.decision.chosen];
    REQUIRE(chosen.kind == Kind::hetero_split);
    CHECK(chosen.groups[0].side == 0);  // prefill where the compute is
    CHECK(chosen.groups[1].side == 1);
    // The same machines by their data sheets.
    p.sides[0].device = gpu("dense", 1400, 1500, 80);
    p.sides[1].device = gpu("wide", 220, 5000, 80);
    const Answer sheet = ask(p);
    CHECK(sheet.decision.verdict == Verdict::split_unverified);
    CHECK(sheet.decision.reasons.size() > 1);
}

TEST_CASE("what does not fit is refused with the bytes that are missing") {
    Problem p = problem(llama_70b, {side("small", measured(gpu("small", 500, 2000, 24)), 2)}, 1024, 128, 10);
    const Answer answer = ask(p);
    CHECK(answer.decision.verdict == Verdict::refuse);
    CHECK_FALSE(answer.decision.chosen.has_value());
    CHECK(answer.decision.reasons[0].find("are missing") != std::string::npos);
    // 70.6e9 parameters of 2 bytes on one device of 24 GB, nine tenths usable.
    CHECK(answer.result.candidates[0].missing_bytes == doctest::Approx(141e9 - 21.6e9).epsilon(0.02));
    // Over eight devices of 80 GB there is room.
    p.sides = {side("node", measured(gpu("big", 500, 2000, 80, 8)), 1)};
    CHECK(ask(p).decision.verdict != Verdict::refuse);
}

TEST_CASE("a type without an executable path is refused by its reason") {
    hw::Device device = measured(gpu("G", 500, 2000, 80));
    device.products[0].unsupported = "no kernel";
    const Answer answer = ask(problem(qwen_7b, {side("g", device, 2)}, 512, 128, 10));
    CHECK(answer.decision.verdict == Verdict::refuse);
    CHECK(answer.decision.reasons[0].find("no kernel") != std::string::npos);
}

TEST_CASE("goals that nothing keeps are refused with how far the closest is off") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 2)}, 512, 128, 10);
    p.goals.itl_s = 1e-6;
    const Decision decision = ask(p).decision;
    CHECK(decision.verdict == Verdict::refuse);
    CHECK(decision.reasons[0].find("too much") != std::string::npos);
}

TEST_CASE("a certified form of KV is sent where the link is short") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 2)}, 4096, 64, 1);
    add_int8(p, 0.5, 50);
    double plain_s = 0, small_s = 0;
    for (const Candidate& candidate : must(search(p)).candidates) {
        if (!is_split(candidate.kind)) continue;
        (candidate.wire.quantized ? small_s : plain_s) = candidate.transfer_alone_s;
    }
    CHECK(small_s < 0.6 * plain_s);
    CHECK(small_s > 0);
}

TEST_CASE("what an instance carries by estimate is what it turns out when it is flooded") {
    for (const std::uint32_t prompt : {64U, 512U, 4096U}) {
        Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 2)}, prompt, 128, 50);
        p.max_sequences = 32;
        for (const Candidate& candidate : must(search(p)).candidates) {
            if (!candidate.played) continue;
            CAPTURE(prompt);
            CAPTURE(kind_name(candidate.kind));
            CAPTURE(sharing_name(candidate.sharing));
            CAPTURE(candidate.groups[0].instances);
            const Figures flooded = must(play(p, candidate, 20 * candidate.capacity_per_s, 4000));
            const double requests_per_s = flooded.output_tokens_per_s / 128;
            CHECK(requests_per_s < 1.05 * candidate.capacity_per_s);
            CHECK(requests_per_s > 0.6 * candidate.capacity_per_s);  // turns of a slice do not keep batches full
        }
    }
}

TEST_CASE("the bound by memory is named once, that of prefill where prefill is") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 20)), 6)}, 8192, 64, 50);
    bool split = false;
    for (const Candidate& candidate : must(search(p)).candidates) {
        const std::size_t first = candidate.binding.find("bounded by memory");
        if (first != std::string::npos)
            CHECK(candidate.binding.find("bounded by memory", first + 1) == std::string::npos);
        split = split || (is_split(candidate.kind) && candidate.binding == "prefill compute");
    }
    CHECK(split);
}

TEST_CASE("each direction between machines has its own link") {
    Problem p = problem(
        qwen_7b, {side("a", measured(gpu("A", 500, 2000, 80)), 1), side("b", measured(gpu("B", 500, 2000, 80)), 1)},
        4096, 64, 10);
    p.links[1][0] = LinkRates{1e9, 20e-6, true, "slow"};
    std::size_t seen = 0;
    for (const Candidate& candidate : must(search(p)).candidates) {
        if (!is_split(candidate.kind)) continue;
        ++seen;
        CHECK(candidate.deployment.link.bytes_per_s == (candidate.groups[0].side == 0 ? 10e9 : 1e9));
    }
    CHECK(seen >= 2);
    p.links[1][0].reset();
    const SearchResult result = must(search(p));
    for (const Candidate& candidate : result.candidates)
        CHECK((!is_split(candidate.kind) || candidate.groups[0].side == 0));
    REQUIRE_FALSE(result.notes.empty());
    CHECK(result.notes[0].find("from b to a") != std::string::npos);
}

TEST_CASE("more devices than anybody has are refused") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80, 2'000'000'000)), 4096)}, 512, 128, 10);
    CHECK(error_of(search(p)).code == Errc::usage);
}

TEST_CASE("what was not measured is named, conversion too") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 2)}, 4096, 64, 1);
    add_int8(p, 1, 50);
    p.sides[0].device.codecs[0].origin = hw::Origin::specification;
    bool found = false;
    for (const Candidate& candidate : must(search(p)).candidates) {
        CHECK(candidate.verified == candidate.assumed.empty());
        found = found || (candidate.wire.quantized && is_split(candidate.kind) && !candidate.verified);
        if (!candidate.played) continue;
        for (const Practice& practice : practices(p, candidate, false)) CHECK_FALSE(practice.why.empty());
    }
    CHECK(found);
}

TEST_CASE("a deployment plan is read as it was written, and strictly") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 2)}, 512, 128, 10);
    const SearchResult result = must(search(p));
    const Decision decision = decide(p, result);
    for (const Candidate& candidate : result.candidates) {
        if (!candidate.played) continue;
        DeploymentPlan plan = plan_of(p, candidate, decision);
        plan.tool = "hetero-plan";
        const std::string text = to_toml(plan);
        const DeploymentPlan back = must(parse_deployment_plan(text, "p.toml"));
        CHECK(to_toml(back) == text);
        CHECK(back.decode.has_value() == is_split(candidate.kind));
    }
    const std::string text = to_toml(plan_of(p, result.candidates[0], decision));
    const Error error = error_of(parse_deployment_plan("wrie = 1\n" + text, "p.toml"));
    CHECK(has(error, "'wrie' is no key"));
    CHECK(has(error_of(parse_deployment_plan("deployment_plan = 2", "p.toml")), "version 2"));
    CHECK(has(error_of(parse_deployment_plan("deployment_plan = 1", "p.toml")), "lacks"));
}
