// The choice of what to send, on numbers that are worked by hand.
#include "transport/wire_choice.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace hetero::transport;
using doctest::Approx;

namespace {

const WireForm plain{1000, 0, 0};
const WireForm half{500, 2, 1};  // quantize 2 s, dequantize 1 s

}  // namespace

TEST_CASE("one layer passes through the stages, many overlap in them") {
    // 100 bytes/s: the link is the slowest stage, 5 s.
    CHECK(wire_seconds(plain, 1, 100) == Approx(10));
    CHECK(wire_seconds(plain, 4, 100) == Approx(10));
    CHECK(wire_seconds(half, 1, 100) == Approx(2 + 5 + 1));
    CHECK(wire_seconds(half, 2, 100) == Approx((2 + 5 + 1 + 5) / 2.0));
    CHECK(wire_seconds(half, 4, 100) == Approx((2 + 5 + 1 + 3 * 5) / 4.0));
    // 1000 bytes/s: the quantizer is.
    CHECK(wire_seconds(half, 1, 1000) == Approx(3.5));
    CHECK(wire_seconds(half, 4, 1000) == Approx((3.5 + 3 * 2) / 4));
    CHECK(wire_seconds(half, 1'000'000, 1000) == Approx(2).epsilon(1e-4));
    CHECK(wire_seconds(half, 0, 1000) == Approx(3.5));
    CHECK(std::isinf(wire_seconds(half, 4, 0)));
    CHECK(std::isinf(wire_seconds(half, 4, std::nan(""))));
}

TEST_CASE("the break-even link is where both take the same time") {
    CHECK(break_even_bytes_per_s(plain, half, 1) == Approx(500.0 / 3));  // 6 s and 3 + 3 s
    // The quantizer is the slowest stage: 18/7 s and (2 + 9/7 + 1 + 3 * 2) / 4 s.
    CHECK(break_even_bytes_per_s(plain, half, 4) == Approx(1000 / (18.0 / 7)));
    // The link is, as little is saved: 0.2 s and (0.1 + 0.18 + 0.1 + 9 * 0.18) / 10 s.
    CHECK(break_even_bytes_per_s(plain, {900, 0.1, 0.1}, 10) == Approx(5000));
    for (const std::uint64_t layers : {1U, 2U, 7U, 30U, 1000U}) {
        for (const WireForm& form : {half, WireForm{900, 0.1, 0.1}, WireForm{300, 0.01, 4}, WireForm{999, 1, 0}}) {
            const double rate = break_even_bytes_per_s(plain, form, layers);
            CHECK(wire_seconds(form, layers, rate) == Approx(wire_seconds(plain, layers, rate)));
            CHECK(wire_seconds(form, layers, rate / 2) < wire_seconds(plain, layers, rate / 2));
            CHECK(wire_seconds(form, layers, rate * 2) > wire_seconds(plain, layers, rate * 2));
        }
    }
    CHECK(break_even_bytes_per_s(plain, {1000, 0, 0}, 4) == 0);  // nothing is saved
    CHECK(break_even_bytes_per_s(plain, {1001, 1, 1}, 4) == 0);
    CHECK(std::isinf(break_even_bytes_per_s(plain, {500, 0, 0}, 4)));  // for nothing
}

TEST_CASE(
    "46 % saved: each codec has to run at 4.3 times the link's rate in a row, at the link's rate layer by layer") {
    const double bytes = 1e6, rate = 20e6;  // of unquantized bytes, quantized and dequantized
    const WireForm whole{1'000'000, 0, 0}, form{540'000, bytes / rate, bytes / rate};
    CHECK(rate / break_even_bytes_per_s(whole, form, 1) == Approx(2 / 0.46));
    CHECK(rate / break_even_bytes_per_s(whole, form, 1'000'000) == Approx(1).epsilon(1e-4));
}

TEST_CASE("the fastest form is chosen, the plain one among equals") {
    const std::vector<WireForm> forms{plain, half, {250, 9, 1}};
    CHECK(fastest_form(forms, 1, 1000) == 0);  // 1 s; 3.5 s; 10.25 s
    CHECK(fastest_form(forms, 1, 100) == 1);   // 10 s; 8 s; 12.5 s
    CHECK(fastest_form(forms, 1, 10) == 2);    // 100 s; 53 s; 35 s
    CHECK(fastest_form(forms, 1, 0) == 0);     // all infinite
    CHECK(fastest_form(std::vector<WireForm>{plain, plain}, 4, 10) == 0);
    CHECK(fastest_form(std::vector<WireForm>{plain, {500, 3, 2}}, 1, 100) == 0);  // 10 s each
}
