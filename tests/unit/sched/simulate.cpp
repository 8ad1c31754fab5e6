#include "sched/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/statistics.h"
#include "sched/arrivals.h"
#include "support/results.h"

using namespace hetero;
using namespace hetero::sched;

namespace {

constexpr double any = 1e300;

// 1 ms a token of prompt; a step takes 10 ms, whatever the batch.
WorkerConfig machine(Role role) {
    WorkerConfig config;
    config.role = role;
    config.prefill = {0, 1e-3, 0, 0};
    config.decode.overhead_s = 10e-3;
    config.kv.bytes_per_token = 100;
    config.kv_capacity_bytes = 1'000'000'000;
    return config;
}

Deployment colocated(std::size_t n = 1) { return {std::vector<WorkerConfig>(n, machine(Role::both)), {}, {}}; }

Deployment split() {
    Deployment deployment{{machine(Role::prefill), machine(Role::decode)}, {}, FirstToken::prefill};
    deployment.link.latency_s = 1e-3;
    deployment.link.bytes_per_s = 1e6;
    deployment.link.kv.bytes_per_token = 100;
    return deployment;
}

Outcome play(const Deployment& deployment, const std::vector<Request>& requests, Targets targets = {any, any}) {
    return test::must(simulate(deployment, requests, targets, true));
}

}  // namespace

TEST_CASE("one request alone takes prefill and its steps") {
    const Outcome outcome = play(colocated(), {{2.0, 100, 0, 5}});
    REQUIRE(outcome.finished == 1);
    CHECK(outcome.ttft_s[0] == doctest::Approx(0.1));
    CHECK(outcome.e2e_s[0] == doctest::Approx(0.1 + 4 * 0.01));
    CHECK(outcome.tpot_s[0] == doctest::Approx(0.01));
    CHECK(outcome.itl.count() == 4);
    CHECK(outcome.output_tokens == 5);
    CHECK(outcome.steps == 4);
}

TEST_CASE("what is cached is not computed") {
    CHECK(play(colocated(), {{0, 100, 60, 1}}).ttft_s[0] == doctest::Approx(0.04));
}

TEST_CASE("a split adds the transfer to the second token, or to the first") {
    Deployment deployment = split();
    const Outcome outcome = play(deployment, {{0, 100, 0, 3}});
    const double transfer_s = 1e-3 + 100 * 100 / 1e6;
    CHECK(outcome.ttft_s[0] == doctest::Approx(0.1));
    CHECK(outcome.itl.percentile_s(100) == doctest::Approx(transfer_s + 0.01));
    CHECK(outcome.itl.percentile_s(50) == doctest::Approx(0.01).epsilon(0.005));
    CHECK(outcome.link_bytes == 10000);
    deployment.first_token = FirstToken::decode;
    const Outcome late = play(deployment, {{0, 100, 0, 3}});
    CHECK(late.ttft_s[0] == doctest::Approx(0.1 + transfer_s));
    CHECK(late.itl.percentile_s(100) == doctest::Approx(0.01));
    CHECK(late.e2e_s[0] == doctest::Approx(outcome.e2e_s[0]));
}

