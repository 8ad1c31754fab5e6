#include "kv/compare.h"

#include <cmath>
#include <limits>

#include "states.h"

using namespace hetero;
using namespace hetero::test;

namespace {

Result<kv::Comparison> compare(const kv::State& a, const kv::State& b, bool allow_equal_nan = false) {
    const auto x = kv::memory_source(std::make_shared<const kv::State>(a), "a");
    const auto y = kv::memory_source(std::make_shared<const kv::State>(b), "b");
    return kv::compare_states(*x, *y, allow_equal_nan);
}

kv::Comparison compared(const kv::State& a, const kv::State& b, bool allow_equal_nan = false) {
    auto result = compare(a, b, allow_equal_nan);
    REQUIRE_MESSAGE(result.has_value(), result.error().message);
    return std::move(*result);
}

kv::State f32_state() {
    Plan plan;
    plan.k = plan.v = plain_scheme("f32");
    return make_state(plan);
}

// Element [token][head][dim] of an f32 part of sequence 0; heads 2, dims 8.
float get(const kv::State& state, std::uint32_t layer, kv::PartId id, std::size_t index) {
    float value = 0;
    std::memcpy(&value, state.layers[0][layer].part(id).values.bytes.data() + 4 * index, 4);
    return value;
}
void set(kv::State& state, std::uint32_t layer, kv::PartId id, std::size_t index, float value) {
    std::memcpy(state.layers[0][layer].part(id).values.bytes.data() + 4 * index, &value, 4);
}
constexpr std::size_t at(std::size_t token, std::size_t head, std::size_t dim) { return (token * 2 + head) * 8 + dim; }

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("equal states differ in nothing") {
    const kv::State a = f32_state();
    const auto result = compared(a, a);
    CHECK(result.mismatches.empty());
    CHECK(result.max_abs == 0);
    CHECK(result.p99_abs == 0);
    CHECK(!result.first_difference);
    CHECK(!result.first_nonfinite);
    REQUIRE(result.parts.size() == 4);
    for (const auto& part : result.parts) {
        CHECK(part.bit_equal);
        CHECK(part.elements == 80);
        CHECK(part.mean_abs == 0);
        CHECK(part.relative_l2 == 0);
        CHECK(part.cosine == doctest::Approx(1).epsilon(1e-12));
    }
    CHECK(result.parts[1].part == kv::PartId::v);
    CHECK(result.parts[2].layer == 1);
}

TEST_CASE("one difference: its size, its place, and the figures of its part") {
    const kv::State a = f32_state();
    kv::State b = a;
    const std::size_t index = at(3, 1, 5);
    const float before = get(a, 1, kv::PartId::v, index);
    set(b, 1, kv::PartId::v, index, before + 0.25F);
    const double delta = std::abs(double{before + 0.25F} - before);
    const auto result = compared(a, b);
    CHECK(result.max_abs == delta);
    CHECK(result.worst.layer == 1);
    CHECK(result.worst.part == kv::PartId::v);
    CHECK(result.worst.token == 3);
    CHECK(result.worst.head == 1);
    CHECK(result.worst.dim == 5);
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->token == 3);
    const auto& part = result.parts[3];
    CHECK(!part.bit_equal);
    CHECK(part.max_abs == delta);
    CHECK(part.mean_abs == doctest::Approx(delta / 80));
    double aa = 0, bb = 0, ab = 0;
    for (std::size_t i = 0; i < 80; ++i) {
        const double x = get(a, 1, kv::PartId::v, i), y = get(b, 1, kv::PartId::v, i);
        aa += x * x, bb += y * y, ab += x * y;
    }
    CHECK(part.relative_l2 == doctest::Approx(delta / std::sqrt(aa)));
    CHECK(part.cosine == doctest::Approx(ab / std::sqrt(aa * bb)).epsilon(1e-12));
    CHECK(result.parts[2].bit_equal);
}

