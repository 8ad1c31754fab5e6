// Journals: what was added is found again, and what a dying writer left half-done is not.
#include "calib/journal.h"

#include <cmath>
#include <limits>

#include "support/temp_dir.h"

using namespace hetero;
using namespace hetero::test;
using calib::Journal;
using calib::Step;

namespace {

const std::vector<Step> steps = {
    {0.1, 1e-300, true}, {1.0 / 3, 0, false}, {std::numeric_limits<double>::infinity(), 5e-324, true}};

Journal must_open(const std::string& folder, const std::string& writer) {
    auto journal = Journal::open(folder, writer);
    REQUIRE_MESSAGE(journal.has_value(), journal.error().message);
    return std::move(*journal);
}

std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("entries of all writers are found again, bit for bit") {
    const TempDir folder;
    {
        Journal one = must_open(folder / "j", "a"), two = must_open(folder / "j", "b");
        REQUIRE(one.add(sha256("1"), steps).has_value());
        REQUIRE(two.add(sha256("2"), {}).has_value());
        REQUIRE(one.find(sha256("1")) != nullptr);
        CHECK(one.find(sha256("2")) == nullptr);  // written after it was opened
    }
    const Journal again = must_open(folder / "j", "c");
    CHECK(again.size() == 2);
    REQUIRE(again.find(sha256("1")) != nullptr);
    CHECK(*again.find(sha256("1")) == steps);
    REQUIRE(again.find(sha256("2")) != nullptr);
    CHECK(again.find(sha256("2"))->empty());
    CHECK(again.find(sha256("3")) == nullptr);
}

TEST_CASE("a line cut short or changed at any place is not read, and spoils no other") {
    const TempDir folder;
    {
        Journal journal = must_open(folder / "j", "a");
        REQUIRE(journal.add(sha256("1"), steps).has_value());
        REQUIRE(journal.add(sha256("2"), steps).has_value());
    }
    const std::string path = folder / "j/journal-a.txt", whole = content(path);
    const std::size_t line = whole.size() / 2;
    for (std::size_t cut = line; cut < whole.size() - 1; ++cut) {
        std::ofstream(path, std::ios::binary) << whole.substr(0, cut);
        {
            Journal journal = must_open(folder / "j", "a");
            CHECK(journal.size() == 1);
            REQUIRE(journal.add(sha256("3"), steps).has_value());
        }
        const Journal again = must_open(folder / "j", "b");
        REQUIRE(again.size() == 2);
        CHECK(again.find(sha256("2")) == nullptr);
        CHECK(*again.find(sha256("3")) == steps);
    }
    for (std::size_t at = 0; at + 1 < line; ++at) {
        std::string changed = whole;
        changed[at] = changed[at] == '0' ? '1' : '0';
        std::ofstream(path, std::ios::binary) << changed;
        const Journal journal = must_open(folder / "j", "b");
        CHECK(journal.find(sha256("1")) == nullptr);
        CHECK(journal.find(sha256("2")) != nullptr);
    }
}

TEST_CASE("one journal has one writer") {
    const TempDir folder;
    const Journal first = must_open(folder / "j", "a");
    const auto second = Journal::open(folder / "j", "a");
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().code == Errc::resource);
    CHECK_FALSE(Journal::open(folder.write("file", "x"), "a").has_value());
}
