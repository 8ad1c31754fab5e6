// Products in bf16 tiles (kernels/api/tiles.h): the layout read independently, the bounds named there, and results that
// depend on nothing but the row and the token.
#include "kernels/api/tiles.h"

#include <string>

#include "inputs.h"
#include "kernels/ref/ref.h"
#include "support/kv_pages.h"

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

namespace {

struct Attention {
    DType type = DType::f16;
    std::size_t heads = 3, dim_k = 64, dim_v = 64, queries = 1, keys = 1, window = 0;
    float softcap = 0;
};

struct Problem {
    Attention shape;
    std::vector<float> q, k, v;  // k and v as the cache has them
    KvPages k_pages, v_pages;

    Problem(const Attention& s, Random& random)
        : shape(s),
          q(values(s.queries * s.heads * s.dim_k, random)),
          k(values(s.keys * s.dim_k, random)),
          v(values(s.keys * s.dim_v, random)),
          k_pages(s.type, stored(s.type, k), s.dim_k),
          v_pages(s.type, stored(s.type, v), s.dim_v) {}

    static std::vector<float> values(std::size_t n, Random& random) {
        std::vector<float> x(n);
        fill_normal(x, random, 1.5F);
        return x;
    }
    // The bytes, and x rounded to what they hold.
    static std::vector<std::uint8_t> stored(DType type, std::vector<float>& x) {
        std::vector<std::uint8_t> bytes(dtype_bytes(type, x.size()));
        auto* halves = reinterpret_cast<std::uint16_t*>(bytes.data());
        if (type == DType::f32) std::memcpy(bytes.data(), x.data(), bytes.size());
        if (type == DType::f16) scalar().f32_to_f16(x.data(), halves, x.size());
        if (type == DType::bf16) scalar().f32_to_bf16(x.data(), halves, x.size());
        if (type == DType::f16) scalar().f16_to_f32(halves, x.data(), x.size());
        if (type == DType::bf16) scalar().bf16_to_f32(halves, x.data(), x.size());
        return bytes;
    }

    // Queries [begin, end), as [query][head][dim], a gap of 2 after each query.
    [[nodiscard]] Guarded<float> run(const TileOps& ops, std::size_t begin, std::size_t end) const {
        const Attention& s = shape;
        Guarded<float> out((end - begin) * (s.heads * s.dim_v + 2), 1);
        AttentionArgs args;
        args.q = q.data() + begin * s.heads * s.dim_k;
        args.q_stride = s.heads * s.dim_k;
        args.q_head_stride = s.dim_k;
        args.k = k_pages.view();
        args.v = v_pages.view();
        args.out = out.data();
        args.out_stride = s.heads * s.dim_v + 2;
        args.out_head_stride = s.dim_v;
        args.n_heads = s.heads;
        args.n_queries = end - begin;
        args.first_position = s.keys - s.queries + begin;
        args.kv_tokens = s.keys - s.queries + end;
        args.window = s.window;
        args.head_dim_k = s.dim_k;
        args.head_dim_v = s.dim_v;
        args.scale = 1 / std::sqrt(static_cast<float>(s.dim_k));
        args.softcap = s.softcap;
        ops.attention(args);
        CHECK(out.intact());
        return out;
    }

