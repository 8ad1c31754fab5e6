// What the inspection of a state reports, against values that were put there.
#include "kv/inspect.h"

#include <cmath>
#include <limits>

#include "unit/kv/states.h"

using namespace hetero;
using namespace hetero::test;
using kv::PartId;

namespace {

quant::Spec spec(const char* text) { return quant::parse_spec(text).value(); }

std::vector<kv::PartInspection> inspect(const kv::State& state, const std::vector<quant::Spec>& codecs = {},
                                        int threads = 1) {
    const auto source = kv::memory_source(std::make_shared<const kv::State>(state), "in.h5");
    auto parts = kv::inspect_state(*source, codecs, threads);
    REQUIRE_MESSAGE(parts.has_value(), parts.error().message);
    return std::move(*parts);
}

// One layer of one sequence, f32, with these values as K.
kv::State state_with(const Plan& plan, const std::vector<float>& k) {
    kv::State state = make_state(plan);
    kv::Tensor& values = state.layers[0][0].k.values;
    REQUIRE(values.bytes.size() == 4 * k.size());
    std::memcpy(values.bytes.data(), k.data(), values.bytes.size());
    return state;
}

Plan plain_plan(std::uint64_t tokens) {
    Plan plan;
    plan.n_layers = 1;
    plan.lengths = {tokens};
    plan.k = plan.v = plain_scheme("f32");
    return plan;
}

}  // namespace

TEST_CASE("ranges, mean square, zeros and the histogram are those of the values") {
    const Plan plan = plain_plan(2);  // [2][2 heads][8]
    std::vector<float> k(32, 0.0F);
    k[0] = -3;      // 2^1
    k[1] = 1;       // 2^0
    k[2] = 0.75F;   // 2^-1
    k[3] = 1e-30F;  // below the lowest
    k[4] = 1e30F;   // above the highest
    k[31] = 1.99F;  // 2^0
    const auto parts = inspect(state_with(plan, k));
    REQUIRE(parts.size() == 2);
    const kv::PartInspection& part = parts[0];
    CHECK(part.part == PartId::k);
    CHECK(part.values == 32);
    CHECK(part.min == -3);
    CHECK(part.max == 1e30F);
    CHECK(part.max_abs == 1e30F);
    CHECK(part.rms == doctest::Approx(1e30 / std::sqrt(32)));
    CHECK(part.zeros == 26);
    const auto count = [&](int exponent) {
        return part.histogram[static_cast<std::size_t>(exponent - kv::lowest_exponent)];
    };
    CHECK(count(1) == 1);
    CHECK(count(0) == 2);
    CHECK(count(-1) == 1);
    CHECK(count(kv::lowest_exponent) == 1);
    CHECK(count(kv::highest_exponent) == 1);
    std::uint64_t all = part.zeros;
    for (const std::uint64_t n : part.histogram) all += n;
    CHECK(all == part.values);
    CHECK(parts[1].max <= 4);
    CHECK(parts[1].min >= -4);
}

TEST_CASE("channels far above the others are named, with their ratio to the middle one") {
    const Plan plan = plain_plan(3);
    std::vector<float> k;
    for (int i = 0; i < 48; ++i) k.push_back(i % 2 == 0 ? 1.0F : -1.0F);
    k[16 + 8 + 5] = -12;  // token 1, head 1, dim 5
    k[2] = 4;             // head 0, dim 2: exactly at the ratio
    k[3] = 3.9F;          // below it
    const auto part = inspect(state_with(plan, k))[0];
    CHECK(part.median_channel == 1);
    CHECK(part.outlier_channels == 2);
    REQUIRE(part.outliers.size() == 2);
    CHECK(part.outliers[0].head == 1);
    CHECK(part.outliers[0].dim == 5);
    CHECK(part.outliers[0].max_abs == 12);
    CHECK(part.outliers[0].ratio == 12);
    CHECK(part.outliers[1].head == 0);
    CHECK(part.outliers[1].dim == 2);
    CHECK(part.outliers[1].ratio == 4);
}

TEST_CASE("what is not finite is counted and placed, and then no codec is tried") {
    Plan plan = plain_plan(6);
    plan.shapes = {{kv::LayerKind::swa, 3}};  // stored: tokens 3 to 5
    std::vector<float> k(48, 1.0F);
    k[16 + 8 + 3] = std::numeric_limits<float>::infinity();  // token 4, head 1, dim 3
    k[32] = std::numeric_limits<float>::quiet_NaN();
    const auto parts = inspect(state_with(plan, k), {spec("int8:token")});
    CHECK(parts[0].nan == 1);
    CHECK(parts[0].infinite == 1);
    REQUIRE(parts[0].first_nonfinite.has_value());
    CHECK(parts[0].first_nonfinite->token == 4);
    CHECK(parts[0].first_nonfinite->head == 1);
    CHECK(parts[0].first_nonfinite->dim == 3);
    CHECK(parts[0].max_abs == 1);
    CHECK(parts[0].codecs.empty());
    CHECK(parts[1].codecs.size() == 1);
}

TEST_CASE("codecs lose what a conversion loses, whatever the number of threads") {
    Plan plan;
    plan.lengths = {40, 7};
    plan.head_dim_k = plan.head_dim_v = 32;
    const kv::State state = make_state(plan);
    const std::vector<quant::Spec> codecs{spec("f32"), spec("int8:token"), spec("int4:token"), spec("int8:token:g33"),
                                          spec("had:int4:channel:g32:asym")};
    const auto one = inspect(state, codecs), three = inspect(state, codecs, 3);
    REQUIRE(one.size() == 2 * 2 * 2);
    for (std::size_t p = 0; p < one.size(); ++p) {
        REQUIRE(one[p].codecs.size() == codecs.size());
        for (std::size_t c = 0; c < codecs.size(); ++c) {
            CHECK(one[p].codecs[c].relative_rms == three[p].codecs[c].relative_rms);
            CHECK(one[p].codecs[c].max_abs == three[p].codecs[c].max_abs);
        }
        CHECK(one[p].codecs[0].relative_rms == 0);
        CHECK(one[p].codecs[0].bits_per_value == 32);
        CHECK(one[p].codecs[1].bits_per_value == 8.5);
        CHECK(one[p].codecs[1].max_abs <= 4.0 / 127 / 2 * 1.01);
        CHECK(one[p].codecs[1].relative_rms > 0);
        CHECK(one[p].codecs[2].relative_rms > 10 * one[p].codecs[1].relative_rms);
        CHECK(one[p].codecs[3].refused.find("33") != std::string::npos);
        CHECK(one[p].codecs[4].refused.empty());
    }
}

TEST_CASE("latents are reported as what they are, and a state without tokens too") {
    Plan plan = plain_plan(5);
    plan.n_kv_heads = 1;
    plan.shapes = {{kv::LayerKind::mla, 0}};
    const auto parts = inspect(make_state(plan), {spec("int8:token")});
    CHECK(parts[0].kind == kv::LayerKind::mla);
    CHECK(parts[0].values == 5 * 8);
    CHECK(parts[0].codecs.size() == 1);
    Plan empty = plain_plan(0);
    empty.logits = false;
    const auto none = inspect(make_state(empty), {spec("int8:token")});
    CHECK(none[0].values == 0);
    CHECK(none[0].rms == 0);
    CHECK(none[0].codecs.empty());
}
