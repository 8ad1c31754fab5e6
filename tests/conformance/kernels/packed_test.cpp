// Packed weights and 8-bit activations: the layouts of kernels/api/packed.h read independently, products that have the
// scalar backend's bits on every backend, and how far they are from the products they stand for.
#include "inputs.h"
#include "kernels/ref/ref.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

struct Packed {
    Packing packing;
    std::size_t rows, cols;
    std::vector<std::uint8_t> bytes;

    Packed(DType type, const std::vector<std::uint8_t>& weights, std::size_t n_rows, std::size_t n_cols)
        : packing(packing_of(type)), rows(n_rows), cols(n_cols), bytes(packed_bytes(packing, n_rows, n_cols)) {
        pack(type, weights.data(), dtype_bytes(type, cols), rows, cols, 0, (rows + 15) / 16, bytes.data());
    }

    // What the layout says about one weight.
    [[nodiscard]] float weight(std::size_t row, std::size_t col) const {
        const PackingInfo& info = packing_info(packing);
        const std::size_t blocks = (cols + 31) / 32, r = row % 16, c = col % 32;
        const std::uint8_t* block = bytes.data() + (row / 16 * blocks + col / 32) * info.block_bytes;
        int code = 0;
        if (info.bits == 8) {
            code = block[64 * (c / 4) + 4 * r + c % 4];
        } else {
            const int both = block[64 * (c % 16 / 4) + 4 * r + c % 4];
            code = c < 16 ? both % 16 : both / 16;
            if (info.bits == 5) {
                const std::size_t bit = 4 * r + c % 4;
                code += 16 * (block[256 + 8 * (c / 4) + bit / 8] >> bit % 8 & 1);
            }
        }
        const auto half = [&](std::size_t offset) {
            std::uint16_t bits = 0;
            std::memcpy(&bits, block + info.code_bytes + offset + 2 * r, 2);
            return ref::f16_to_f32(bits);
        };
        const float product = static_cast<float>(code - info.zero) * half(0);
        return info.has_min ? product + half(32) : product;
    }
};

std::vector<std::uint8_t> quantized(const Ops& ops, const std::vector<float>& x, std::size_t tokens, std::size_t cols) {
    Guarded<std::uint8_t> out(activation_bytes(tokens, cols)), same_out(out.size());
    ops.quantize_activations(x.data(), cols, tokens, cols, out.data(), nullptr);
    CHECK(out.intact());
    Guarded<float> residual(tokens * cols, 1);
    ops.quantize_activations(x.data(), cols, tokens, cols, same_out.data(), residual.data());
    CHECK(residual.intact());
    CHECK(std::equal(out.data(), out.data() + out.size(), same_out.data()));
    return {out.data(), out.data() + out.size()};
}

// Offsets of what the layout says about one token and block.
struct Where {
    std::size_t q, scale, weighted, sum;
    Where(std::size_t token, std::size_t block, std::size_t tokens, std::size_t cols) {
        const std::size_t tile = token / 16, in_tile = std::min<std::size_t>(16, tokens - 16 * tile), i = token % 16;
        const std::size_t blocks = (cols + 31) / 32, start = tile * 16 * blocks * 44 + block * in_tile * 44;
        q = start + 32 * i;
        scale = start + 32 * in_tile + 4 * i;
        weighted = scale + 4 * in_tile;
        sum = weighted + 4 * in_tile;
    }
};

float float_at(const std::vector<std::uint8_t>& bytes, std::size_t offset) {
    float value = 0;
    std::memcpy(&value, bytes.data() + offset, 4);
    return value;
}

// The value that a quantized activation stands for.
float activation(const std::vector<std::uint8_t>& bytes, std::size_t tokens, std::size_t cols, std::size_t token,
                 std::size_t col) {
    const Where at(token, col / 32, tokens, cols);
    return static_cast<float>(static_cast<std::int8_t>(bytes[at.q + col % 32])) * float_at(bytes, at.scale);
}

std::vector<float> normal_values(std::size_t n, Random& random) {
    std::vector<float> x(n);
    fill_normal(x, random);
    return x;
}

std::size_t columns_for(DType type, std::size_t cols) {
    const std::size_t block = dtype_info(type).block_elems;
    return (cols + block - 1) / block * block;
}

