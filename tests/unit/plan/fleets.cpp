// Fleets: which machines are alike, which pair of hosts has the link, pools over several kinds; and tiers of KV.
#include <doctest/doctest.h>

#include <algorithm>

#include "plan/fleet.h"
#include "plan/practices.h"
#include "plan/verdict.h"
#include "unit/plan/support.h"

using namespace hetero;
using namespace hetero::plan;
using namespace hetero::test;

namespace {

const ModelShape qwen_7b = decoder("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, 152064);

hw::Machine machine(const char* name, double tflop_per_s, double gb_per_s) {
    hw::Machine out;
    out.name = name;
    out.cpu = measured(gpu("cpu", tflop_per_s, gb_per_s, 100));
    out.cpu.gpu = false;
    return out;
}

// Hosts a0 to a3, one kind; the link of the only fast pair is a2 to a1.
Problem four_hosts() {
    Side one = side("a0", measured(gpu("G", 500, 2000, 80)), 4);
    one.hosts = {"a0", "a1", "a2", "a3"};
    Problem p = problem(qwen_7b, {one}, 4096, 64, 1);
    for (const std::string& from : one.hosts)
        for (const std::string& to : one.hosts)
            if (from != to) {
                const bool fast = from == "a2" && to == "a1";
                p.host_links.push_back({from, to, {fast ? 50e9 : 2e9, fast ? 5e-6 : 9e-6, true, from + " to " + to}});
            }
    return p;
}

}  // namespace

TEST_CASE("machines alike are one kind, the slowest stands for them") {
    hw::Profile fleet;
    fleet.machines = {machine("x0", 100, 50), machine("y", 300, 50), machine("x1", 95, 48), machine("x2", 100, 50)};
    fleet.machines.back().count = 2;
    const auto kinds = kinds_of(fleet);
    REQUIRE(kinds.size() == 2);
    CHECK(kinds[0].hosts == std::vector<std::string>{"x0", "x1", "x2", "x2"});
    CHECK(kinds[0].machine->name == "x1");
    CHECK(kinds[1].hosts == std::vector<std::string>{"y"});
    CHECK(kinds_of(fleet, 0.01).size() == 3);
    fleet.machines[2].gpus.push_back(gpu("G", 1, 1, 1));
    CHECK(kinds_of(fleet).size() == 3);
}

TEST_CASE("one prefill and one decode host are the pair with the best measured link, more take what all pairs have") {
    const Problem p = four_hosts();
    bool one = false, more = false;
    for (const Candidate& candidate : must(search(p)).candidates) {
        if (!is_split(candidate.kind)) continue;
        const Group &prefill = candidate.groups[0], &decode = candidate.groups[1];
        CAPTURE(prefill.instances);
        CAPTURE(decode.instances);
        REQUIRE(prefill.hosts.size() == prefill.instances);
        REQUIRE(decode.hosts.size() == decode.instances);
        for (const std::string& host : prefill.hosts)
            CHECK(std::find(decode.hosts.begin(), decode.hosts.end(), host) == decode.hosts.end());
        const sched::LinkTiming& link = candidate.deployment.link;
        if (prefill.instances == 1 && decode.instances == 1) {
            one = true;
            CHECK(prefill.hosts[0] == "a2");
            CHECK(decode.hosts[0] == "a1");
            CHECK(link.bytes_per_s == 50e9);
            CHECK(link.latency_s == 5e-6);
            CHECK(candidate.link_source == "a2 to a1");
        } else {
            more = true;
            CHECK(link.bytes_per_s == 2e9);
        }
    }
    CHECK(one);
    CHECK(more);
}

TEST_CASE("a pair whose link was not measured is not used") {
    Problem p = four_hosts();
    p.links[0][0].reset();
    std::erase_if(p.host_links, [](const HostLink& link) { return link.from != "a3"; });
    std::size_t splits = 0;
    for (const Candidate& candidate : must(search(p)).candidates) {
        if (!is_split(candidate.kind)) continue;
        ++splits;
        CHECK(candidate.groups[0].hosts == std::vector<std::string>{"a3"});
    }
    CHECK(splits > 0);
    p.host_links.clear();
    const SearchResult result = must(search(p));
    for (const Candidate& candidate : result.candidates) CHECK_FALSE(is_split(candidate.kind));
    REQUIRE_FALSE(result.notes.empty());
    CHECK(result.notes[0].find("the rate of the link is not known") != std::string::npos);
}

TEST_CASE("three kinds: each by itself, all side by side, and pools of two kinds for one stage") {
    Problem p = problem(
        qwen_7b,
        {side("dense", measured(gpu("dense", 800, 900, 80)), 2), side("wide", measured(gpu("wide", 120, 3200, 80)), 1),
         side("wider", measured(gpu("wider", 130, 3500, 80)), 1)},
        8192, 256, 50);
    p.goals.ttft_s = 2;
    p.goals.itl_s = 0.014;
    p.goals.attainment = 0.95;
    p.simulated_requests = 200;
    const SearchResult result = must(search(p));
    std::vector<std::size_t> alone;
    const Candidate* pool = nullptr;
    for (const Candidate& candidate : result.candidates) {
        if (!candidate.played) continue;
        if (candidate.kind == Kind::colocated) alone.push_back(candidate.groups[0].side);
        if (candidate.kind == Kind::side_by_side) CHECK(candidate.groups.size() == 3);
        if (is_split(candidate.kind) && candidate.groups.size() > 2 && pool == nullptr) pool = &candidate;
    }
    for (std::size_t s = 0; s < 3; ++s) CHECK(std::find(alone.begin(), alone.end(), s) != alone.end());
    REQUIRE(pool != nullptr);
    // The pool's capacity is that of its parts: no stage counts twice, and all prefill comes before all decode.
    bool decodes = false;
    for (const Group& group : pool->groups) {
        CHECK(group.role != sched::Role::both);
        CHECK_FALSE((decodes && group.role == sched::Role::prefill));
        decodes = decodes || group.role == sched::Role::decode;
    }
    CHECK(pool->figures->attainment > 0);
    const Candidate* best = nullptr;
    for (const Candidate& candidate : result.candidates)
        if (is_split(candidate.kind) && candidate.played && candidate.groups.size() == 2 && best == nullptr)
            best = &candidate;
    REQUIRE(best != nullptr);
    CHECK(pool->capacity_per_s >= best->capacity_per_s * 0.9);  // more machines do not do less
}

TEST_CASE("over several pairs of kinds a link has the lowest rate and the highest latency, whichever pair's they are") {
    Problem p = problem(
        qwen_7b,
        {side("dense", measured(gpu("dense", 800, 900, 80)), 2), side("wide", measured(gpu("wide", 120, 3200, 80)), 1),
         side("wider", measured(gpu("wider", 130, 3500, 80)), 1)},
        8192, 256, 50);
    p.links[0][2] = LinkRates{100e9, 1e-3, false, "far"};  // 70 GB/s of it count
    bool pools = false;
    for (const Candidate& candidate : must(search(p)).candidates) {
        if (!is_split(candidate.kind) || candidate.groups.size() < 3) continue;
        bool far = false;
        for (const Group& from : candidate.groups)
            for (const Group& to : candidate.groups)
                far = far || (from.side == 0 && from.role == sched::Role::prefill && to.side == 2 &&
                              to.role == sched::Role::decode);
        pools = pools || far;
        CHECK(candidate.deployment.link.bytes_per_s == 50e9);
        CHECK(candidate.deployment.link.latency_s == (far ? 1e-3 : 20e-6));
        CHECK(candidate.verified == !far);
        CHECK(candidate.assumed.size() == (far ? 1 : 0));
    }
    CHECK(pools);
}

TEST_CASE("KV of a common beginning is kept where bringing it back is quicker than computing it, and where it fits") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 1)}, 8192, 64, 10);
    p.workload.cached_tokens = 6144;
    p.workload.retained_tokens = 6144;
    const double kv = p.formats[0].bytes_per_token;
    const auto tier = [&] {
        for (const Candidate& candidate : must(search(p)).candidates)
            if (candidate.played) return candidate;
        return Candidate{};
    };
    CHECK(tier().tier == "device");
    // Too much for the device: the host's memory, at its rate.
    p.workload.retained_tokens = 2'000'000;
    p.sides[0].tiers = {{"host", 50e9, 1e12, true}, {"file", 2e9, 1e13, true}};
    Candidate chosen = tier();
    CHECK(chosen.tier == "host");
    CHECK(chosen.retained_bytes == doctest::Approx(2e6 * kv));
    for (const TierPrice& price : chosen.tiers) {
        if (price.tier == "host") CHECK(price.seconds == doctest::Approx(6144 * kv / 50e9));
        if (price.tier == "file") CHECK(price.seconds == doctest::Approx(6144 * kv / 2e9));
        if (price.tier == "device") CHECK(price.missing_bytes > 0);
    }
    const double from_host_s = chosen.ttft_alone_s;
    // Too much for the host, too: a disk faster than computing, and one that is slower.
    p.sides[0].tiers[0].capacity_bytes = 1e9;
    chosen = tier();
    CHECK(chosen.tier == "file");
    CHECK(chosen.ttft_alone_s > from_host_s);
    CHECK(chosen.figures->ttft_p50_s > from_host_s);
    p.sides[0].tiers[1].bytes_per_s = 2e8;
    chosen = tier();
    CHECK(chosen.tier == "none");
    const double computed_s = chosen.ttft_alone_s;
    p.workload.cached_tokens = p.workload.retained_tokens = 0;
    CHECK(computed_s == doctest::Approx(tier().ttft_alone_s));
    // What a data sheet says of a tier is not measured.
    p.workload.cached_tokens = p.workload.retained_tokens = 6144;
    p.workload.retained_tokens = 2'000'000;
    p.sides[0].tiers = {{"host", 50e9, 1e12, false}};
    chosen = tier();
    CHECK(chosen.tier == "host");
    CHECK_FALSE(chosen.verified);
    CHECK(practices(p, chosen, false)[7].why.find("host") != std::string::npos);
}

