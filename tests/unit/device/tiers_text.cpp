// Where --kv-tier says that K and V stay.
#include <doctest/doctest.h>

#include "engine/device/tiers.h"
#include "support/results.h"

using namespace hetero;
using namespace hetero::test;
using engine::KvTiers;
using engine::Tier;
using kv::PartId;

TEST_CASE("one tier for all, or rules for layers and parts, the later before the earlier") {
    CHECK(KvTiers{}.of(3, PartId::k) == Tier::device);
    CHECK(KvTiers{}.all_on_device());
    const KvTiers all = must(KvTiers::parse("host"));
    CHECK(all.of(0, PartId::k) == Tier::host);
    CHECK(all.of(99, PartId::v) == Tier::host);
    CHECK_FALSE(all.all_on_device());
    const KvTiers some = must(KvTiers::parse("2-5=host,v=file,4.v=device,7.k=host"));
    CHECK(some.of(1, PartId::k) == Tier::device);
    CHECK(some.of(2, PartId::k) == Tier::host);
    CHECK(some.of(5, PartId::k) == Tier::host);
    CHECK(some.of(6, PartId::k) == Tier::device);
    CHECK(some.of(7, PartId::k) == Tier::host);
    CHECK(some.of(0, PartId::v) == Tier::file);
    CHECK(some.of(4, PartId::v) == Tier::device);
    CHECK(some.of(7, PartId::v) == Tier::file);
    CHECK(some.any(Tier::file));
}

TEST_CASE("what says no tier is refused with what can be said") {
    for (const char* text :
         {"", "ram", "host,", "=host", "k", "k=", "k=ram", "x=host", ".k=host", "5-2=host", "-2=host", "2-=host",
          "1.q=host", "99999999999999999999=host", "k.v=host", "1=host=file"}) {
        CAPTURE(std::string(text));
        const Error error = error_of(KvTiers::parse(text));
        CHECK(error.code == Errc::usage);
        CHECK(has(error, "8-31=host"));
    }
}

TEST_CASE("a rule for a layer that is not there is refused") {
    CHECK(must(KvTiers::parse("0-3=host,k=file")).check(4).has_value());
    for (const char* text : {"0-4=host", "4=host", "k=host,9.v=file"}) {
        const Status checked = must(KvTiers::parse(text)).check(4);
        REQUIRE_FALSE(checked.has_value());
        CHECK(checked.error().code == Errc::usage);
    }
}
