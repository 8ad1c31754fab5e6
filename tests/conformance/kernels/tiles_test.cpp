// Products in bf16 tiles (kernels/api/tiles.h): the layout read independently, the bounds named there, and results that
// depend on nothing but the row and the token.
#include "kernels/api/tiles.h"

#include <string>

#include "inputs.h"
#include "kernels/ref/ref.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

std::vector<const TileOps*> runnable_tile_ops() {
    std::vector<const TileOps*> list;
    for (const Ops* backend : runnable_backends())
        if (const TileOps* tiles = tile_ops(*backend)) list.push_back(tiles);
    return list;
}

// Of token and column in tiles of `cols` columns.
std::size_t place(std::size_t token, std::size_t col, std::size_t cols) {
    const std::size_t blocks = (cols + 31) / 32;
    return (token / 32 * blocks + col / 32) * 1024 + token % 32 * 32 + col % 32;
}

Guarded<Bf16> rounded(const TileOps& ops, const Guarded<float>& x, std::size_t stride, std::size_t tokens,
                      std::size_t cols) {
    Guarded<Bf16> tiles(tiles_size(tokens, cols));
    std::fill_n(tiles.data(), tiles.size(), Bf16{0x7fc0});
    ops.round(x.data(), stride, tokens, {tiles.data(), cols, 0, cols});
    CHECK(tiles.intact());
    return tiles;
}

struct Weights {
    Packing packing;
    std::size_t rows, cols;
    std::vector<std::uint8_t> packed;
    std::vector<float> values;  // [row][col] rounded to bf16

    Weights(const WeightType& type, std::size_t n_rows, std::size_t n_cols, Random& random)
        : packing(packing_of(type.type)), rows(n_rows), cols(n_cols), packed(packed_bytes(packing, n_rows, n_cols)) {
        const auto weights = random_weights(type, rows * cols, random);
        pack(type.type, weights.data(), dtype_bytes(type.type, cols), rows, cols, 0, (rows + 15) / 16, packed.data());
        for (std::size_t i = 0; i < rows * cols; ++i) {
            const float w = ref::packed_weight(packing, packed.data(), i / cols, i % cols, cols);
            values.push_back(ref::bf16_to_f32(ref::f32_to_bf16(w)));
        }
    }
};

// Rows [begin, end) of the product, or of what is added to 0, 1, 2 ... 6, 0 ...
Guarded<float> product(const TileOps& ops, const Weights& w, const Guarded<Bf16>& x, std::size_t begin, std::size_t end,
                       std::size_t tokens, bool add) {
    Guarded<float> y(tokens * (w.rows + 3), 1);
    for (std::size_t i = 0; add && i < y.size(); ++i) y[i] = static_cast<float>(i % 7);
    ops.gemm(w.packing, w.packed.data(), begin, end, w.cols, x.data(), tokens, add, y.data() + begin, w.rows + 3);
    CHECK(y.intact());
    return y;
}

}  // namespace

TEST_CASE("the scalar backend and AMX have tiles, each its own") {
    CHECK(tile_ops(scalar()) != nullptr);
    for (const Ops* const* backend = all_backends(); *backend; ++backend) {
        const std::string name((*backend)->name);
        const TileOps* tiles = tile_ops(**backend);
        INFO(name);
        CHECK((tiles != nullptr) == (name == "scalar" || name == "amx"));
        if (tiles != nullptr) CHECK(std::string(tiles->name) == name);
    }
    CHECK(tile_ops(Ops{}) == nullptr);
}

TEST_CASE("rounding to tiles: every value at its place, zeros around") {
    Random random(31);
    for (const TileOps* ops : runnable_tile_ops())
        for (const std::size_t tokens : {1, 15, 16, 31, 32, 33, 70})
            for (std::size_t cols = 1; cols <= 97; cols += cols < 40 ? 1 : 19) {
                INFO(ops->name, " ", tokens, " x ", cols);
                Guarded<float> x(tokens * (cols + 2), 1);
                fill_normal(x, random);
                spoil_gaps(x, cols, cols + 2);
                const auto tiles = rounded(*ops, x, cols + 2, tokens, cols);
                std::size_t wrong = 0;
                for (std::size_t t = 0; t < (tokens + 31) / 32 * 32; ++t)
                    for (std::size_t c = 0; c < (cols + 31) / 32 * 32; ++c) {
                        const bool inside = t < tokens && c < cols;
                        wrong += tiles[place(t, c, cols)] != (inside ? ref::f32_to_bf16(x[t * (cols + 2) + c]) : 0);
                    }
                CHECK(wrong == 0);
            }
}