bool keeps_values(DType type) {
    for (const DType exact : {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::iq4_nl})
        if (type == exact) return true;
    return false;
}

Guarded<float> product(const Ops& ops, const Packed& w, const std::vector<std::uint8_t>& x, std::size_t row_begin,
                       std::size_t row_end, std::size_t tokens) {
    Guarded<float> y(tokens * (w.rows + 1), 1);
    ops.packed_gemm(w.packing, w.bytes.data(), row_begin, row_end, w.cols, x.data(), nullptr, tokens, y.data(),
                    w.rows + 1);
    CHECK(y.intact());
    // A residual of other scales.
    std::vector<std::uint8_t> rest = x;
    for (std::size_t token = 0; token < tokens; ++token)
        for (std::size_t block = 0; block < packed_blocks(w.cols); ++block) {
            const Where at(token, block, tokens, w.cols);
            for (const std::size_t offset : {at.scale, at.weighted}) {
                const float value = -0.3F * float_at(rest, offset);
                std::memcpy(rest.data() + offset, &value, sizeof value);
            }
        }
    Guarded<float> of_rest(y.size(), 1), both(y.size(), 1);
    ops.packed_gemm(w.packing, w.bytes.data(), row_begin, row_end, w.cols, rest.data(), nullptr, tokens, of_rest.data(),
                    w.rows + 1);
    ops.packed_gemm(w.packing, w.bytes.data(), row_begin, row_end, w.cols, x.data(), rest.data(), tokens, both.data(),
                    w.rows + 1);
    CHECK(both.intact());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < both.size(); ++i) wrong += !same(both[i], y[i] + of_rest[i]);
    CHECK(wrong == 0);
    return y;
}

}  // namespace

TEST_CASE("packed weights are the weights") {
    Random random(11);
    for (const WeightType& type : weight_types())
        for (const std::size_t rows : {1, 16, 37})
            for (const std::size_t cols : {std::size_t{1}, std::size_t{64}, std::size_t{544}}) {
                const std::size_t n = columns_for(type.type, cols);
                const auto bytes = random_weights(type, rows * n, random);
                const auto values = dequantized(type.type, bytes, rows * n);
                const Packed packed(type.type, bytes, rows, n);
                INFO(dtype_info(type.type).name, " ", rows, " x ", n);
                std::size_t differing = 0;
                for (std::size_t r = 0; r < rows; ++r)
                    for (std::size_t c = 0; c < n; ++c) {
                        const float got = packed.weight(r, c), wanted = values[r * n + c];
                        if (keeps_values(type.type)) {
                            differing += got != wanted;
                            continue;
                        }
                        float largest = 0;  // of the block
                        for (std::size_t i = c / 32 * 32; i < std::min(n, c / 32 * 32 + 32); ++i)
                            largest = std::max(largest, std::fabs(values[r * n + i]));
                        // Half a step of 8 bits; or up to 31 scales and a minimum below 1, each rounded to 11 bits.
                        const bool k = type.type == DType::q4_k || type.type == DType::q5_k;
                        const float bound = k ? 0x1p-7F : largest * (0.501F / 127) + 0x1p-22F;
                        differing += !(std::fabs(got - wanted) <= bound);
                    }
                CHECK(differing == 0);
            }
}

TEST_CASE("groups may be packed apart, and what lies beyond the matrix is not read or written") {
    Random random(12);
    for (const WeightType& type : weight_types()) {
        const std::size_t rows = 35, cols = columns_for(type.type, 96);
        const auto bytes = random_weights(type, rows * cols, random);
        const Packed whole(type.type, bytes, rows, cols);
        Guarded<std::uint8_t> parts(whole.bytes.size());
        for (const std::size_t group : {2, 0, 1})
            pack(type.type, bytes.data(), dtype_bytes(type.type, cols), rows, cols, group, group + 1, parts.data());
        INFO(dtype_info(type.type).name);
        CHECK(parts.intact());
        CHECK(std::equal(whole.bytes.begin(), whole.bytes.end(), parts.data()));
    }
}

