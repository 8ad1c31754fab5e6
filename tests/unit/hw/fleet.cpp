// Profiles of several machines and the links between their ranks.
#include "hw/fleet.h"

#include "unit/hw/support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

std::string machine_json(const std::string& model) {
    return R"({"profile_schema": 2, "source": {"kind": "measured"}, "host": {"hostname": "x"}, "cpu": {"model": ")" +
           model + R"("}})";
}

hw::Link link(int from, int to, double gb_per_s) {
    hw::Link link;
    link.from_rank = from;
    link.to_rank = to;
    link.latency_us = 2;
    link.gb_per_s = gb_per_s;
    link.sizes = {{4096, 1.0}, {1048576, gb_per_s}};
    return link;
}

}  // namespace

TEST_CASE("ranks of one machine share its profile, and links name their machines") {
    const std::vector<hw::RankProfile> ranks{{"a boot1", machine_json("A")},
                                             {"b boot2", machine_json("B")},
                                             {"a boot1", ""},
                                             {"a boot3", machine_json("C")}};
    hw::Link slow = link(1, 0, 3);
    slow.asymmetric = true;
    const auto texts = hw::fleet_profile(ranks, {link(0, 1, 12.5), slow, link(2, 3, 20)}, "a method");
    REQUIRE_MESSAGE(texts.has_value(), texts.error().message);
    for (const std::string& text : {texts->json, texts->toml}) {
        const auto fleet = hw::parse_profile(text, "fleet");
        REQUIRE_MESSAGE(fleet.has_value(), fleet.error().message);
        REQUIRE(fleet->machines.size() == 3);
        CHECK(fleet->machines[0].name == "a");
        CHECK(fleet->machines[0].ranks == std::vector<int>{0, 2});
        CHECK(fleet->machines[1].name == "b");
        CHECK(fleet->machines[2].name == "a-2");  // the same name, but another boot
        CHECK(fleet->machines[2].cpu.name == "C");
        REQUIRE(fleet->links.size() == 3);
        CHECK(fleet->links[0].from == "a");
        CHECK(fleet->links[0].to == "b");
        CHECK(fleet->links[0].gb_per_s == 12.5);
        CHECK_FALSE(fleet->links[0].asymmetric);
        CHECK(fleet->links[1].from == "b");
        CHECK(fleet->links[1].asymmetric);
        CHECK_FALSE(fleet->links[1].both_ways_gb_per_s.has_value());
        CHECK(fleet->links[2].to == "a-2");
        CHECK(fleet->links[2].sizes.at(1).message_bytes == 1048576);
    }
    CHECK(texts->summary.find("asymmetric") != std::string::npos);
}

TEST_CASE("a machine without a profile and a link of no rank are refused") {
    const std::vector<hw::RankProfile> lacking{{"a 1", machine_json("A")}, {"b 2", ""}};
    const auto first = hw::fleet_profile(lacking, {}, "");
    REQUIRE_FALSE(first.has_value());
    CHECK(first.error().message == "b: no rank has made its profile");
    const std::vector<hw::RankProfile> one{{"a 1", machine_json("A")}};
    const auto second = hw::fleet_profile(one, {link(0, 1, 5)}, "");
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().message == "a link of rank 1, of 1");
}
