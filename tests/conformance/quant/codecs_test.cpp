// What every codec of the registry must satisfy, with every set of parameters that it takes.
#include <algorithm>
#include <map>
#include <random>

#include "quant/rotation.h"
#include "quant/spec.h"
#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using quant::Axis;
using quant::Codec;
using quant::DType;
using quant::Params;
using quant::Shape;

namespace {

std::vector<Params> all_params(const Codec& codec, std::uint32_t head_dim) {
    std::vector<Params> out;
    const auto offer = [&](const Params& params) {
        const bool listed = std::find(out.begin(), out.end(), params) != out.end();
        if (!listed && codec.check(params, head_dim)) out.push_back(params);
    };
    offer(codec.default_params());
    for (const Axis axis : {Axis::token, Axis::channel, Axis::head, Axis::tensor}) {
        for (const std::uint32_t group : {0U, 7U, 16U, 32U}) {
            for (const bool symmetric : {true, false}) {
                for (const DType scale : {DType::f16, DType::f32}) {
                    for (const bool hadamard : {false, true}) offer({axis, group, symmetric, scale, hadamard});
                }
            }
        }
    }
    return out;
}

// Values of another kind in each head of each token, so that every group of every shape meets each kind.
std::vector<float> adversarial(const Shape& shape, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(shape.elements());
    for (std::size_t row = 0; row < shape.tokens * shape.heads; ++row) {
        const float size = std::ldexp(1.0F, static_cast<int>(random() % 16) - 8);
        for (std::size_t d = 0; d < shape.head_dim; ++d) {
            float& value = x[row * shape.head_dim + d];
            switch ((row + seed) % 9) {
                case 0:
                    value = 1.1F * size;
                    break;
                case 1:
                    value = d == row % shape.head_dim ? 1e4F : normal(random);
                    break;
                case 2:
                    value = normal(random) * 1e-40F;
                    break;
                case 3:
                    value = d % 2 == 0 ? size : -size;
                    break;
                case 4:
                    value = d % 2 == 0 ? 0.0F : -0.0F;
                    break;
                case 5:
                    value = 100 + normal(random) * 0.01F;
                    break;
                case 6:
                    value = normal(random) * std::ldexp(1.0F, -static_cast<int>(d % 30));
                    break;
                case 7:
                    value = std::round(normal(random) * 20) * size / 2;
                    break;
                default:
                    value = normal(random) * size;
                    break;
            }
        }
    }
    return x;
}

// A number for the group of each element: what an error bound speaks of.
std::uint64_t group_of(const Codec& codec, const Params& p, const Shape& shape, std::size_t i) {
    const std::size_t dim = i % shape.head_dim, row = i / shape.head_dim, head = row % shape.heads,
                      token = row / shape.heads;
    if (!codec.has_scale()) return codec.quantized() ? i / 32 : i;  // blocks of 32; or each for itself
    const std::size_t tokens = p.group == 0 ? shape.tokens : p.group;
    switch (p.axis) {
        case Axis::token:
            return row * shape.head_dim + dim / (p.group == 0 ? shape.head_dim : p.group);
        case Axis::channel:
            return (token / tokens * shape.heads + head) * shape.head_dim + dim;
        case Axis::head:
            return token / tokens * shape.heads + head;
        default:
            return token / tokens;
    }
}

struct Extremes {
    float min = std::numeric_limits<float>::infinity(), max = -min;
};

std::map<std::uint64_t, Extremes> extremes_of(const Codec& codec, const Params& p, const Shape& shape,
                                              const std::vector<float>& x) {
    std::map<std::uint64_t, Extremes> groups;
    for (std::size_t i = 0; i < x.size(); ++i) {
        Extremes& group = groups[group_of(codec, p, shape, i)];
        group.min = std::min(group.min, x[i]);
        group.max = std::max(group.max, x[i]);
    }
    return groups;
}

std::vector<float> rotated(const Params& p, const Shape& shape, std::vector<float> x) {
    if (p.hadamard) quant::rotate(x, x, shape.head_dim);
    return x;
}

Params unrotated(Params params) {
    params.hadamard = false;
    return params;
}

template <class Body>
void for_each_codec(std::initializer_list<std::uint32_t> head_dims, Body body) {
    for (const Codec* codec : quant::codecs()) {
        int variants = 0;
        for (const std::uint32_t head_dim : head_dims) {
            for (const Params& params : all_params(*codec, head_dim)) {
                const std::string spec = quant::to_text({std::string(codec->name()), params});
                CAPTURE(spec);
                CAPTURE(head_dim);
                ++variants;
                body(*codec, params, head_dim);
            }
        }
        CHECK(variants > 0);
    }
}

}  // namespace

