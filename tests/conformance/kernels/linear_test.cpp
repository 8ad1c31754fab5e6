// gemv and gemm of every weight format: the bound of kernels/api/ops.h, and results that depend on nothing but the row
// and the token.
#include "inputs.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

struct Problem {
    WeightType type;
    std::size_t rows, cols, tokens, row_bytes;
    std::vector<std::uint8_t> weights;
    Guarded<float> x;
    std::size_t x_stride;

    Problem(const WeightType& t, std::size_t n_rows, std::size_t n_cols, std::size_t n_tokens, Random& random)
        : type(t),
          rows(n_rows),
          cols(n_cols),
          tokens(n_tokens),
          row_bytes(dtype_bytes(t.type, n_cols)),
          weights(random_weights(t, n_rows * n_cols, random)),
          x(n_tokens * (n_cols + 3), 1),
          x_stride(n_cols + 3) {
        fill_normal(x, random);
        spoil_gaps(x, cols, x_stride);
    }

    // y[t][row], stride rows + 1.
    [[nodiscard]] Guarded<float> gemm(const Ops& ops, std::size_t row_begin, std::size_t row_end, std::size_t t0,
                                      std::size_t t1) const {
        Guarded<float> y((t1 - t0) * (rows + 1), 1);
        ops.gemm(type.type, weights.data(), row_bytes, row_begin, row_end, cols, x.data() + t0 * x_stride, x_stride,
                 t1 - t0, y.data(), rows + 1);
        CHECK(y.intact());
        return y;
    }

    // Elements beyond c * |w| * |x| * 2^-24 of the sum in double.
    [[nodiscard]] std::size_t beyond_bound(const Guarded<float>& y) const {
        const auto w = dequantized(type.type, weights, rows * cols);
        std::size_t far = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t r = 0; r < rows; ++r) {
                double sum = 0, w2 = 0, x2 = 0;
                for (std::size_t c = 0; c < cols; ++c) {
                    const double a = w[r * cols + c], b = x[t * x_stride + c];
                    sum += a * b;
                    w2 += a * a;
                    x2 += b * b;
                }
                const double factor = 2 * std::sqrt(static_cast<double>(cols)) + 8;
                const double bound = factor * std::sqrt(w2) * std::sqrt(x2) * 0x1p-24;
                far += !(std::fabs(y[t * (rows + 1) + r] - sum) <= bound);
            }
        return far;
    }
};

std::size_t multiple_of_block(const WeightType& type, std::size_t n) {
    const std::size_t block = dtype_info(type.type).block_elems;
    return (n + block - 1) / block * block;
}

}  // namespace

TEST_CASE("gemm and gemv keep the bound, for every format") {
    Random random(1);
    for (const WeightType& type : weight_types())
        for (std::size_t cols : {1, 64, 576, 1536, 3100}) {
            const Problem p(type, 21, multiple_of_block(type, cols), 7, random);
            for (const Ops* ops : runnable_backends()) {
                INFO(dtype_info(type.type).name, " cols ", p.cols, " on ", ops->name);
                const auto y = p.gemm(*ops, 0, p.rows, 0, p.tokens);
                CHECK(p.beyond_bound(y) == 0);
                Guarded<float> one(p.rows, 1);
                ops->gemv(type.type, p.weights.data(), p.row_bytes, 0, p.rows, p.cols, p.x.data(), one.data());
                std::size_t differing = 0;
                for (std::size_t r = 0; r < p.rows; ++r) differing += !same(one[r], y[r]);
                CHECK(differing == 0);
                CHECK(one.intact());
            }
        }
}

TEST_CASE("plain types at every number of columns") {
    Random random(2);
    for (const WeightType& type : weight_types()) {
        if (dtype_info(type.type).block_elems != 1) continue;
        for (std::size_t cols = 0; cols <= 37; ++cols) {
            const Problem p(type, 6, cols, 5, random);
            Problem spoiled(weight_types()[0], 64, 768, 6, random);
            for (std::size_t i = 0; i < spoiled.x.size(); ++i) spoiled.x[i] = NAN;
            std::memset(spoiled.weights.data(), 0xff, spoiled.weights.size());
            for (const Ops* ops : runnable_backends()) {
                (void)spoiled.gemm(*ops, 0, 64, 0, 6);  // leaves NaN in whatever the backend works with
                INFO(dtype_info(type.type).name, " cols ", cols, " on ", ops->name);
                CHECK(p.beyond_bound(p.gemm(*ops, 0, p.rows, 0, p.tokens)) == 0);
            }
        }
    }
}