TEST_CASE("quantized activations are the scalar backend's, within half a step") {
    Random random(13);
    for (std::size_t cols = 0; cols <= 131; ++cols)
        for (const std::size_t tokens : {1, 19}) {
            const auto x = normal_values(tokens * cols, random);
            const auto expected = quantized(scalar(), x, tokens, cols);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " cols ", cols);
                CHECK(quantized(*ops, x, tokens, cols) == expected);
            }
            std::size_t far = 0;
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t c = 0; c < cols; ++c) {
                    float largest = 0;
                    for (std::size_t i = c / 32 * 32; i < std::min(cols, c / 32 * 32 + 32); ++i)
                        largest = std::max(largest, std::fabs(x[t * cols + i]));
                    const float got = activation(expected, tokens, cols, t, c);
                    far += !(std::fabs(got - x[t * cols + c]) <= largest * (0.501F / 127));
                }
            CHECK(far == 0);
            for (std::size_t t = 0; t < tokens && cols > 0; ++t) {  // the sums beside the codes
                const Where at(t, cols / 64, tokens, cols);
                std::int32_t sum = 0, wanted = 0;
                std::memcpy(&sum, expected.data() + at.sum, 4);
                for (std::size_t i = 0; i < 32; ++i) wanted += static_cast<std::int8_t>(expected[at.q + i]);
                CHECK(sum == wanted);
                CHECK(float_at(expected, at.weighted) == float_at(expected, at.scale) * static_cast<float>(wanted));
            }
        }
}

TEST_CASE("the residual is what rounding took away, the same on every backend") {
    Random random(18);
    for (const std::size_t cols : {1, 31, 32, 33, 100, 576}) {
        const std::size_t tokens = 17;
        const auto x = normal_values(tokens * cols, random);
        const auto q = quantized(scalar(), x, tokens, cols);
        for (const Ops* ops : runnable_backends()) {
            INFO(ops->name, " cols ", cols);
            std::vector<std::uint8_t> out(q.size());
            std::vector<float> residual(x.size());
            ops->quantize_activations(x.data(), cols, tokens, cols, out.data(), residual.data());
            std::size_t differing = 0;
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t c = 0; c < cols; ++c) {
                    const Where at(t, c / 32, tokens, cols);
                    const auto code = static_cast<float>(static_cast<std::int8_t>(q[at.q + c % 32]));
                    const float wanted = std::fma(-float_at(q, at.scale), code, x[t * cols + c]);
                    differing += !same(residual[t * cols + c], wanted);
                }
            CHECK(differing == 0);
        }
    }
}

TEST_CASE("extreme activations") {
    constexpr std::size_t cols = 64;
    for (const float one : special_values())
        for (const float rest : {0.0F, 1.0F, -1e-38F, 3e38F}) {
            std::vector<float> x(cols, rest);
            x[37] = one;
            const auto expected = quantized(scalar(), x, 1, cols);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " ", one, " among ", rest);
                const auto got = quantized(*ops, x, 1, cols);
                for (std::size_t b = 0; b < 2; ++b) {
                    const Where at(0, b, 1, cols);
                    CHECK(std::equal(got.data() + at.q, got.data() + at.scale, expected.data() + at.q));
                    CHECK(same(float_at(got, at.scale), float_at(expected, at.scale)));
                    CHECK(same(float_at(got, at.weighted), float_at(expected, at.weighted)));
                    CHECK(std::isnan(float_at(got, at.scale)) == (b == 1 && !std::isfinite(one)));
                }
            }
        }
}