TEST_CASE("sizes are those announced, and the error of every value is within the bound of its group") {
    for_each_codec({64, 80, 96, 128}, [](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        for (const std::uint64_t tokens : {0, 1, 15, 16, 17, 35}) {
            CAPTURE(tokens);
            const Shape shape{tokens, 3, head_dim};
            const std::vector<float> x = adversarial(shape, head_dim + static_cast<unsigned>(tokens));
            const std::vector<float> stored = rotated(p, shape, x);
            const auto groups = extremes_of(codec, p, shape, stored);
            bool storable = true;
            std::map<std::uint64_t, double> bounds;
            for (const auto& [id, group] : groups) {
                bounds[id] = codec.error_bound(p, group.min, group.max);
                storable = storable && std::isfinite(bounds[id]);
            }
            const auto encoded = codec.encode(p, shape, x);
            CHECK_MESSAGE(encoded.has_value() == storable, (encoded ? "stored" : encoded.error().message));
            if (!encoded) continue;
            const quant::EncodedBytes bytes = codec.bytes(p, shape);
            CHECK(bytes.values == encoded->values.size());
            CHECK(bytes.scale == encoded->scale.size());
            CHECK(bytes.zero == encoded->zero.size());
            const auto extents = codec.scale_shape(p, shape);
            CHECK(bytes.scale == extents[0] * extents[1] * extents[2] * (p.scale_dtype == DType::f16 ? 2 : 4));
            CHECK(bytes.values == kernels::dtype_bytes(codec.value_dtype(p),
                                                       shape.tokens * shape.heads * codec.row_elements(p, head_dim)));
            const std::vector<float> back = decode(codec.name(), unrotated(p), shape, *encoded);
            int beyond = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double error = std::fabs(static_cast<double>(stored[i]) - back[i]);
                beyond += !(error <= bounds[group_of(codec, p, shape, i)]) ? 1 : 0;
            }
            CHECK(beyond == 0);
        }
    });
}

TEST_CASE("a rotated head is stored as the head that was rotated before, and rotated back") {
    int rotations = 0;
    for_each_codec({64, 80}, [&](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        if (!p.hadamard) return;
        ++rotations;
        const Shape shape{33, 2, head_dim};
        std::vector<float> x = adversarial(shape, 7);
        for (float& value : x) value = std::clamp(value, -500.0F, 500.0F);
        const auto encoded = encode(codec.name(), p, shape, x);
        const auto plain = encode(codec.name(), unrotated(p), shape, rotated(p, shape, x));
        CHECK(encoded.values == plain.values);
        CHECK(encoded.scale == plain.scale);
        CHECK(encoded.zero == plain.zero);
        CHECK(decode(codec.name(), p, shape, encoded) ==
              rotated(p, shape, decode(codec.name(), unrotated(p), shape, plain)));
    });
    CHECK(rotations > 50);
    Params p;
    p.hadamard = true;
    const Status refused = codec("int8").check(p, 65);
    REQUIRE_FALSE(refused.has_value());
    CHECK(contains(refused.error().message, "65"));
}

