// The search on figures that are known: losses are carried as the model says, and the choices are the best there are.
#include "calib/search.h"

#include <doctest/doctest.h>

#include <random>

using namespace hetero;
using calib::Evidence;
using calib::Ladder;
using kv::PartId;

namespace {

Ladder small_ladder() {
    Ladder ladder;
    for (const char* text : {"int3:channel:g32:asym", "int4:channel:g32:asym", "int8:channel:g32:asym"})
        ladder.k.push_back(*quant::parse_spec(text));
    for (const char* text : {"had:int4", "had:int8", "f16"}) ladder.v.push_back(*quant::parse_spec(text));
    ladder.base_k = 1;
    ladder.sinks = 4;
    return ladder;
}

// Losses that the model describes exactly: alone * ratio of noise, times a factor of the option.
struct World {
    Evidence evidence;
    std::vector<std::vector<double>> loss;  // [part][option]
};

World make_world(std::size_t n_layers, unsigned seed) {
    std::mt19937 random(seed);
    const auto positive = [&] { return static_cast<double>(1 + random() % 1000) / 1000; };
    const double noise_of[2][3] = {{4, 1, 0.004}, {1, 0.004, 0}}, factor[2][3] = {{1.5, 1, 0.9}, {1, 0.7, 1}};
    const std::uint64_t cost_of[2][3] = {{4000, 5000, 9000}, {4250, 8250, 16000}};
    World world;
    world.evidence.whole_k.assign(3, 0);
    world.evidence.whole_v.assign(3, 0);
    for (std::size_t part = 0; part < 2 * n_layers; ++part) {
        const std::size_t side = part % 2;
        const double alone = positive(), size = positive();
        world.evidence.alone.push_back(alone);
        auto& noise = world.evidence.noise.emplace_back();
        auto& loss = world.loss.emplace_back();
        for (std::size_t option = 0; option < 3; ++option) {
            noise.push_back(size * noise_of[side][option]);
            loss.push_back(alone * noise_of[side][option] * factor[side][option]);
            (side == 0 ? world.evidence.whole_k : world.evidence.whole_v)[option] += loss.back();
        }
        world.evidence.cost.emplace_back(cost_of[side], cost_of[side] + 3);
    }
    return world;
}

}  // namespace

TEST_CASE("losses are carried from the base option to the others, and add up to what was measured of the whole") {
    const Ladder ladder = small_ladder();
    const World world = make_world(5, 1);
    const auto losses = calib::expected_losses(ladder, world.evidence);
    REQUIRE(losses.has_value());
    for (std::size_t part = 0; part < losses->size(); ++part) {
        for (std::size_t option = 0; option < 3; ++option) {
            CHECK((*losses)[part][option].loss == doctest::Approx(world.loss[part][option]).epsilon(1e-9));
            CHECK((*losses)[part][option].cost == world.evidence.cost[part][option]);
        }
    }
    const auto half = calib::expected_losses(ladder, world.evidence, 0.5);
    REQUIRE(half.has_value());
    CHECK((*half)[0][0].loss == doctest::Approx(world.loss[0][0] / 2));
    CHECK((*half)[1][0].loss == doctest::Approx(world.loss[1][0]));
    Evidence broken = world.evidence;
    broken.alone[3] = std::numeric_limits<double>::quiet_NaN();
    CHECK_FALSE(calib::expected_losses(ladder, broken).has_value());
}

TEST_CASE("the first candidate is the best choice of all, and a choice that is alike everywhere is among them") {
    const Ladder ladder = small_ladder();
    constexpr std::size_t n_layers = 3;
    for (unsigned seed = 0; seed < 10; ++seed) {
        const World world = make_world(n_layers, seed);
        for (const std::uint64_t budget : {24000U, 26000U, 31000U, 40000U, 80000U}) {
            CAPTURE(seed);
            CAPTURE(budget);
            const auto found = calib::candidates(ladder, world.evidence, budget);
            REQUIRE(found.has_value());
            double best = -1;
            for (std::size_t code = 0; code < 729; ++code) {  // 3 options of 6 parts
                std::uint64_t cost = 0;
                double loss = 0;
                for (std::size_t part = 0, rest = code; part < 6; ++part, rest /= 3) {
                    cost += world.evidence.cost[part][rest % 3];
                    loss += world.loss[part][rest % 3];
                }
                if (cost <= budget && (best < 0 || loss < best)) best = loss;
            }
            if (best < 0) {
                CHECK(found->empty());
                continue;
            }
            REQUIRE_FALSE(found->empty());
            double loss = 0;
            for (std::size_t part = 0; part < 6; ++part) {
                const PartId id = part % 2 == 0 ? PartId::k : PartId::v;
                std::size_t option = 0;
                while (option < 3 && found->front().of(id)[part / 2] != ladder.scheme(id, option)) ++option;
                REQUIRE(option < 3);
                loss += world.loss[part][option];
            }
            CHECK(loss == doctest::Approx(best).epsilon(1e-9));
            bool alike = false;
            for (const calib::Assignment& one : *found) {
                alike = alike || one == calib::uniform(n_layers, one.k.front(), one.v.front());
            }
            if (budget >= 3 * 8250) CHECK(alike);
        }
    }
}

TEST_CASE("the jobs are each part alone, then each option everywhere") {
    const Ladder ladder = small_ladder();
    const auto jobs = calib::search_jobs(ladder, 2);
    REQUIRE(jobs.size() == 4 + 3 + 3);
    const kv::Scheme f16;
    CHECK(jobs[0].assignment.k == std::vector{ladder.scheme(PartId::k, 1), f16});
    CHECK(jobs[0].assignment.v == std::vector{f16, f16});
    CHECK(jobs[3].assignment.v == std::vector{f16, ladder.scheme(PartId::v, 0)});
    CHECK(jobs[6].assignment.k == std::vector(2, ladder.scheme(PartId::k, 2)));
    CHECK(jobs[7].assignment.v == std::vector(2, ladder.scheme(PartId::v, 0)));
    CHECK(jobs[9].assignment.v == std::vector(2, f16));
    CHECK(ladder.scheme(PartId::k, 0).sinks == 4);
    CHECK(ladder.scheme(PartId::v, 2).sinks == 0);
}