TEST_CASE("products of packed weights have the scalar backend's bits, however rows and tokens are divided") {
    Random random(14);
    for (const WeightType& type : weight_types())
        for (const std::size_t cols : {32, 96, 576}) {
            const std::size_t n = columns_for(type.type, cols), rows = 53, tokens = 41;
            const Packed w(type.type, random_weights(type, rows * n, random), rows, n);
            const auto values = normal_values(tokens * n, random);
            const auto expected = product(scalar(), w, quantized(scalar(), values, tokens, n), 0, rows, tokens);
            for (const Ops* ops : runnable_backends()) {
                INFO(dtype_info(type.type).name, " cols ", n, " on ", ops->name);
                std::size_t differing = 0, written_outside = 0;
                for (const auto& [t0, t1] : {std::pair{0, 41}, {0, 1}, {1, 3}, {3, 6}, {6, 13}, {13, 30}, {30, 41}}) {
                    const std::vector<float> some(values.begin() + t0 * static_cast<std::ptrdiff_t>(n),
                                                  values.begin() + t1 * static_cast<std::ptrdiff_t>(n));
                    const auto count = static_cast<std::size_t>(t1 - t0);
                    const auto x = quantized(*ops, some, count, n);
                    for (const auto& [r0, r1] : {std::pair{0, 53}, {0, 16}, {16, 17}, {17, 50}, {50, 53}}) {
                        const auto part =
                            product(*ops, w, x, static_cast<std::size_t>(r0), static_cast<std::size_t>(r1), count);
                        for (int t = t0; t < t1; ++t)
                            for (int r = 0; r <= 53; ++r) {
                                const float value = part[static_cast<std::size_t>((t - t0) * 54 + r)];
                                if (r >= r0 && r < r1)
                                    differing += !same(value, expected[static_cast<std::size_t>(t * 54 + r)]);
                                else
                                    written_outside += value != 0;
                            }
                    }
                }
                CHECK(differing == 0);
                CHECK(written_outside == 0);
            }
        }
}

TEST_CASE("codes and activations at their ends do not overflow") {
    Random random(15);
    for (const WeightType& type : weight_types()) {
        const auto& info = dtype_info(type.type);
        if (info.block_elems == 1) continue;
        for (const int fill : {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0}) {
            const std::size_t n = columns_for(type.type, 64), rows = 17, tokens = 18;
            auto bytes = random_weights(type, rows * n, random);
            for (std::size_t i = 0; i < bytes.size(); ++i) {
                const std::size_t in_block = i % info.block_bytes;
                bool is_half = false;
                for (const std::size_t offset : type.half_offsets) is_half |= in_block / 2 == offset / 2;
                if (!is_half) bytes[i] = static_cast<std::uint8_t>(fill);
            }
            const Packed w(type.type, bytes, rows, n);
            std::vector<float> values(tokens * n);
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = (i / n) % 2 ? 5.0F : -5.0F;
            const auto x = quantized(scalar(), values, tokens, n);
            const auto expected = product(scalar(), w, x, 0, rows, tokens);
            for (const Ops* ops : runnable_backends()) {
                INFO(info.name, " filled with ", fill, " on ", ops->name);
                CHECK(count_differing(product(*ops, w, x, 0, rows, tokens), expected) == 0);
            }
        }
    }
}

TEST_CASE("the reference product is the product of what weights and activations stand for") {
    Random random(16);
    for (const WeightType& type : weight_types()) {
        const std::size_t n = columns_for(type.type, 576), rows = 20, tokens = 3;
        const Packed w(type.type, random_weights(type, rows * n, random), rows, n);
        const auto x = quantized(scalar(), normal_values(tokens * n, random), tokens, n);
        const auto y = product(scalar(), w, x, 0, rows, tokens);
        std::size_t far = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t r = 0; r < rows; ++r) {
                double sum = 0, w2 = 0, x2 = 0;
                for (std::size_t c = 0; c < n; ++c) {
                    const double a = w.weight(r, c), b = activation(x, tokens, n, t, c);
                    sum += a * b;
                    w2 += a * a;
                    x2 += b * b;
                }
                far += !(std::fabs(y[t * (rows + 1) + r] - sum) <= 60 * 0x1p-24 * std::sqrt(w2 * x2));
            }
        INFO(dtype_info(type.type).name);
        CHECK(far == 0);
    }
}

TEST_CASE("a value that is not finite reaches only its own token") {
    Random random(17);
    const WeightType type = weight_types()[5];
    const std::size_t cols = 96, rows = 16, tokens = 17;
    const Packed w(type.type, random_weights(type, rows * cols, random), rows, cols);
    auto values = normal_values(tokens * cols, random);
    values[5 * cols + 40] = NAN;
    values[9 * cols + 95] = INFINITY;
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        const auto y = product(*ops, w, quantized(*ops, values, tokens, cols), 0, rows, tokens);
        for (std::size_t t = 0; t < tokens; ++t) CHECK(std::isfinite(y[t * (rows + 1)]) == (t != 5 && t != 9));
    }
}