TEST_CASE("ranges of tokens, cut where they may be, give the bytes of the whole") {
    int cut = 0;
    for_each_codec({64, 96}, [&](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        const std::uint64_t step = codec.token_step(p);
        if (step == 0) return;
        ++cut;
        const Shape shape{70, 2, head_dim};
        std::vector<float> x = adversarial(shape, 23);
        for (float& value : x) value = std::clamp(value, -90.0F, 90.0F);
        const auto whole = codec.encode(p, shape, x);
        if (!whole) return;  // what cannot be stored is another test's
        quant::Encoded joined;
        const std::uint64_t length = (20 + step - 1) / step * step;
        std::vector<float> back(x.size());
        for (std::uint64_t first = 0; first < shape.tokens; first += length) {
            const Shape range{std::min<std::uint64_t>(length, shape.tokens - first), 2, head_dim, first};
            const std::size_t begin = first * 2 * head_dim;
            const std::span<const float> part = std::span(x).subspan(begin, range.elements());
            const auto encoded = codec.encode(p, range, part);
            REQUIRE(encoded.has_value());
            joined.values.insert(joined.values.end(), encoded->values.begin(), encoded->values.end());
            joined.scale.insert(joined.scale.end(), encoded->scale.begin(), encoded->scale.end());
            joined.zero.insert(joined.zero.end(), encoded->zero.begin(), encoded->zero.end());
            REQUIRE(codec.decode(p, range, encoded->values, encoded->scale, encoded->zero,
                                 std::span(back).subspan(begin, range.elements())));
        }
        CHECK(joined.values == whole->values);
        CHECK(joined.scale == whole->scale);
        CHECK(joined.zero == whole->zero);
        CHECK(back == decode(codec.name(), p, shape, *whole));
    });
    CHECK(cut > 100);
}

TEST_CASE("zeros come back as zeros, among groups of other values too") {
    for_each_codec({64, 128}, [](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        const Shape shape{40, 2, head_dim};
        std::vector<float> x(shape.elements());
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 0.0F : -0.0F;
        for (float value : decode(codec.name(), p, shape, encode(codec.name(), p, shape, x))) REQUIRE(value == 0);
        // the first 32 tokens are zero: whole groups of every kind but those of all tokens
        if (codec.has_scale() && p.axis != Axis::token && p.group == 0) return;
        const std::size_t zeros = std::size_t{28} * 2 * head_dim;
        for (std::size_t i = std::size_t{32} * 2 * head_dim; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6;
        const auto back = decode(codec.name(), p, shape, encode(codec.name(), p, shape, x));
        CHECK(std::all_of(back.begin(), back.begin() + static_cast<std::ptrdiff_t>(zeros),
                          [](float v) { return v == 0; }));
        CHECK(
            std::any_of(back.begin() + static_cast<std::ptrdiff_t>(zeros), back.end(), [](float v) { return v != 0; }));
    });
}

TEST_CASE("NaN and infinity are refused with the place of the first") {
    for_each_codec({64, 96}, [](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        const Shape shape{10, 2, head_dim, 1000};
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()}) {
            std::vector<float> x(shape.elements(), 0.5F);
            x[(5 * 2 + 1) * head_dim + 7] = bad;
            x[(8 * 2 + 0) * head_dim + 3] = bad;
            CHECK(contains(refusal(codec.name(), p, shape, x), "token 1005, head 1, dim 7: value "));
        }
    });
}

TEST_CASE("sizes that do not fit are refused, by every codec") {
    for_each_codec({64}, [](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        const Shape shape{33, 2, head_dim};
        auto encoded = encode(codec.name(), p, shape, std::vector<float>(shape.elements(), 0.25F));
        std::vector<float> out(shape.elements());
        const auto status = [&](const Shape& other, std::size_t values, std::size_t scale, std::size_t zero) {
            encoded.values.resize(values);
            encoded.scale.resize(scale);
            encoded.zero.resize(zero);
            return codec.decode(p, other, encoded.values, encoded.scale, encoded.zero, out).has_value();
        };
        const quant::EncodedBytes size = codec.bytes(p, shape);
        CHECK(status(shape, size.values, size.scale, size.zero));
        CHECK_FALSE(status(shape, size.values - 1, size.scale, size.zero));
        CHECK_FALSE(status(shape, size.values, size.scale + 1, size.zero));
        CHECK_FALSE(status(shape, size.values, size.scale, size.zero + 1));
        CHECK_FALSE(status({34, 2, head_dim}, size.values, size.scale, size.zero));
        CHECK_FALSE(status({1ULL << 62, 4, head_dim}, size.values, size.scale, size.zero));
    });
}