    // Outputs of a query and head beyond the bound.
    [[nodiscard]] std::size_t beyond_bound(const float* out, std::size_t query, std::size_t head) const {
        const Attention& s = shape;
        const float* x = q.data() + (query * s.heads + head) * s.dim_k;
        const std::size_t end = s.keys - s.queries + query + 1,
                          begin = s.window != 0 && end > s.window ? end - s.window : 0;
        const double scale = static_cast<double>(1 / std::sqrt(static_cast<float>(s.dim_k)));
        std::vector<double> p(end);
        double q2 = 0, k2 = 0, top = -1e300, largest = 0, sum = 0;
        for (std::size_t d = 0; d < s.dim_k; ++d) q2 += static_cast<double>(x[d]) * static_cast<double>(x[d]);
        for (std::size_t key = begin; key < end; ++key) {
            double dot = 0, own = 0;
            for (std::size_t d = 0; d < s.dim_k; ++d) {
                const double value = k[key * s.dim_k + d];
                dot += static_cast<double>(x[d]) * value;
                own += value * value;
            }
            p[key] = dot * scale;
            if (s.softcap > 0)
                p[key] = static_cast<double>(s.softcap) * std::tanh(p[key] / static_cast<double>(s.softcap));
            top = std::max(top, p[key]);
            largest = std::max(largest, std::fabs(dot * scale));
            k2 = std::max(k2, own);
        }
        for (std::size_t key = begin; key < end; ++key) sum += p[key] = std::exp(p[key] - top);
        const double e =
            std::sqrt(q2 * k2) * scale * (0x1p-14 + (2 * std::sqrt(static_cast<double>(s.dim_k)) + 8) * 0x1p-24) +
            (4 * largest + 8 * static_cast<double>(s.softcap)) * 0x1p-24;
        std::size_t far = 0;
        double v_max = 0;
        for (const float value : v) v_max = std::max(v_max, std::fabs(static_cast<double>(value)));
        for (std::size_t d = 0; d < s.dim_v; ++d) {
            double y = 0;
            for (std::size_t key = begin; key < end; ++key)
                y += p[key] / sum * static_cast<double>(v[key * s.dim_v + d]);
            far += !(std::fabs(static_cast<double>(out[d]) - y) <= (2 * e + 0x1p-7) * v_max);
        }
        return far;
    }
};

const std::vector<Attention>& attentions() {
    static const std::vector<Attention> all = {
        {.queries = 1, .keys = 1},
        {.queries = 40, .keys = 40},
        {.queries = 70, .keys = 200},
        {.type = DType::bf16, .heads = 1, .queries = 33, .keys = 129},
        {.type = DType::f32, .heads = 2, .dim_k = 40, .dim_v = 24, .queries = 20, .keys = 100},
        {.heads = 4, .dim_k = 128, .dim_v = 128, .queries = 17, .keys = 90, .window = 30},
        {.dim_k = 33, .dim_v = 81, .queries = 130, .keys = 300, .window = 64, .softcap = 5},
        {.heads = 5, .dim_k = 576, .dim_v = 512, .queries = 40, .keys = 70},
    };
    return all;
}

}  // namespace

TEST_CASE("attention in tiles, within its bound") {
    Random random(35);
    for (const Attention& shape : attentions()) {
        const Problem problem(shape, random);
        for (const TileOps* ops : runnable_tile_ops()) {
            INFO(ops->name, " dims ", shape.dim_k, " ", shape.dim_v, " keys ", shape.keys);
            const auto out = problem.run(*ops, 0, shape.queries);
            std::size_t far = 0;
            for (std::size_t query = 0; query < shape.queries; ++query)
                for (std::size_t head = 0; head < shape.heads; ++head)
                    far += problem.beyond_bound(
                        out.data() + query * (shape.heads * shape.dim_v + 2) + head * shape.dim_v, query, head);
            CHECK(far == 0);
        }
    }
}

TEST_CASE("attention in tiles has the same bits for a query alone and among others") {
    Random random(36);
    for (const Attention& shape : attentions()) {
        const Problem problem(shape, random);
        const std::size_t stride = shape.heads * shape.dim_v + 2;
        for (const TileOps* ops : runnable_tile_ops()) {
            INFO(ops->name, " dims ", shape.dim_k, " ", shape.dim_v, " keys ", shape.keys);
            const auto whole = problem.run(*ops, 0, shape.queries);
            for (std::size_t begin = 0, step = 1; begin < shape.queries; begin += step, step = step * 2 + 1) {
                const std::size_t end = std::min(begin + step, shape.queries);
                const auto part = problem.run(*ops, begin, end);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < part.size(); ++i) wrong += !same(part[i], whole[begin * stride + i]);
                CHECK(wrong == 0);
            }
        }
    }
}

namespace {

// A head in codes, and the values that they stand for, each operation rounded to f32.
struct CodedRows {
    std::vector<std::vector<std::uint8_t>> memory;
    std::vector<const std::byte*> pages;
    KvView view;
    std::vector<float> values;  // [token][dim]