TEST_CASE("what is retained on a device leaves less for what is decoded") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 20)), 1)}, 4096, 64, 10);
    const auto capacity = [&] {
        double best = 0;
        for (const Candidate& candidate : must(search(p)).candidates)
            if (candidate.played)
                best = std::max(best, static_cast<double>(candidate.groups[0].worker.kv_capacity_bytes));
        return best;
    };
    p.workload.cached_tokens = 1024;
    p.workload.retained_tokens = 1024;
    const double few = capacity();
    p.workload.retained_tokens = 8192;
    CHECK(few - capacity() == doctest::Approx(7168 * p.formats[0].bytes_per_token).epsilon(1e-6));
}

TEST_CASE("a state that is converted on arrival needs room for both forms") {
    // 15.2 GB of weights; one state of 30,000 tokens has 1.72 GB, its int8 form half as much.
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 19.6)), 2)}, 30000, 16, 50);
    add_int8(p, 0.5, 50);
    p.formats[1].wire_only = true;
    bool refused = false, plain = false;
    for (const Candidate& candidate : must(search(p)).candidates) {
        if (!is_split(candidate.kind)) continue;
        if (candidate.wire.quantized && candidate.inadmissible.find("staging") != std::string::npos) refused = true;
        if (!candidate.wire.quantized && candidate.inadmissible.empty()) plain = true;
    }
    CHECK(refused);
    CHECK(plain);
}