TEST_CASE("floats as they lie in memory give the codes of their values, and the error of what was stored") {
    const auto largest = [](const std::vector<float>& a, const std::vector<float>& b) {
        float worst = 0;
        for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
        return worst;
    };
    int tried = 0;
    for_each_codec({64, 80}, [&](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        const Shape shape{37, 2, head_dim};
        for (const DType type : {DType::f16, DType::bf16, DType::f32}) {
            const std::string_view name = kernels::dtype_info(type).name;
            CAPTURE(name);
            std::vector<float> x = adversarial(shape, 31);
            for (float& value : x) value = std::clamp(value, -90.0F, 90.0F);
            const auto floats = encode(name, {}, shape, x);
            x = decode(name, {}, shape, floats);
            const auto whole = codec.encode(p, shape, x);
            if (!whole) continue;  // what cannot be stored is another test's
            ++tried;
            const std::vector<float> back = decode(codec.name(), p, shape, *whole);
            quant::Encoded out = *whole;
            for (auto* array : {&out.values, &out.scale, &out.zero})
                std::fill(array->begin(), array->end(), std::byte{0x5A});
            const quant::EncodedSpans spans{out.values, out.scale, out.zero};
            float error = 0;
            REQUIRE(codec.encode_from(p, shape, type, floats.values, spans, &error));
            CHECK(out.values == whole->values);
            CHECK(out.scale == whole->scale);
            CHECK(out.zero == whole->zero);
            CHECK(error == largest(back, x));

            const auto rounded = encode(name, {}, shape, back);
            std::vector<std::byte> bytes(floats.values.size());
            error = 0;
            REQUIRE(codec.decode_to(p, shape, out.values, out.scale, out.zero, {type, bytes}, &error));
            CHECK(bytes == rounded.values);
            CHECK(error == largest(decode(name, {}, shape, rounded), back));

            const quant::EncodedSpans streamed{out.values, out.scale, out.zero, true};
            std::fill(out.values.begin(), out.values.end(), std::byte{0x5A});
            REQUIRE(codec.encode_from(p, shape, type, floats.values, streamed, nullptr));
            CHECK(out.values == whole->values);
            std::fill(bytes.begin(), bytes.end(), std::byte{0x5A});
            REQUIRE(codec.decode_to(p, shape, out.values, out.scale, out.zero, {type, bytes, true}, nullptr));
            CHECK(bytes == rounded.values);

            bytes.push_back({});
            const auto longer = codec.encode_from(p, shape, type, bytes, spans, nullptr),
                       wider = codec.decode_to(p, shape, out.values, out.scale, out.zero, {type, bytes}, nullptr);
            REQUIRE_FALSE(longer.has_value());
            CHECK(longer.error().code == Errc::bad_input);
            REQUIRE_FALSE(wider.has_value());
            CHECK(wider.error().code == Errc::bad_input);
        }
    });
    CHECK(tried > 300);
}

TEST_CASE("stored scales that no encoder writes are refused") {
    for_each_codec({64}, [](const Codec& codec, const Params& p, std::uint32_t head_dim) {
        if (!codec.has_scale()) return;
        const Shape shape{33, 2, head_dim};
        auto encoded = encode(codec.name(), p, shape, std::vector<float>(shape.elements(), 0.25F));
        std::vector<float> out(shape.elements());
        const std::size_t width = p.scale_dtype == DType::f16 ? 2 : 4;
        const auto refused_with = [&](std::vector<std::byte>& array, std::uint32_t half, std::uint32_t single) {
            const auto kept = array;
            std::memcpy(array.data() + array.size() - width, width == 2 ? &half : &single, width);
            const Status status = codec.decode(p, shape, encoded.values, encoded.scale, encoded.zero, out);
            array = kept;
            return !status && status.error().code == Errc::bad_input && contains(status.error().message, "token ");
        };
        CHECK(refused_with(encoded.scale, 0x7C00, 0x7F800000));
        CHECK(refused_with(encoded.scale, 0x7E00, 0x7FC00000));
        CHECK(refused_with(encoded.scale, 0xBC00, 0xBF800000));
        if (!p.symmetric) CHECK(refused_with(encoded.zero, 0xFC00, 0xFF800000));
    });
}