TEST_CASE("the first difference is K before V, and in order of tokens") {
    const kv::State a = f32_state();
    kv::State b = a;
    set(b, 0, kv::PartId::v, at(0, 0, 0), 100);
    set(b, 0, kv::PartId::k, at(4, 0, 0), 100);
    set(b, 0, kv::PartId::k, at(1, 1, 7), 9);
    const auto result = compared(a, b);
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->part == kv::PartId::k);
    CHECK(result.first_difference->token == 1);
    CHECK(result.first_difference->head == 1);
    CHECK(result.first_difference->dim == 7);
}

TEST_CASE("NaN never passes, nor infinity on one side") {
    const kv::State a = f32_state();
    const std::size_t index = at(2, 0, 6);
    const auto check = [&](float left, float right, std::string_view what, bool allow) {
        kv::State x = a, y = a;
        set(x, 1, kv::PartId::k, index, left);
        set(y, 1, kv::PartId::k, index, right);
        const auto result = compared(x, y, allow);
        if (what.empty()) {
            CHECK(!result.first_nonfinite);
            CHECK(result.max_abs == 0);
            return;
        }
        REQUIRE(result.first_nonfinite.has_value());
        CHECK(result.nonfinite_what == what);
        CHECK(result.first_nonfinite->layer == 1);
        CHECK(result.first_nonfinite->token == 2);
        CHECK(result.first_nonfinite->dim == 6);
        CHECK(result.max_abs == std::numeric_limits<double>::infinity());  // exceeds every epsilon
    };
    check(not_a_number, 1, "NaN in a", false);
    check(1, not_a_number, "NaN in b", false);
    check(1, not_a_number, "NaN in b", true);
    check(not_a_number, not_a_number, "NaN in both", false);
    check(not_a_number, not_a_number, "", true);
    check(not_a_number, inf, "NaN in a", true);
    check(inf, 1, "infinity in a", false);
    check(1, -inf, "infinity in b", true);
    check(inf, -inf, "infinities of opposite sign", true);
    check(inf, inf, "", false);
    check(-inf, -inf, "", false);
}

TEST_CASE("enough NaN reach the 99th percentile") {
    const kv::State a = f32_state();
    kv::State b = a;
    for (std::size_t i = 0; i < 8; ++i) set(b, 0, kv::PartId::k, i, not_a_number);  // 8 of 320
    CHECK(compared(a, b).p99_abs == std::numeric_limits<double>::infinity());
}

TEST_CASE("zeros of both signs are equal numbers and different bits") {
    kv::State a = f32_state();
    set(a, 0, kv::PartId::k, 0, 0.0F);
    kv::State b = a;
    set(b, 0, kv::PartId::k, 0, -0.0F);
    const auto result = compared(a, b);
    CHECK(result.max_abs == 0);
    CHECK(!result.first_difference);
    CHECK(!result.parts[0].bit_equal);
    CHECK(result.parts[1].bit_equal);
}

TEST_CASE("parts that are all zero") {
    kv::State a = f32_state();
    for (std::size_t i = 0; i < 80; ++i) set(a, 0, kv::PartId::k, i, 0);
    auto result = compared(a, a);
    CHECK(result.parts[0].cosine == 1);
    CHECK(result.parts[0].relative_l2 == 0);
    kv::State b = a;
    set(b, 0, kv::PartId::k, 0, 1);
    result = compared(a, b);
    CHECK(result.parts[0].cosine == 0);
    CHECK(result.parts[0].relative_l2 == std::numeric_limits<double>::infinity());
}

