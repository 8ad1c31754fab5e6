// Codes, scales and values of an independent implementation (numpy and torch), in the variant with f32 scales: real K
// and V of one layer, and an array of edge cases.
#include "support/golden.h"

#include "kernels/api/ops.h"
#include "quant/spec.h"
#include "unit/quant/support.h"

using namespace hetero;
using namespace hetero::test;
using quant::Axis;
using quant::DType;
using quant::Params;
using quant::Shape;

namespace {

// Golden arrays are [head][token][...], ours [token][head][...].
template <class T>
std::vector<T> token_major(const std::vector<T>& values, std::size_t heads, std::size_t tokens, std::size_t row) {
    REQUIRE(values.size() == heads * tokens * row);
    std::vector<T> out(values.size());
    for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t t = 0; t < tokens; ++t) {
            for (std::size_t d = 0; d < row; ++d) out[(t * heads + h) * row + d] = values[(h * tokens + t) * row + d];
        }
    }
    return out;
}

// A byte for each code, as the golden file has them.
std::vector<std::uint8_t> code_bytes(const std::string& codec_name, const Params& params, const Shape& shape,
                                     const std::vector<std::byte>& stored) {
    const std::vector<std::uint8_t> bytes = as<std::uint8_t>(stored);
    if (bytes.size() == shape.elements()) return bytes;
    const std::size_t rows = shape.tokens * shape.heads,
                      row_bytes = codec(codec_name).row_elements(params, shape.head_dim);
    REQUIRE(bytes.size() == rows * row_bytes);
    std::vector<std::uint8_t> codes(shape.elements());
    for (std::size_t row = 0; row < rows; ++row) {
        kernels::ops().unpack_bits(codec_name[3] - '0', params.symmetric, bytes.data() + row * row_bytes,
                                   codes.data() + row * shape.head_dim, shape.head_dim);
    }
    return codes;
}

struct Input {
    std::size_t heads, tokens, head_dim;
    std::vector<float> x;
    explicit Input(const Golden& golden, const std::string& name)
        : heads(golden.shape(name + ".x")[0]),
          tokens(golden.shape(name + ".x")[1]),
          head_dim(golden.shape(name + ".x")[2]),
          x(token_major(golden.get<float>(name + ".x"), heads, tokens, head_dim)) {}
    [[nodiscard]] Shape shape(std::size_t n) const {
        return {n, static_cast<std::uint32_t>(heads), static_cast<std::uint32_t>(head_dim)};
    }
};

struct Case {
    const char* name;      // in the golden file
    const char* spec;      // "*": the group is all tokens
    bool leading = false;  // only the first `nq` tokens are quantized
};
constexpr Case cases[] = {
    {"sym_tok_8", "int8:token:f32"},
    {"sym_tok_4", "int4:token:f32"},
    {"asym_tok_8", "int8:token:asym:f32"},
    {"asym_g32_4", "int4:token:g32:asym:f32"},
    {"sym_head_8", "int8:head:f32"},
    {"sym_layer_8", "int8:tensor:f32"},
    {"sym_chan_8", "int8:channel:g4096:f32"},
    {"kivi_k_8", "int8:channel:g32:asym:f32", true},
    {"kivi_k_4", "int4:channel:g32:asym:f32", true},
    {"kivi_v_8", "int8:token:g32:asym:f32", true},
    {"kivi_v_4", "int4:token:g32:asym:f32", true},
    {"e4m3_tok", "fp8_e4m3fn:token:f32"},
    {"e4m3_head", "fp8_e4m3fn:head:f32"},
    {"e4m3", "compat:vllm_fp8"},
};

const Golden& golden() {
    static const Golden file("golden/kvquant/quant_golden.safetensors");
    return file;
}

}  // namespace