TEST_CASE("layers that overlap hide the transfer behind prefill") {
    LinkTiming link = split().link;
    link.overlapped = true;
    link.layers = 10;
    // Hidden: one layer of ten is left. Not hidden: what exceeds prefill as well.
    CHECK(link.transfer(49'000, 490, 1.0).visible_s == doctest::Approx(0.05 / 10));
    CHECK(link.transfer(49'000, 490, 0.01).visible_s == doctest::Approx(0.005 + 0.9 * 0.04));
    link.overlapped = false;
    CHECK(link.transfer(49'000, 490, 1.0).visible_s == doctest::Approx(0.05));
}

TEST_CASE("two transfers of one worker go one after the other") {
    Deployment deployment = split();
    deployment.workers[0].prefill.per_token_s = 1e-9;
    deployment.first_token = FirstToken::decode;
    const Outcome outcome = play(deployment, {{0, 10000, 0, 1}, {0, 10000, 0, 1}});
    CHECK(minimum(outcome.ttft_s) == doctest::Approx(1.001).epsilon(1e-3));
    CHECK(maximum(outcome.ttft_s) == doctest::Approx(2.001).epsilon(1e-3));
}

TEST_CASE("states of two senders go into one receiver one after the other") {
    Deployment deployment = split();
    for (WorkerConfig& worker : deployment.workers) worker.prefill.per_token_s = 1e-9;
    deployment.workers.push_back(deployment.workers[0]);
    deployment.first_token = FirstToken::decode;
    const std::vector<Request> two{{0, 10000, 0, 1}, {0, 10000, 0, 1}};
    const Outcome one = play(deployment, two);
    CHECK(maximum(one.ttft_s) == doctest::Approx(2.001).epsilon(1e-3));
    CHECK(one.link_busy == doctest::Approx(1).epsilon(2e-3));  // that of the receiver, the senders' half
    // Another receiver takes the second.
    deployment.workers.push_back(deployment.workers[1]);
    CHECK(maximum(play(deployment, two).ttft_s) == doctest::Approx(1.001).epsilon(1e-3));
}

// DistServe (https://arxiv.org/abs/2401.09670), eq. 1: TTFT = D + R D^2 / (2 (1 - R D)), and what it yields for OPT-66B
// on four A100 and prompts of 512 tokens.
TEST_CASE("the mean wait of prompts alike is that of M/D/1") {
    const auto played_s = [](double d, double rate) {
        Deployment deployment = colocated();
        deployment.workers[0].prefill.per_token_s = d / 100;
        deployment.workers[0].policy.max_batch_tokens = 1;
        return mean(play(deployment, poisson_requests({500'000, rate, 100, 0, 1, 7})).ttft_s);
    };
    const auto expected_s = [](double d, double rate) { return d + rate * d * d / (2 * (1 - rate * d)); };
    const auto off = [](double value, double expected) { return std::fabs(value / expected - 1); };
    for (const double rate : {1.0, 5.0, 8.0}) CHECK(off(played_s(0.1, rate), expected_s(0.1, rate)) < 0.03);
    const std::vector<std::pair<double, double>> points{
        {1, 0.1158}, {3, 0.1356}, {5, 0.1746}, {7, 0.2854}, {8, 0.4834}};
    for (const auto& [rate, seconds] : points) {
        CAPTURE(rate);
        CHECK(off(expected_s(0.1091, rate), seconds) < 5e-4);
        CHECK(off(played_s(0.1091, rate), seconds) < 0.03);
    }
    CHECK(played_s(0.1091, 10) > 100);  // the queue grows for as long as they come
}

TEST_CASE("sequences decode together, and prompts hold them up") {
    // The second prompt arrives during the decode of the first.
    const std::vector<Request> requests{{0, 100, 0, 50}, {0.2, 100, 0, 2}};
    const Outcome outcome = play(colocated(), requests);
    CHECK(outcome.itl.percentile_s(100) == doctest::Approx(0.11));
    CHECK(outcome.e2e_s.size() == 2);
    Deployment chunked = colocated();
    chunked.workers[0].policy.sharing = Sharing::chunked;
    chunked.workers[0].policy.chunk_tokens = 11;
    // A chunk of 10 beside one sequence: 10 ms of prompt and no step of its own.
    CHECK(play(chunked, requests).itl.percentile_s(100) < 0.021);
    Deployment sliced = colocated();
    sliced.workers[0].policy.sharing = Sharing::time_sliced;
    sliced.workers[0].policy.chunk_tokens = 10;
    sliced.workers[0].policy.quantum_s = 0.03;
    const double gap_s = play(sliced, requests).itl.percentile_s(100);
    CHECK(gap_s <= 0.03 + 0.01 + 0.01 + 1e-9);  // a turn of prompts, at most one step over, and the step itself
    CHECK(gap_s > 0.03);
}

TEST_CASE("a batch of many takes as many steps as the longest") {
    std::vector<Request> requests(32, Request{0, 1, 0, 21});
    const Outcome outcome = play(colocated(), requests);
    CHECK(outcome.steps == 20);
    CHECK(outcome.batch_mean == doctest::Approx(32));
    CHECK(outcome.itl.count() == 32 * 20);
}

TEST_CASE("memory bounds the batch, and what never fits is refused") {
    std::vector<Request> requests(4, Request{0, 50, 0, 50});
    requests.push_back({0, 300, 0, 2});
    Deployment deployment = colocated();
    deployment.workers[0].kv_capacity_bytes = 2 * 100 * 100;
    const Outcome outcome = play(deployment, requests);
    CHECK(outcome.refused == 1);
    CHECK(outcome.finished == 4);
    CHECK(outcome.peak_kv_bytes == 20000);
    CHECK(outcome.batch_mean <= 2);

    Deployment apart = split();
    apart.workers[1].kv_capacity_bytes = 100 * 100;
    CHECK(play(apart, requests).refused == 1);
    apart.link.staging_fraction = 1;  // then not one fits beside its own staging
    CHECK(play(apart, requests).refused == 5);
}

TEST_CASE("a request goes to a worker that can hold it, however busy") {
    Deployment deployment = colocated(2);
    deployment.workers[0].kv_capacity_bytes = 100 * 200;  // 200 tokens
    const Outcome outcome = play(deployment, {{0, 1000, 0, 5}, {0, 1000, 0, 5}, {0, 1000, 0, 5}, {0, 100, 0, 5}});
    CHECK(outcome.refused == 0);
    CHECK(outcome.finished == 4);
}

TEST_CASE("a request goes where it is done first: what is left of a step, and of a prompt in pieces, counts") {
    // Two prompts at once, one to each worker; the third comes while both are busy and nothing waits.
    const std::vector<Request> requests{{0, 1000, 0, 1}, {0, 500, 0, 1}, {0.1, 100, 0, 1}};
    Deployment deployment = colocated(2);
    CHECK(play(deployment, requests).timelines[2].prefill_start_s == doctest::Approx(0.5));
    for (WorkerConfig& worker : deployment.workers) {
        worker.policy.sharing = Sharing::chunked;
        worker.policy.chunk_tokens = 50;
    }
    CHECK(play(deployment, requests).timelines[2].prefill_end_s == doctest::Approx(0.6));
    // Rounding leaves no trace: of idle workers it is always the first.
    deployment = colocated(2);
    std::vector<Request> apart;
    for (int i = 0; i < 50; ++i) apart.push_back({i * 1.0, 7U + static_cast<std::uint32_t>(i), 0, 1});
    const Outcome outcome = play(deployment, apart);
    CHECK(maximum(outcome.ttft_s) == doctest::Approx(0.056));
    CHECK(outcome.queue_mean_s == 0);
}

TEST_CASE("what the decoder has is neither sent nor converted") {
    Deployment deployment = split();
    deployment.link.convert_s_per_token = 1e-3;
    deployment.link.resident_prefix = 1;
    const Outcome outcome = play(deployment, {{0, 100, 60, 2}});
    CHECK(outcome.link_bytes == 4000);
    CHECK(outcome.transfer_mean_s == doctest::Approx(1e-3 + 4e-3 + 40e-3));
}

TEST_CASE("stages add up, in order, for every request") {
    PoissonLoad load{3000, 9, 80, 20, 30, 3};
    for (const bool apart : {false, true}) {
        Deployment deployment = apart ? split() : colocated(2);
        deployment.workers.back().kv_capacity_bytes = 100 * 110 * 5;
        const Outcome outcome = play(deployment, poisson_requests(load));
        REQUIRE(outcome.finished == load.requests);
        for (const Timeline& t : outcome.timelines) {
            REQUIRE(t.arrival_s <= t.prefill_start_s);
            REQUIRE(t.prefill_start_s < t.prefill_end_s);
            REQUIRE(t.prefill_end_s <= t.reserved_s);
            REQUIRE(t.reserved_s <= t.decode_start_s);
            REQUIRE(t.decode_start_s < t.end_s);
            REQUIRE(t.phase == Phase::finished);
        }
        const double stages = outcome.queue_mean_s + outcome.prefill_mean_s + outcome.reserve_mean_s +
                              outcome.transfer_mean_s + outcome.decode_mean_s;
        CHECK(stages == doctest::Approx(mean(outcome.e2e_s)));
        if (apart) CHECK(outcome.reserve_mean_s > 0);
        CHECK(outcome.output_tokens == 30 * load.requests);
    }
}

TEST_CASE("the same requests give the same outcome") {
    const auto requests = poisson_requests({2000, 6, 90, 0, 20, 11});
    CHECK(play(split(), requests).e2e_s == play(split(), requests).e2e_s);
    CHECK(play(split(), requests).e2e_s != play(split(), poisson_requests({2000, 6, 90, 0, 20, 12})).e2e_s);
}

TEST_CASE("attainment counts all that were submitted") {
    Deployment deployment = colocated();
    deployment.workers[0].kv_capacity_bytes = 100 * 200;
    const std::vector<Request> requests{{0, 100, 0, 3}, {0, 100, 0, 3}, {10, 300, 0, 1}, {20, 50, 0, 1}};
    // The second waits for the first (prompts go together: 0.2 s for both); the third is refused.
    deployment.workers[0].policy.max_batch_tokens = 100;
    const Outcome outcome = play(deployment, requests, {0.15, 0.2});
    CHECK(outcome.good == 2);
    CHECK(outcome.attainment() == doctest::Approx(0.5));
}

TEST_CASE("shortest first") {
    std::vector<Request> requests{{0, 1000, 0, 1}, {0.1, 500, 0, 1}, {0.2, 10, 0, 1}};
    Deployment deployment = colocated();
    deployment.workers[0].policy.max_batch_tokens = 1;
    deployment.workers[0].policy.order = Order::shortest_first;
    const Outcome outcome = play(deployment, requests);
    CHECK(outcome.timelines[2].prefill_end_s == doctest::Approx(1.01));
    CHECK(outcome.timelines[1].prefill_end_s == doctest::Approx(1.51));
}

TEST_CASE("a window bounds what a sequence holds and reads") {
    const KvSize kv{10, 0.5, 100};
    CHECK(kv.bytes(50) == doctest::Approx(500));
    CHECK(kv.bytes(1000) == doctest::Approx(10 * (500 + 50)));
}

TEST_CASE("deployments and requests that make no sense are refused") {
    const auto refused = [](const Deployment& deployment, const std::vector<Request>& requests) {
        const auto result = simulate(deployment, requests, {});
        return !result && result.error().code == Errc::usage;
    };
    const std::vector<Request> fine{{0, 1, 0, 1}};
    CHECK(refused({}, fine));
    CHECK(refused({{machine(Role::prefill)}, split().link, {}}, fine));
    CHECK(refused({{machine(Role::decode)}, {}, {}}, fine));
    Deployment no_link = split();
    no_link.link.bytes_per_s = 0;
    CHECK(refused(no_link, fine));
    CHECK(refused(colocated(), {{1, 1, 0, 1}, {0, 1, 0, 1}}));
    CHECK(refused(colocated(), {{0, 1, 1, 1}}));
    CHECK(refused(colocated(), {{0, 1, 0, 0}}));
    CHECK(refused(colocated(), {{std::nan(""), 1, 0, 1}}));
    CHECK(play(colocated(), {}).requests == 0);
}

TEST_CASE("layers are sent during prefill only where the decoder reserved before") {
    Deployment deployment = split();
    deployment.link.overlapped = true;
    deployment.link.layers = 10;
    deployment.first_token = FirstToken::decode;
    // 100 ms of prefill hide all but a tenth of the 11 ms that sending takes.
    CHECK(play(deployment, {{0, 100, 0, 2}}).ttft_s[0] == doctest::Approx(0.1 + 0.0011));
    // Room for one state: the second reserves when the first has gone, and is sent after that, in one piece.
    deployment.workers[1].kv_capacity_bytes = 102 * 100;
    deployment.workers[0].policy.max_batch_tokens = 1;
    const Outcome outcome = play(deployment, {{0, 100, 0, 2}, {0, 100, 0, 2}});
    const Timeline& second = outcome.timelines[1];
    CHECK(second.decode_start_s - std::max(second.reserved_s, second.prefill_end_s) == doctest::Approx(0.011));
}

TEST_CASE("cached KV is brought back before the rest is computed") {
    Deployment deployment = colocated();
    deployment.workers[0].fetch_s_per_token = 1e-2;
    CHECK(play(deployment, {{0, 100, 60, 1}}).ttft_s[0] == doctest::Approx(0.04 + 0.6));
    CHECK(play(deployment, {{0, 100, 0, 1}}).ttft_s[0] == doctest::Approx(0.1));
    // In pieces it is brought back once.
    deployment.workers[0].policy.sharing = Sharing::chunked;
    deployment.workers[0].policy.chunk_tokens = 10;
    CHECK(play(deployment, {{0, 100, 60, 1}}).ttft_s[0] == doctest::Approx(0.04 + 0.6));
}

TEST_CASE("a run that stops when it is decided decides as the whole one does") {
    for (const double rate : {2.0, 6.0, 8.0, 9.0, 9.9, 12.0}) {
        CAPTURE(rate);
        const auto requests = poisson_requests({3000, rate, 100, 0, 5, 3});
        const Outcome whole = play(colocated(), requests, {0.25, 0.1});
        for (const double wanted : {0.5, 0.9, 0.99}) {
            CAPTURE(wanted);
            const Outcome decided = play(colocated(), requests, {0.25, 0.1, wanted});
            CHECK((decided.attainment() >= wanted) == (whole.attainment() >= wanted));
            CHECK(decided.finished < whole.finished);
        }
    }
}
