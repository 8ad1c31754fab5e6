// Parts of a KV state as a device codes and moves them: the bits of lib/quant.
#include <numeric>

#include "conformance/kernels/inputs.h"
#include "device.h"
#include "quant/codec.h"
#include "quant/spec.h"

using namespace hetero;
using namespace hetero::kernels;
using namespace hetero::test;

namespace {

constexpr unsigned long long nowhere = ~0ULL;

DeviceCodec codec_of(const quant::Spec& spec, std::size_t head_dim) {
    DeviceCodec codec;
    codec.codes = spec.codec == "fp8_e4m3fn" ? KvCodes::e4m3fn
                  : spec.codec == "int4"     ? (spec.params.symmetric ? KvCodes::i4 : KvCodes::u4)
                                             : (spec.params.symmetric ? KvCodes::i8 : KvCodes::u8);
    codec.mean_width = quant::water_filled_bits(spec.codec);
    if (codec.mean_width != 0) codec.codes = KvCodes::u8;
    codec.rotated = spec.params.hadamard;
    if (spec.params.axis == quant::Axis::channel)
        codec.group_tokens = quant::find_codec(spec.codec)->token_step(spec.params);
    else
        codec.group = spec.params.group == 0 ? head_dim : spec.params.group;
    return codec;
}

std::size_t width(DType type) { return type == DType::f32 ? 4 : 2; }

std::vector<std::byte> as_type(DType type, const std::vector<float>& x) {
    std::vector<std::byte> bytes(x.size() * width(type));
    if (type == DType::f32) std::memcpy(bytes.data(), x.data(), bytes.size());
    auto* halves = reinterpret_cast<std::uint16_t*>(bytes.data());
    if (type == DType::f16) scalar().f32_to_f16(x.data(), halves, x.size());
    if (type == DType::bf16) scalar().f32_to_bf16(x.data(), halves, x.size());
    return bytes;
}

std::vector<std::byte> bytes_of(const std::vector<std::uint16_t>& halves) {
    const auto bytes = std::as_bytes(std::span(halves));
    return {bytes.begin(), bytes.end()};
}

void codes_are_those_of_the_cpu(const Device& device, const char* name, DType type, std::size_t tokens,
                                std::size_t heads, std::size_t head_dim, Random& random) {
    CAPTURE(name);
    CAPTURE(static_cast<int>(type));
    CAPTURE(tokens);
    CAPTURE(head_dim);
    const quant::Spec spec = *quant::parse_spec(name);
    const quant::Codec& cpu = *quant::find_codec(spec.codec);
    const quant::Shape shape{tokens, static_cast<std::uint32_t>(heads), static_cast<std::uint32_t>(head_dim)};
    std::vector<float> x(tokens * heads * head_dim);
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = random.normal() * (i % 13 == 0 ? 90.0F : i % 7 == 0 ? 1e-7F : 1.0F);
    std::fill_n(x.begin(), head_dim, 0.0F);
    if (tokens > 1) std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(heads * head_dim), head_dim, -2.5F);
    const std::vector<std::byte> bytes = as_type(type, x);

    const quant::EncodedBytes sizes = cpu.bytes(spec.params, shape);
    quant::Encoded wanted{std::vector<std::byte>(sizes.values), std::vector<std::byte>(sizes.scale),
                          std::vector<std::byte>(sizes.zero)};
    REQUIRE(cpu.encode_from(spec.params, shape, type, bytes, {wanted.values, wanted.scale, wanted.zero}, nullptr));

    const DeviceCodec codec = codec_of(spec, head_dim);
    const auto dx = device.upload(bytes);
    const auto codes = device.allocate<std::uint8_t>(sizes.values);
    const auto scale = device.allocate<std::uint16_t>(sizes.scale / 2),
               zero = device.allocate<std::uint16_t>(sizes.zero / 2 + 1);
    const auto place = device.upload(std::vector<unsigned long long>{nowhere});
    std::uint16_t* zeros = sizes.zero != 0 ? zero.get() : nullptr;
    check(
        device.ops.kv_quantize(device.stream, codec, type, dx, tokens, heads, head_dim, {codes, scale, zeros}, place));
    CHECK(place.read()[0] == nowhere);
    float error = 0;
    std::vector<std::byte> decoded(x.size() * sizeof(float));
    REQUIRE(
        cpu.decode_to(spec.params, shape, wanted.values, wanted.scale, wanted.zero, {DType::f32, decoded}, nullptr));
    std::vector<float> values(x.size());
    if (type == DType::f32) values = x;
    if (type == DType::f16)
        scalar().f16_to_f32(reinterpret_cast<const std::uint16_t*>(bytes.data()), values.data(), x.size());
    if (type == DType::bf16)
        scalar().bf16_to_f32(reinterpret_cast<const std::uint16_t*>(bytes.data()), values.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i)
        error = std::max(error, std::fabs(reinterpret_cast<const float*>(decoded.data())[i] - values[i]));
    const auto largest = device.upload(std::vector<float>{0});
    check(device.ops.kv_error(device.stream, codec, {codes, scale, zeros}, tokens, heads, head_dim, type, dx, largest));
    CHECK(largest.read()[0] == error);
    const std::vector<std::uint8_t> got = codes.read();
    CHECK(std::memcmp(got.data(), wanted.values.data(), sizes.values) == 0);
    CHECK(bytes_of(scale.read()) == wanted.scale);
    if (zeros != nullptr) CHECK(std::memcmp(zero.read().data(), wanted.zero.data(), sizes.zero) == 0);