TEST_CASE("one-sided sums, where rounding errors add up, keep the bound") {
    Random random(3);
    for (std::size_t cols : {576, 1536, 12288}) {
        Problem p(weight_types()[0], 4, cols, 4, random);
        for (std::size_t i = 0; i < p.x.size(); ++i) p.x[i] = 0.1F;
        std::vector<float> w(p.rows * p.cols, 0.7F);
        std::memcpy(p.weights.data(), w.data(), p.weights.size());
        for (const Ops* ops : runnable_backends()) {
            INFO(ops->name, " cols ", cols);
            CHECK(p.beyond_bound(p.gemm(*ops, 0, p.rows, 0, p.tokens)) == 0);
        }
    }
}

TEST_CASE("an element has the same bits however rows and tokens are divided") {
    Random random(4);
    for (const WeightType& type : weight_types())
        for (std::size_t cols : {std::size_t{256}, std::size_t{1792}}) {  // one block of columns, and two
            const Problem p(type, 37, cols, 150, random);
            for (const Ops* ops : runnable_backends()) {
                INFO(dtype_info(type.type).name, " cols ", cols, " on ", ops->name);
                const auto whole = p.gemm(*ops, 0, p.rows, 0, p.tokens);
                std::size_t differing = 0, written_outside = 0;
                for (const auto& [r0, r1] : {std::pair{0, 5}, {5, 6}, {6, 23}, {23, 37}})
                    for (const auto& [t0, t1] : {std::pair{0, 1}, {1, 3}, {3, 6}, {6, 13}, {13, 150}}) {
                        const auto part = p.gemm(*ops, static_cast<std::size_t>(r0), static_cast<std::size_t>(r1),
                                                 static_cast<std::size_t>(t0), static_cast<std::size_t>(t1));
                        for (int t = t0; t < t1; ++t)
                            for (int r = 0; r <= 37; ++r) {
                                const float value =
                                    part[static_cast<std::size_t>(t - t0) * 38 + static_cast<std::size_t>(r)];
                                if (r >= r0 && r < r1)
                                    differing += !same(
                                        value, whole[static_cast<std::size_t>(t) * 38 + static_cast<std::size_t>(r)]);
                                else
                                    written_outside += value != 0;
                            }
                    }
                CHECK(differing == 0);
                CHECK(written_outside == 0);
            }
        }
}

TEST_CASE("gemm has the bits of gemv in every row and token of several panels and blocks") {
    struct Shape {
        std::size_t rows, cols, tokens;
    };
    Random random(7);
    for (const WeightType& type : weight_types())
        for (const auto& [rows, n_cols, tokens] : {Shape{101, 512, 29}, {50, 300, 27}, {3, 2048, 205}}) {
            if (tokens > 100 && dtype_info(type.type).block_elems != 1) continue;
            const Problem p(type, rows, multiple_of_block(type, n_cols), tokens, random);
            for (const Ops* ops : runnable_backends()) {
                INFO(dtype_info(type.type).name, ' ', rows, 'x', p.cols, 'x', tokens, " on ", ops->name);
                const auto y = p.gemm(*ops, 0, rows, 0, tokens);
                CHECK(p.beyond_bound(y) == 0);
                std::size_t differing = 0;
                for (std::size_t t = 0; t < tokens; ++t) {
                    std::vector<float> one(rows);
                    ops->gemv(type.type, p.weights.data(), p.row_bytes, 0, rows, p.cols, p.x.data() + t * p.x_stride,
                              one.data());
                    for (std::size_t r = 0; r < rows; ++r) differing += !same(one[r], y[t * (rows + 1) + r]);
                }
                CHECK(differing == 0);
            }
        }
}

TEST_CASE("the vector backends agree bit for bit") {
    const auto backends = runnable_backends();
    Random random(5);
    for (const WeightType& type : weight_types())
        for (std::size_t cols : {std::size_t{256}, std::size_t{2304}}) {
            const Problem p(type, 19, cols, 9, random);
            for (std::size_t b = 2; b < backends.size(); ++b) {
                INFO(dtype_info(type.type).name, " cols ", cols, " on ", backends[b]->name, " and ", backends[1]->name);
                CHECK(count_differing(p.gemm(*backends[b], 0, 19, 0, 9), p.gemm(*backends[1], 0, 19, 0, 9)) == 0);
            }
        }
}

TEST_CASE("NaN and infinity reach only their own token") {
    Random random(6);
    for (const Ops* ops : runnable_backends())
        for (const float bad : {NAN, INFINITY}) {
            Problem p(weight_types()[3], 9, 64, 6, random);
            const auto clean = p.gemm(*ops, 0, 9, 0, 6);
            p.x[2 * p.x_stride + 63] = bad;
            const auto y = p.gemm(*ops, 0, 9, 0, 6);
            INFO(ops->name, " ", bad);
            for (std::size_t t = 0; t < 6; ++t)
                for (std::size_t r = 0; r < 9; ++r) {
                    if (t == 2)
                        CHECK_FALSE(std::isfinite(y[t * 10 + r]));
                    else
                        CHECK(same(y[t * 10 + r], clean[t * 10 + r]));
                }
        }
}