    // By token, groups of 32 dims, or by channel, groups of 32 tokens.
    CodedRows(KvCodes codes, bool by_channel, bool zeros, std::size_t tokens, std::size_t dims, Random& random) {
        const bool paired = is_paired(codes);
        const std::size_t row_bytes = paired ? dims / 2 : dims, n_scales = by_channel ? 2 * dims : dims / 32 * 64;
        view.codes = codes;
        view.token_stride = dims;
        view.scale_offset = 64 * row_bytes;
        view.zero_offset = zeros ? view.scale_offset + 2 * n_scales : 0;
        (by_channel ? view.group_tokens : view.group) = 32;
        for (std::size_t token = 0; token < tokens; ++token) {
            if (token % 64 == 0) {
                auto& page = memory.emplace_back(64 * row_bytes + (zeros ? 4 : 2) * n_scales);
                for (std::size_t i = 0; i < (zeros ? 2 : 1) * n_scales; ++i) {
                    const float x = i < n_scales ? 0.01F + 0.01F * std::fabs(random.normal()) : random.normal();
                    std::uint16_t bits = 0;
                    scalar().f32_to_f16(&x, &bits, 1);
                    std::memcpy(page.data() + view.scale_offset + 2 * i, &bits, 2);
                }
            }
            auto& page = memory.back();
            const std::size_t row = token % 64;
            for (std::size_t d = 0; d < dims; ++d) {
                const auto code = static_cast<std::uint8_t>(random.bits() & (paired ? 15U : 255U));
                std::uint8_t& byte = page[row * row_bytes + (paired ? d / 2 : d)];
                byte = static_cast<std::uint8_t>(paired && d % 2 == 1 ? (byte & 15) | code << 4 : code);
                const int number = codes == KvCodes::i8                ? static_cast<std::int8_t>(code)
                                   : codes == KvCodes::i4 && code >= 8 ? code - 16
                                                                       : code;
                const std::size_t at = by_channel ? row / 32 * dims + d : d / 32 * 64 + row;
                const float product = static_cast<float>(number) * half(page, view.scale_offset + 2 * at);
                values.push_back(zeros ? product + half(page, view.zero_offset + 2 * at) : product);
            }
        }
        for (const auto& page : memory) pages.push_back(reinterpret_cast<const std::byte*>(page.data()));
        view.pages = pages.data();
    }
    CodedRows(const CodedRows&) = delete;
    CodedRows& operator=(const CodedRows&) = delete;

    static float half(const std::vector<std::uint8_t>& page, std::size_t at) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, page.data() + at, 2);
        float x = 0;
        scalar().f16_to_f32(&bits, &x, 1);
        return x;
    }
};

}  // namespace

TEST_CASE("attention in tiles over codes has the bits of their values in f32") {
    constexpr std::size_t tokens = 150, queries = 70, heads = 2, dims = 64;
    Random random(37);
    std::vector<float> q(queries * heads * dims);
    fill_normal(q, random, 1.0F);
    for (const KvCodes codes : {KvCodes::i8, KvCodes::u8, KvCodes::i4, KvCodes::u4})
        for (const bool by_channel : {false, true}) {
            const bool zeros = codes == KvCodes::u8 || codes == KvCodes::u4;
            const CodedRows k(codes, by_channel, zeros, tokens, dims, random),
                v(codes, false, zeros, tokens, dims, random);
            const auto in_floats = [&](const CodedRows& rows) {
                const auto* bytes = reinterpret_cast<const std::uint8_t*>(rows.values.data());
                return std::span(bytes, rows.values.size() * sizeof(float));
            };
            const KvPages k_floats(DType::f32, in_floats(k), dims), v_floats(DType::f32, in_floats(v), dims);
            for (const TileOps* ops : runnable_tile_ops()) {
                INFO(ops->name, " codes ", static_cast<int>(codes), " by channel ", by_channel);
                AttentionArgs args;
                args.q = q.data();
                args.q_stride = heads * dims;
                args.q_head_stride = args.out_head_stride = args.head_dim_k = args.head_dim_v = dims;
                args.out_stride = heads * dims;
                args.n_heads = heads;
                args.n_queries = queries;
                args.first_position = tokens - queries;
                args.kv_tokens = tokens;
                args.scale = 0.125F;
                Guarded<float> got(q.size()), want(q.size());
                args.k = k.view;
                args.v = v.view;
                args.out = got.data();
                ops->attention(args);
                args.k = k_floats.view();
                args.v = v_floats.view();
                args.out = want.data();
                ops->attention(args);
                CHECK(got.intact());
                CHECK(count_differing(got, want) == 0);
            }
        }
}