TEST_CASE("bursts of a trace are played as they come") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 1)}, 2048, 32, 10);
    Candidate candidate = must(search(p)).candidates.front();
    const double rate = 0.3 * candidate.capacity_per_s;
    const double even_s = must(play(p, candidate, rate)).ttft_p99_s;
    // The same requests, fifty at once now and then.
    for (int burst = 0; burst < 20; ++burst)
        for (int i = 0; i < 50; ++i) p.workload.trace.push_back({burst * 100.0 + i * 1e-3, 2048, 0, 32});
    const Figures bursts = must(play(p, candidate, rate));
    CHECK(bursts.ttft_p99_s > 3 * even_s);
    // Faster in the same shape: it does not wait longer than a whole burst takes, and all of it is played.
    CHECK(bursts.output_tokens_per_s / 32 == doctest::Approx(rate).epsilon(0.1));
    p.workload.rate_per_s = rate;
    CHECK(must(search(p)).candidates.front().figures->ttft_p99_s > 3 * even_s);
}

TEST_CASE("decode emits the first token where sending would tear the goal between tokens") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 2)}, 400, 4, 0.4);
    const auto best_split = [&] {
        for (const Candidate& candidate : must(search(p)).candidates)
            if (is_split(candidate.kind) && candidate.played) return candidate;
        return Candidate{};
    };
    // A state takes about 57 ms, a step 11 ms; three gaps share what is sent after the first token.
    p.goals.ttft_s = 1;
    p.goals.itl_s = 0.02;
    CHECK(best_split().deployment.first_token == sched::FirstToken::decode);
    CHECK(best_split().goodput_per_s > 0);
    p.first_token = sched::FirstToken::prefill;
    CHECK(best_split().goodput_per_s == 0);
    p.first_token.reset();
    p.goals.itl_s = 0.5;
    p.goals.ttft_s = 0.05;
    CHECK(best_split().deployment.first_token == sched::FirstToken::prefill);
}

TEST_CASE("rates of a quick probe are said to be rough") {
    Problem p = problem(qwen_7b, {side("g", measured(gpu("G", 500, 2000, 80)), 1)}, 512, 32, 10);
    const auto is_rough = [&] {
        const Decision decision = decide(p, must(search(p)));
        return std::any_of(decision.warnings.begin(), decision.warnings.end(),
                           [](const std::string& line) { return line.find("rough") != std::string::npos; });
    };
    CHECK_FALSE(is_rough());
    p.sides[0].rough = true;
    CHECK(is_rough());
}
