#include "base/units.h"

#include <doctest/doctest.h>

#include <limits>

using namespace hetero;

TEST_CASE("sizes") {
    struct Case {
        const char* text;
        std::uint64_t bytes;
    };
    for (const Case& c : {Case{"0", 0},
                          {"4096", 4096},
                          {"12B", 12},
                          {"64K", 64'000},
                          {"64KB", 64'000},
                          {"64Ki", 65536},
                          {"64KiB", 65536},
                          {"3M", 3'000'000},
                          {"3Mi", 3U << 20},
                          {"2G", 2'000'000'000},
                          {"2Gi", 2ULL << 30},
                          {"1T", 1'000'000'000'000},
                          {"1Ti", 1ULL << 40},
                          {"18446744073709551615", std::numeric_limits<std::uint64_t>::max()},
                          {"16777215Ti", 16777215ULL << 40}}) {
        const auto size = parse_size_bytes(c.text);
        REQUIRE_MESSAGE(size.has_value(), c.text);
        CHECK_MESSAGE(*size == c.bytes, c.text);
    }
    for (const char* text : {"",           "B",
                             "K",          "Ki",
                             "-1",         "+1",
                             " 1",         "1 ",
                             "1.5G",       "1,5G",
                             "0x10",       "1k",
                             "1KK",        "1BB",
                             "1iB",        "1e3",
                             "K4",         "18446744073709551616",
                             "16777216Ti", "18446744073709552K"}) {
        const auto size = parse_size_bytes(text);
        REQUIRE_MESSAGE(!size.has_value(), text);
        CHECK(size.error().code == Errc::usage);
        CHECK_MESSAGE(size.error().message.find(fmt::format("'{}'", text)) != std::string::npos, size.error().message);
    }
}

TEST_CASE("durations") {
    CHECK(parse_duration_s("250ms").value() == doctest::Approx(0.25));
    CHECK(parse_duration_s("1.5s").value() == 1.5);
    CHECK(parse_duration_s("2m").value() == 120);
    CHECK(parse_duration_s("7").value() == 7);
    CHECK(parse_duration_s("0").value() == 0);
    CHECK(parse_duration_s("1000000").value() == 1e6);
    for (const char* text :
         {"", "s", "ms", "m", "-1s", "1h", "1,5s", "nan", "inf", "nans", "1000001", "16667m", "1 s", "1e7"}) {
        const auto duration = parse_duration_s(text);
        REQUIRE_MESSAGE(!duration.has_value(), text);
        CHECK(duration.error().code == Errc::usage);
    }
}

TEST_CASE("finite numbers fill the whole text") {
    CHECK(parse_finite("0.01").value() == 0.01);
    CHECK(parse_finite("1e-2").value() == 0.01);
    CHECK(parse_finite("-3").value() == -3);
    CHECK(parse_finite("1.7976931348623157e308").value() == std::numeric_limits<double>::max());
    for (const char* text : {"", "nan", "NaN", "-nan", "inf", "-inf", "infinity", "0,01", "1e-2x", "1e400", " 1", "1 ",
                             "0x1p3", "--1", "."}) {
        CHECK_MESSAGE(!parse_finite(text).has_value(), text);
    }
}

TEST_CASE("integers") {
    CHECK(parse_integer("-9223372036854775808").value() == std::numeric_limits<std::int64_t>::min());
    CHECK(parse_integer("9223372036854775807").value() == std::numeric_limits<std::int64_t>::max());
    for (const char* text : {"", "-", "+1", "1.0", "1e3", "9223372036854775808", "0x10", " 1", "1 ", "1,000"}) {
        const auto integer = parse_integer(text);
        REQUIRE_MESSAGE(!integer.has_value(), text);
        CHECK(integer.error().code == Errc::usage);
    }
}

TEST_CASE("sizes for people") {
    CHECK(format_bytes(0) == "0 B");
    CHECK(format_bytes(1023) == "1023 B");
    CHECK(format_bytes(1024) == "1.0 KiB");
    CHECK(format_bytes(23'552) == "23.0 KiB");
    CHECK(format_bytes((1U << 20) - 1) == "1.0 MiB");
    CHECK(format_bytes(98'362'432) == "93.8 MiB");
    CHECK(format_bytes(std::numeric_limits<std::uint64_t>::max()) == "16777216.0 TiB");
}