    for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
        CAPTURE(static_cast<int>(to));
        std::vector<std::byte> back(x.size() * width(to));
        REQUIRE(cpu.decode_to(spec.params, shape, wanted.values, wanted.scale, wanted.zero, {to, back}, nullptr));
        const auto dy = device.allocate<std::byte>(back.size());
        check(device.ops.kv_dequantize(device.stream, codec, {codes, scale, zeros}, tokens, heads, head_dim, to, dy,
                                       place));
        CHECK(place.read()[0] == nowhere);
        CHECK(dy.read() == back);
    }
}

}  // namespace

TEST_CASE("a state is coded and decoded to the bits of the codecs") {
    on_device([](const Device& device) {
        Random random(17);
        for (const char* name : {"int8", "int8:token:g32", "int8:token:asym", "had:int8:token", "int4",
                                 "int4:token:g16", "had:int4:token:g32:asym", "fp8_e4m3fn", "had:fp8_e4m3fn"})
            for (const DType type : {DType::f32, DType::f16, DType::bf16})
                codes_are_those_of_the_cpu(device, name, type, 5, 3, 64, random);
        for (const char* name :
             {"int8:channel:g32", "int8:channel:g32:asym", "int4:channel:g32:asym", "int4:channel:g64"})
            for (const DType type : {DType::f32, DType::f16, DType::bf16})
                codes_are_those_of_the_cpu(device, name, type, 70, 2, 32, random);
        for (const std::size_t dim : {1U, 13U, 20U, 80U, 96U, 128U, 192U, 256U, 576U})
            for (const char* name : {"int8", "int4:token:asym", "fp8_e4m3fn"})
                codes_are_those_of_the_cpu(device, name, DType::f16, 3, 1, dim, random);
        for (const std::size_t dim : {20U, 80U, 96U, 128U, 256U})
            codes_are_those_of_the_cpu(device, "had:int8:token", DType::bf16, 3, 2, dim, random);
        codes_are_those_of_the_cpu(device, "int4:channel:g8", DType::bf16, 9, 1, 13, random);
        for (const char* name : {"wf2", "wf4", "wf9"})
            for (const DType type : {DType::f32, DType::f16, DType::bf16})
                codes_are_those_of_the_cpu(device, name, type, 70, 2, 32, random);
        for (const std::size_t dim : {1U, 13U, 80U, 128U})
            for (const char* name : {"wf3:channel:g5:asym", "wf8:channel:g64:asym"})
                codes_are_those_of_the_cpu(device, name, DType::f16, 9, 1, dim, random);
    });
}

TEST_CASE("a value that has no code is named") {
    on_device([](const Device& device) {
        const auto place_of = [&](const DeviceCodec& codec, DType type, std::vector<float> x) {  // [4][2][16]
            const auto dx = device.upload(as_type(type, x));
            const auto codes = device.allocate<std::uint8_t>(x.size());
            const auto scale = device.allocate<std::uint16_t>(x.size()),
                       zero = device.allocate<std::uint16_t>(x.size());
            const auto place = device.upload(std::vector<unsigned long long>{nowhere});
            std::uint16_t* zeros = codec.codes == KvCodes::u8 ? zero.get() : nullptr;
            check(device.ops.kv_quantize(device.stream, codec, type, dx, 4, 2, 16, {codes, scale, zeros}, place));
            return place.read()[0];
        };
        const DeviceCodec by_token{KvCodes::i8, 8, 0, false}, by_channel{KvCodes::u8, 0, 4, false},
            rotated{KvCodes::i8, 16, 0, true};
        for (const DeviceCodec& codec : {by_token, by_channel, rotated})
            for (const float bad : {NAN, INFINITY, -INFINITY, 3e38F}) {
                std::vector<float> x(128, 1.0F);
                x[41] = x[57] = bad;
                x[40] = 3;
                CHECK(place_of(codec, DType::f32, x) == 41);
            }
        // What a scale of f16 is too small for; of the head or group, the largest.
        std::vector<float> x(128, 1.0F);
        x[45] = 1e8F;
        x[46] = -2e8F;
        x[53] = 1e9F;
        CHECK(place_of(by_token, DType::f32, x) == 46);
        CHECK(place_of(by_channel, DType::f32, x) == 45);
        CHECK(place_of(rotated, DType::f32, x) == 46);

        // And a number that does not fit the output.
        const auto codes = device.upload(std::vector<std::uint8_t>{1, 100});
        const auto scale = device.upload(std::vector<std::uint16_t>{0x7BFF});
        const auto y = device.allocate<std::uint16_t>(2);
        const auto place = device.upload(std::vector<unsigned long long>{nowhere});
        check(device.ops.kv_dequantize(device.stream, {KvCodes::i8, 2, 0, false}, {codes, scale, nullptr}, 1, 1, 2,
                                       DType::f16, y, place));
        CHECK(place.read()[0] == 1);
    });
}