TEST_CASE("some columns of tiles can be written alone") {
    Random random(32);
    const std::size_t tokens = 37, cols = 150, stride = 60;
    Guarded<float> x(tokens * stride), up(tokens * stride);
    fill_normal(x, random);
    fill_normal(up, random);
    for (const TileOps* ops : runnable_tile_ops())
        for (const bool silu : {false, true}) {
            INFO(ops->name, " silu ", silu);
            Guarded<Bf16> tiles(tiles_size(tokens, cols));
            std::fill_n(tiles.data(), tiles.size(), Bf16{7});
            const TileColumns out{tiles.data(), cols, 64, 43};
            silu ? ops->silu_mul(x.data(), up.data(), stride, tokens, out) : ops->round(x.data(), stride, tokens, out);
            CHECK(tiles.intact());
            std::size_t wrong = 0;
            for (std::size_t t = 0; t < 64; ++t)
                for (std::size_t c = 0; c < 160; ++c) {
                    const Bf16 got = tiles[place(t, c, cols)];
                    const std::size_t i = t * stride + c - 64;
                    if (c < 64 || c >= 128)
                        wrong += got != 7;
                    else if (t >= tokens || c >= 64 + 43)
                        wrong += got != 0;
                    else if (!silu)
                        wrong += got != ref::f32_to_bf16(x[i]);
                    else {
                        const double g = x[i], y = g / (1 + std::exp(-g)) * static_cast<double>(up[i]);
                        wrong += !(std::fabs(static_cast<double>(ref::bf16_to_f32(got)) - y) <=
                                   std::fabs(y) * (0x1p-8 + 0x1p-12) + 0x1p-120);
                    }
                }
            CHECK(wrong == 0);
        }
}

TEST_CASE("silu_mul of large and small gates") {
    for (const TileOps* ops : runnable_tile_ops()) {
        std::vector<float> gate, up;
        for (float g = -300; g <= 300; g += 0.37F) gate.push_back(g), up.push_back(1);
        for (const float g : {0.0F, 1e-30F, -1e-30F, 1e30F, -1e30F, 88.0F, -88.0F}) gate.push_back(g), up.push_back(2);
        std::vector<Bf16> tiles(tiles_size(1, gate.size()));
        ops->silu_mul(gate.data(), up.data(), gate.size(), 1, {tiles.data(), gate.size(), 0, gate.size()});
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < gate.size(); ++i) {
            const double g = gate[i], y = g / (1 + std::exp(-g)) * static_cast<double>(up[i]);
            const double got = ref::bf16_to_f32(tiles[place(0, i, gate.size())]);
            wrong += !(std::fabs(got - y) <= std::fabs(y) * (0x1p-8 + 0x1p-12) + 0x1p-120);
        }
        INFO(ops->name);
        CHECK(wrong == 0);
    }
}

TEST_CASE("the product of the rounded operands, within its bound") {
    Random random(33);
    for (const WeightType& type : weight_types()) {
        const std::size_t block = dtype_info(type.type).block_elems;
        for (const std::size_t rows : {1, 16, 32, 50})
            for (const std::size_t wanted_cols : {32, 96, 608, 1600}) {
                const std::size_t cols = (wanted_cols + block - 1) / block * block, tokens = 35;
                const Weights w(type, rows, cols, random);
                Guarded<float> x(tokens * cols);
                fill_normal(x, random);
                for (const TileOps* ops : runnable_tile_ops()) {
                    const auto tiles = rounded(*ops, x, cols, tokens, cols);
                    for (const bool add : {false, true}) {
                        INFO(ops->name, " ", dtype_info(type.type).name, " ", rows, " x ", cols, " add ", add);
                        const auto y = product(*ops, w, tiles, 0, rows, tokens, add);
                        std::size_t far = 0;
                        for (std::size_t t = 0; t < tokens; ++t)
                            for (std::size_t r = 0; r < rows; ++r) {
                                const std::size_t i = t * (rows + 3) + r;
                                const double before = add ? static_cast<double>(i % 7) : 0;
                                double sum = before, w2 = 0, x2 = 0;
                                for (std::size_t c = 0; c < cols; ++c) {
                                    const double a = w.values[r * cols + c];
                                    const double b = ref::bf16_to_f32(tiles[place(t, c, cols)]);
                                    sum += a * b;
                                    w2 += a * a;
                                    x2 += b * b;
                                }
                                const double factor = 2 * std::sqrt(static_cast<double>(cols)) + 8;
                                const double bound = factor * (std::sqrt(w2 * x2) + before) * 0x1p-24;
                                far += !(std::fabs(static_cast<double>(y[i]) - sum) <= bound);
                            }
                        CHECK(far == 0);
                    }
                }
            }
    }
}