TEST_CASE("the 99th percentile is exact: nearest rank over all parts") {
    for (const std::uint64_t length : {1, 2, 5, 6, 7, 25, 50}) {  // 64 values a token: ranks on and off whole hundreds
        Plan plan;
        plan.k = plan.v = plain_scheme("f32");
        plan.lengths = {length};
        const kv::State a = make_state(plan);
        for (const float scale : {1e-30F, 1e-3F, 1.0F, 3e30F}) {
            for (const std::size_t every : {1U, 3U, 90U, 200U}) {  // how many differ at all
                kv::State b = a;
                std::vector<double> differences;
                for (std::uint32_t layer = 0; layer < 2; ++layer) {
                    for (const auto id : {kv::PartId::k, kv::PartId::v}) {
                        for (std::size_t i = 0; i < 16 * length; ++i) {
                            const float x = get(a, layer, id, i);
                            const std::size_t place = layer * 1000 + i + 500 * static_cast<std::size_t>(id);
                            const float y = place % every == 0 ? x + scale * value_at(place) : x;
                            set(b, layer, id, i, y);
                            differences.push_back(std::abs(double{x} - double{y}));
                        }
                    }
                }
                std::sort(differences.begin(), differences.end());
                const std::size_t rank = (99 * differences.size() + 99) / 100;
                CHECK(compared(a, b).p99_abs == differences[rank - 1]);
            }
        }
    }
}

TEST_CASE("different codecs are compared by what they stand for") {
    Plan plan;
    const kv::State a = make_state(plan);
    plan.k = int8_scheme(quant::Axis::token, 0, true);
    const kv::State b = make_state(plan);
    const auto result = compared(a, b);
    CHECK(result.parts[1].bit_equal);
    CHECK(result.parts[0].max_abs > 0);
    CHECK(result.parts[0].max_abs <= 4.0 / 127 / 2 * 1.01 + 4.0 / 2048);  // half a step, and the rounding of a to f16
}

TEST_CASE("identities that differ are listed, and equal shapes compared all the same") {
    const kv::State a = f32_state();
    kv::State b = a;
    b.header.identity.rope_theta = 100000;
    b.header.sequences[0].tokens[4] = 49;
    const auto result = compared(a, b);
    REQUIRE(result.mismatches.size() == 2);
    CHECK(result.mismatches[0].field == "rope_theta");
    CHECK(result.mismatches[1].field == "tokens[4]");
    CHECK(result.mismatches[1].left == "28");
    CHECK(result.mismatches[1].right == "49");
    CHECK(result.parts.size() == 4);
}

TEST_CASE("unequal shapes are not comparable") {
    const auto refused = [](const kv::State& a, const kv::State& b, std::string_view part) {
        const auto result = compare(a, b);
        REQUIRE(!result.has_value());
        CHECK(result.error().code == Errc::bad_input);
        CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, result.error().message);
    };
    const kv::State a = make_state({});
    Plan plan;
    plan.lengths = {4};
    refused(a, make_state(plan), "5 tokens and 4");
    plan = {};
    plan.n_layers = 3;
    refused(a, make_state(plan), "n_layers is 2 and 3");
    plan = {};
    plan.head_dim_v = 16;
    refused(a, make_state(plan), "head_dim_v is 8 and 16");
    plan = {};
    plan.lengths = {5, 5};
    refused(a, make_state(plan), "1 sequences and 2");
    refused(make_state(plan), a, "no sequence prompt 1");
}

TEST_CASE("sequences are paired by id, in whatever order they are stored") {
    Plan plan;
    plan.lengths = {3, 5, 2};
    const kv::State a = make_state(plan);
    kv::State b = a;
    std::rotate(b.header.sequences.begin(), b.header.sequences.begin() + 1, b.header.sequences.end());
    std::rotate(b.layers.begin(), b.layers.begin() + 1, b.layers.end());
    const auto result = compared(a, b);
    CHECK(result.mismatches.empty());
    CHECK(result.max_abs == 0);
    REQUIRE(result.parts.size() == 12);
    for (const auto& part : result.parts) CHECK(part.bit_equal);
    CHECK(result.parts[4].sequence == "prompt 1");
}