TEST_CASE("states are transposed, divided anew and paired anew") {
    on_device([](const Device& device) {
        for (const std::size_t item : {1U, 2U, 6U, 12U, 32U, 160U}) {
            CAPTURE(item);
            const std::size_t tokens = 5, heads = 3;
            std::vector<std::uint8_t> x(tokens * heads * item);
            Random random(2);
            for (auto& byte : x) byte = static_cast<std::uint8_t>(random.bits());
            const auto dx = device.upload(x);
            const auto dy = device.allocate<std::uint8_t>(x.size()), dz = device.allocate<std::uint8_t>(x.size());
            check(device.ops.kv_transpose(device.stream, dx, tokens, heads, item, dy));
            check(device.ops.kv_transpose(device.stream, dy, heads, tokens, item, dz));
            std::vector<std::uint8_t> wanted;
            for (std::size_t h = 0; h < heads; ++h)
                for (std::size_t t = 0; t < tokens; ++t)
                    for (std::size_t i = 0; i < item; ++i) wanted.push_back(x[(t * heads + h) * item + i]);
            CHECK(dy.read() == wanted);
            CHECK(dz.read() == x);

            const std::vector<std::int32_t> chosen = {2, 0};
            const auto dc = device.upload(chosen);
            const auto some = device.allocate<std::uint8_t>(tokens * 2 * item);
            check(device.ops.kv_gather_heads(device.stream, dx, tokens, heads, dc, 2, item, some));
            wanted.clear();
            for (std::size_t t = 0; t < tokens; ++t)
                for (const std::int32_t h : chosen)
                    for (std::size_t i = 0; i < item; ++i)
                        wanted.push_back(x[(t * heads + static_cast<std::size_t>(h)) * item + i]);
            CHECK(some.read() == wanted);
        }
        // Rotated in either order, a row is the same: what Ops::rope makes of interleaved pairs is half-split.
        const std::size_t dim = 10, pairs = 4, rows = 3;
        std::vector<float> x(rows * dim);
        std::iota(x.begin(), x.end(), 1.0F);
        std::vector<float> wanted(x.size());
        const std::vector<float> cos(pairs, 1.0F), sin(pairs, 0.0F);
        scalar().rope(x.data(), wanted.data(), rows, dim, {cos.data(), sin.data(), pairs}, 0, RopePairing::interleaved);
        const auto dx = device.upload(x);
        const auto dy = device.allocate<float>(x.size()), dz = device.allocate<float>(x.size());
        check(device.ops.kv_pairing(device.stream, dx, rows, dim, 4, pairs, RopePairing::half_split, dy));
        check(device.ops.kv_pairing(device.stream, dy, rows, dim, 4, pairs, RopePairing::interleaved, dz));
        CHECK(dy.read() == wanted);
        CHECK(dz.read() == x);
    });
}

TEST_CASE("codecs that the device has no kernel for are refused") {
    on_device([](const Device& device) {
        for (const DeviceCodec& codec :
             {DeviceCodec{KvCodes::floats, 16, 0, false}, DeviceCodec{KvCodes::i8, 7, 0, false},
              DeviceCodec{KvCodes::i8, 0, 32, true}, DeviceCodec{KvCodes::i8, 16, 32, false},
              DeviceCodec{KvCodes::u8, 0, 32, false, 13}, DeviceCodec{KvCodes::i8, 0, 32, false, 4},
              DeviceCodec{KvCodes::u8, 0, 32, true, 4}}) {
            const DeviceFault fault =
                device.ops.kv_quantize(device.stream, codec, DType::f16, nullptr, 1, 1, 16, {}, nullptr);
            CHECK(fault.kind == DeviceFault::Kind::unsupported);
        }
    });
}
