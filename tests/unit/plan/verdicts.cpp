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
    const Decision decision = ask(p).decision;
    CHECK(decision.verdict == Verdict::colocate);
    CHECK(decision.reasons[0].find("sending 234.9 MB takes") == 0);
    CHECK(decision.reasons[0].find("after prefill, over 25 %") != std::string::npos);
    // Slower yet, and with all the time there is.
    p.goals.ttft_s = 20;
    p.goals.itl_s = 5;
    p.links[0][0]->bytes_per_s = 5e6;
    const Decision slow = ask(p).decision;
    CHECK(slow.verdict == Verdict::colocate);
    CHECK(slow.reasons[0].find("after prefill, over 25 %") != std::string::npos);
}

TEST_CASE("machines that compute too slowly are refused by what they lack") {
    Problem p = problem(qwen_7b, {side("weak", measured(gpu("weak", 2, 100, 80)), 2)}, 4096, 16, 0.05);
    p.goals.ttft_s = 2;  // 60 TFLOP a prompt
    const Decision slow = ask(p).decision;
    CHECK(slow.verdict == Verdict::refuse);
    CHECK(slow.reasons[0].find("time to first token") != std::string::npos);
    CHECK(slow.reasons[0].find("too much") != std::string::npos);
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

TEST_CASE("a batch script does what the plan says") {
    DeploymentPlan plan;
    plan.prefill = {"a", "f16", 3, 3, 1, {}, 0};
    plan.output_tokens = 9;
    const auto script = [&] { return must(slurm_script(plan, "m'odel.gguf")); };
    const auto has_line = [](const std::string& text, const std::string& part) {
        return text.find(part) != std::string::npos;
    };
    // Both stages: an array, of which each instance takes its part; the first token is prefill's.
    CHECK(has_line(script(), "\n#SBATCH --array=0-2\n"));
    CHECK(has_line(script(), "'NR % 3 == part'"));
    CHECK(has_line(script(), "--first-token prefill --json -o"));
    CHECK(has_line(script(), "\"$STATE\" -n 8 --json"));
    CHECK(has_line(script(), "MODEL='m'\\''odel.gguf'\n"));
    plan.more.push_back({{"b", "f16", 2, 2, 1, {}, 0}, "both"});
    CHECK(has_line(script(), "'NR % 5 == part'"));
    CHECK(has_line(script(), "# and on b: sbatch --array=3-4 "));
    plan.more.clear();
    plan.prefill.tp = 2;
    CHECK(has_line(script(), "\nmpirun --bind-to none -n 2 hetero-decode -m \"$MODEL\" --tp 2 "));
    // Apart: pairs; codes stay codes in the decoder, floats are made of them where the plan has it so.
    plan.prefill.tp = 1;
    plan.decode = {"b", "f16", 2, 2, 1, {}, 0};
    plan.wire = plan.resident = "had:int4:token:g32:asym";
    plan.first_token = "decode";
    CHECK(has_line(script(),
                   "# The plan has 3 prefill and 2 decode instances; a job is one of each, 2 can run at once:\n"));
    CHECK(has_line(script(), "\n# 1 more would have no partner: "));
    CHECK(has_line(script(), "'NR % 2 == part'"));
    CHECK_FALSE(has_line(script(), "#SBATCH --array"));
    plan.decode->instances = 3;
    CHECK_FALSE(has_line(script(), "no partner"));
    plan.decode->instances = 2;
    CHECK(has_line(script(), "--wire-dtype had:int4:token:g32:asym --first-token decode "));
    CHECK(has_line(script(), "mpi:0 --kv-dtype int4 -n 9 --json"));
    plan.resident = "f16";
    CHECK_FALSE(has_line(script(), "--kv-dtype"));
    plan.resident = "no codec";
    CHECK(error_of(slurm_script(plan, "m")).code == Errc::usage);
    plan.resident = "f16";
    CHECK(error_of(slurm_script(plan, "a\nb")).code == Errc::usage);
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