TEST_CASE("what the first token is chosen from is compared too") {
    kv::State a = f32_state();
    const std::size_t vocab = a.header.identity.vocab_size;
    a.header.sequences[0].logits.assign(vocab, 0.0F);
    kv::State b = a;
    b.header.sequences[0].logits[3] = 2;
    auto result = compared(a, b);
    CHECK(result.logits_max_abs == 2);
    const double n = static_cast<double>(vocab);
    CHECK(result.logits_max_abs_dp == doctest::Approx(std::exp(2.0) / (std::exp(2.0) + n - 1) - 1 / n));
    CHECK(result.logits_worst == "sequence " + a.header.sequences[0].id + ", token 3");
    b.header.sequences[0].logits = a.header.sequences[0].logits;
    b.header.sequences[0].pending_token = 1;
    a.header.sequences[0].pending_token = 2;
    result = compared(a, b);
    CHECK(result.logits_max_abs == 0);
    REQUIRE(result.mismatches.size() == 1);
    CHECK(result.mismatches[0].left == "2");
    CHECK(result.mismatches[0].right == "1");
}

TEST_CASE("a state whose logits are not numbers is refused by whoever meets it") {
    kv::State a = f32_state();
    a.header.sequences[0].logits.assign(a.header.identity.vocab_size, 0.0F);
    CHECK(kv::check_header(a.header).has_value());
    for (const float odd : {not_a_number, inf}) {
        a.header.sequences[0].logits[1] = odd;
        const Status status = kv::check_header(a.header);
        REQUIRE_FALSE(status.has_value());
        CHECK(status.error().code == Errc::bad_input);
        CHECK(status.error().message.find("logits[1]") != std::string::npos);
    }
}

TEST_CASE("figures of each head: size, place, and the worst channel") {
    const kv::State a = f32_state();
    kv::State b = a;
    // Head 0: one large error. Head 1: errors in every channel, those of dim 6 largest.
    set(b, 1, kv::PartId::k, at(4, 0, 2), get(a, 1, kv::PartId::k, at(4, 0, 2)) - 2);
    double squares = 0, squares_a = 0, channel_a = 0;
    for (std::size_t token = 0; token < 5; ++token) {
        for (std::size_t dim = 0; dim < 8; ++dim) {
            const float x = get(a, 1, kv::PartId::k, at(token, 1, dim)), error = dim == 6 ? 0.5F : 0.25F;
            set(b, 1, kv::PartId::k, at(token, 1, dim), x + error);
            const double d = static_cast<double>(x + error) - x;
            squares += d * d;
            squares_a += static_cast<double>(x) * x;
            if (dim == 6) channel_a += static_cast<double>(x) * x;
        }
    }
    const auto part = compared(a, b).parts[2];
    REQUIRE(part.heads.size() == 2);
    const kv::HeadDifference &first = part.heads[0], &second = part.heads[1];
    CHECK(first.head == 0);
    CHECK(first.max_abs == doctest::Approx(2).epsilon(1e-6));
    CHECK(first.worst_token == 4);
    CHECK(first.worst_dim == 2);
    CHECK(first.rms == doctest::Approx(2 / std::sqrt(40.0)).epsilon(1e-6));
    CHECK(first.worst_channel == 2);
    CHECK(first.channel_rms == doctest::Approx(2 / std::sqrt(5.0)).epsilon(1e-6));
    CHECK(second.head == 1);
    CHECK(second.max_abs == doctest::Approx(0.5).epsilon(1e-6));
    CHECK(second.worst_dim == 6);
    CHECK(second.rms == doctest::Approx(std::sqrt(squares / 40)).epsilon(1e-6));
    CHECK(second.relative_l2 == doctest::Approx(std::sqrt(squares / squares_a)).epsilon(1e-6));
    CHECK(second.worst_channel == 6);
    CHECK(second.channel_rms == doctest::Approx(0.5).epsilon(1e-6));
    CHECK(second.channel_relative_l2 == doctest::Approx(std::sqrt(5 * 0.25 / channel_a)).epsilon(1e-6));
    CHECK(part.rms == doctest::Approx(std::sqrt((squares + 4) / 80)).epsilon(1e-6));
    CHECK(part.max_abs == first.max_abs);
    CHECK(compared(a, a).parts[2].heads[1].cosine == doctest::Approx(1));
}