TEST_CASE("a product has the same bits among any tokens and in any range of rows") {
    Random random(34);
    const std::size_t rows = 75, cols = 1632, tokens = 71;
    for (const WeightType& type : weight_types()) {
        if (dtype_info(type.type).block_elems > 32) continue;
        const Weights w(type, rows, cols, random);
        Guarded<float> x(tokens * cols);
        fill_normal(x, random);
        for (const TileOps* ops : runnable_tile_ops()) {
            if (ops == tile_ops(scalar()) && type.type != DType::q4_1) continue;  // slow, and one loop for all types
            for (const bool add : {false, true}) {
                INFO(ops->name, " ", dtype_info(type.type).name, " add ", add);
                const auto whole = product(*ops, w, rounded(*ops, x, cols, tokens, cols), 0, rows, tokens, add);
                struct Part {
                    std::size_t begin, end, first, count;
                };
                for (const Part& part : {Part{0, 75, 0, 1}, {16, 48, 0, 71}, {5, 33, 40, 31}, {63, 75, 7, 33}}) {
                    Guarded<float> own(part.count * cols);
                    std::copy_n(x.data() + part.first * cols, own.size(), own.data());
                    const auto tiles = rounded(*ops, own, cols, part.count, cols);
                    Guarded<float> y(part.count * (rows + 3));
                    for (std::size_t i = 0; add && i < y.size(); ++i)
                        y[i] = static_cast<float>((i + part.first * (rows + 3)) % 7);
                    const Guarded<float> before = y;
                    ops->gemm(w.packing, w.packed.data(), part.begin, part.end, cols, tiles.data(), part.count, add,
                              y.data() + part.begin, rows + 3);
                    CHECK(y.intact());
                    std::size_t wrong = 0;
                    for (std::size_t i = 0; i < y.size(); ++i) {
                        const std::size_t row = i % (rows + 3);
                        const bool inside = row >= part.begin && row < part.end;
                        wrong += !same(y[i], inside ? whole[part.first * (rows + 3) + i] : before[i]);
                    }
                    CHECK(wrong == 0);
                }
            }
        }
    }
}

TEST_CASE("a gated product has the bits of two products and their activation") {
    Random random(37);
    const std::size_t rows = 112;
    const auto types = weight_types();
    for (const std::size_t cols : {32UL, 640UL, 1632UL, 16384UL})
        for (std::size_t i = 0; i < types.size(); ++i) {
            const WeightType &one = types[i], &other = types[(i + 1) % types.size()];
            if (dtype_info(one.type).block_elems > 32 || dtype_info(other.type).block_elems > 32) continue;
            if (cols > 1632 && one.type != DType::q4_1) continue;
            const std::size_t tokens = cols > 1632 ? 40 : 71;
            const Weights gate(one, rows, cols, random), up(other, rows, cols, random);
            Guarded<float> x(tokens * cols);
            fill_normal(x, random, 0.1F);
            for (const TileOps* ops : runnable_tile_ops()) {
                if (ops == tile_ops(scalar()) && (cols > 640 || one.type != DType::q4_1)) continue;  // slow
                const auto tiles = rounded(*ops, x, cols, tokens, cols);
                const auto g = product(*ops, gate, tiles, 0, rows, tokens, false);
                const auto u = product(*ops, up, tiles, 0, rows, tokens, false);
                struct Part {
                    std::size_t begin, end, tokens;
                };
                for (const Part& part : {Part{0, rows, tokens}, {16, 48, tokens}, {48, 101, 33}, {96, 97, 1}}) {
                    INFO(ops->name, " ", dtype_info(one.type).name, " ", cols, " rows ", part.begin, " ", part.end);
                    const std::size_t n = part.end - part.begin, out_cols = n + 40;
                    Guarded<Bf16> want(tiles_size(part.tokens, out_cols)), got(tiles_size(part.tokens, out_cols));
                    std::fill_n(want.data(), want.size(), Bf16{7});
                    std::fill_n(got.data(), got.size(), Bf16{7});
                    ops->silu_mul(g.data() + part.begin, u.data() + part.begin, rows + 3, part.tokens,
                                  {want.data(), out_cols, 32, n});
                    ops->gated_gemm({gate.packing, gate.packed.data()}, {up.packing, up.packed.data()}, part.begin,
                                    part.end, cols, tiles.data(), part.tokens, {got.data(), out_cols, 32, n});
                    CHECK(got.intact());
                    std::size_t wrong = 0;
                    for (std::size_t j = 0; j < got.size(); ++j) wrong += got[j] != want[j];
                    CHECK(wrong == 0);
                }
            }
        }
}