TEST_CASE("codes, scales, zeros and values of every format") {
    for (const std::string name : {"k14", "v14", "edge"}) {
        const Input input(golden(), name);
        for (const Case& c : cases) {
            const std::string prefix = name + "." + c.name;
            CAPTURE(prefix);
            const auto spec = quant::parse_spec(c.spec);
            REQUIRE(spec.has_value());
            const Params& p = spec->params;
            std::size_t n = input.tokens;
            if (c.leading) n = static_cast<std::size_t>(golden().get<std::int32_t>(prefix + ".nq").at(0));
            REQUIRE(n > 0);
            const Shape shape = input.shape(n);
            const std::vector<float> x(input.x.begin(),
                                       input.x.begin() + static_cast<std::ptrdiff_t>(shape.elements()));
            const quant::Encoded encoded = encode(spec->codec, p, shape, x);

            const auto want = token_major(golden().get<std::uint8_t>(prefix + ".q"), input.heads, n, input.head_dim);
            const auto got = code_bytes(spec->codec, p, shape, encoded.values);
            int wrong = 0;
            for (std::size_t i = 0; i < want.size(); ++i) wrong += got[i] != want[i] ? 1 : 0;
            CHECK(wrong == 0);

            const auto extents = codec(spec->codec).scale_shape(p, shape);
            const auto ours = [&](const std::string& array) {
                const auto values = golden().get<float>(prefix + array);
                REQUIRE(values.size() == extents[0] * extents[1] * extents[2]);
                return token_major(values, extents[1], extents[0], extents[2]);
            };
            CHECK(scales(p, encoded.scale) == ours(".s"));
            if (!p.symmetric) CHECK(scales(p, encoded.zero) == ours(".min"));

            // only head 0 of the decoded values is in the golden file
            const std::vector<float> back = decode(spec->codec, p, shape, encoded),
                                     values = golden().get<float>(prefix + ".deq");
            wrong = 0;
            for (std::size_t t = 0; t < n; ++t) {
                for (std::size_t d = 0; d < input.head_dim; ++d)
                    wrong += back[t * input.heads * input.head_dim + d] != values[t * input.head_dim + d] ? 1 : 0;
            }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("a cast to e5m2") {
    for (const std::string name : {"k14", "v14", "edge"}) {
        const Input input(golden(), name);
        const auto want =
            token_major(golden().get<std::uint8_t>(name + ".e5m2.q"), input.heads, input.tokens, input.head_dim);
        std::vector<std::uint8_t> got(want.size());
        const float scale = 1;
        kernels::ops().quantize_fp8(kernels::Fp8::e5m2,
                                    {kernels::DType::f32, input.x.data(), 1, got.size(), got.size()}, &scale,
                                    got.data(), got.size(), nullptr);
        CHECK(got == want);
    }
}

TEST_CASE("ggml's blocks round half away from zero: they differ from half to even on ties alone") {
    for (const std::string name : {"k14", "v14", "edge"}) {
        CAPTURE(name);
        const Input input(golden(), name);
        const auto encoded = encode("compat:q8_0", {}, input.shape(input.tokens), input.x);
        const std::size_t blocks = input.x.size() / 32, per_head = input.head_dim / 32;
        REQUIRE(encoded.values.size() == blocks * 34);
        const auto want =
            token_major(golden().get<std::int8_t>(name + ".q8_0.q"), input.heads, input.tokens, input.head_dim);
        const auto want_scale =
            token_major(golden().get<std::uint16_t>(name + ".q8_0.s"), input.heads, input.tokens, per_head);
        int wrong_scales = 0, different = 0, far = 0;
        for (std::size_t b = 0; b < blocks; ++b) {
            std::uint16_t scale = 0;
            std::memcpy(&scale, encoded.values.data() + 34 * b, 2);
            wrong_scales += scale != want_scale[b] ? 1 : 0;
            for (std::size_t i = 0; i < 32; ++i) {
                const int got = static_cast<std::int8_t>(encoded.values[34 * b + 2 + i]), even = want[32 * b + i];
                different += got != even ? 1 : 0;
                far += std::abs(got - even) > 1 ? 1 : 0;
            }
        }
        CHECK(wrong_scales == 0);
        CHECK(different == (name == "edge" ? 32 : 0));
        CHECK(far == 0);
    }
}

TEST_CASE("ggml's own reference quantizers, byte for byte") {
    const Golden blocks("golden/gguf/dequant.safetensors");
    const auto x = blocks.get<float>("src.f32");
    const Shape shape{x.size() / 64, 1, 64};
    for (const auto& [name, array] :
         {std::pair{"compat:q8_0", "Q8_0"}, {"compat:q4_0", "Q4_0"}, {"compat:q4_1", "Q4_1"}}) {
        CAPTURE(name);
        const auto encoded = encode(name, {}, shape, x);
        CHECK(as<std::uint8_t>(encoded.values) == blocks.get<std::uint8_t>(std::string(array) + ".raw"));
        CHECK(decode(name, {}, shape, encoded) == blocks.get<float>(std::string(array) + ".f32"));
    }
}
