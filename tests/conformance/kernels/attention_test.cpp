// Attention against a naive one in double precision, and results that depend on the query alone.
//
// Bound. With u = 2^-24: a score is off by at most e_s = ((2 sqrt(d) + 8) |q| |k| scale + 4 |s|) u, as in gemm; soft
// capping adds 8 u cap. A weight exp(s - max) is then off by a factor 1 + 2 e_s + (|s - max| + 8) u, of which weights
// that matter have |s - max| < 20; n of them are summed. So |error| <= (2 e_s + (2 sqrt(n) + 64) u) max|v|.
#include <algorithm>

#include "inputs.h"
#include "support/kv_pages.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

struct Shape {
    DType dtype = DType::f16;
    std::size_t n_queries = 1, kv_tokens = 1, head_dim_k = 64, head_dim_v = 64, window = 0;
    float softcap = 0;
    float q_scale = 1;
};

struct Problem {
    Shape shape;
    std::size_t k_stride, v_stride, out_stride;
    std::vector<float> q, k, v;  // k and v as the kernel sees them
    std::vector<std::uint8_t> k_bytes, v_bytes;
    float scale;

    Problem(const Shape& s, Random& random)
        : shape(s),
          k_stride(s.head_dim_k + 5),
          v_stride(s.head_dim_v + 2),
          out_stride(s.head_dim_v + 1),
          q(s.n_queries * (s.head_dim_k + 1)),
          k(s.kv_tokens * k_stride),
          v(s.kv_tokens * v_stride),
          scale(1 / std::sqrt(static_cast<float>(s.head_dim_k))) {
        fill_normal(q, random, s.q_scale);
        fill_normal(k, random);
        fill_normal(v, random);
        spoil_gaps(q, s.head_dim_k, s.head_dim_k + 1);
        spoil_gaps(k, s.head_dim_k, k_stride);
        spoil_gaps(v, s.head_dim_v, v_stride);
        k_bytes = stored(k);
        v_bytes = stored(v);
    }

    // Rounds the values to the stored type.
    std::vector<std::uint8_t> stored(std::vector<float>& values) const {
        std::vector<std::uint8_t> bytes(values.size() * (shape.dtype == DType::f32 ? 4 : 2));
        if (shape.dtype == DType::f32) {
            std::memcpy(bytes.data(), values.data(), bytes.size());
            return bytes;
        }
        std::vector<std::uint16_t> halves(values.size());
        if (shape.dtype == DType::f16) {
            scalar().f32_to_f16(values.data(), halves.data(), values.size());
            scalar().f16_to_f32(halves.data(), values.data(), values.size());
        } else {
            scalar().f32_to_bf16(values.data(), halves.data(), values.size());
            scalar().bf16_to_f32(halves.data(), values.data(), values.size());
        }
        std::memcpy(bytes.data(), halves.data(), bytes.size());
        return bytes;
    }

    // The last n_queries tokens are the queries; [q0, q1) of them in one call.
    [[nodiscard]] Guarded<float> run(const Ops& ops, std::size_t q0, std::size_t q1) const {
        Guarded<float> out((q1 - q0) * out_stride, 1);
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = NAN;  // what was there must not matter
        const std::size_t first = shape.kv_tokens - shape.n_queries;
        const KvPages k_pages(shape.dtype, k_bytes, k_stride), v_pages(shape.dtype, v_bytes, v_stride);
        const AttentionArgs args{.q = q.data() + q0 * (shape.head_dim_k + 1),
                                 .q_stride = shape.head_dim_k + 1,
                                 .k = k_pages.view(),
                                 .v = v_pages.view(),
                                 .out = out.data(),
                                 .out_stride = out_stride,
                                 .n_queries = q1 - q0,
                                 .kv_tokens = first + q1,
                                 .first_position = first + q0,
                                 .window = shape.window,
                                 .head_dim_k = shape.head_dim_k,
                                 .head_dim_v = shape.head_dim_v,
                                 .scale = scale,
                                 .softcap = shape.softcap};
        ops.attention(args);
        CHECK(out.intact());
        return out;
    }

    [[nodiscard]] std::size_t beyond_bound(const Guarded<float>& out) const {
        std::size_t far = 0;
        for (std::size_t i = 0; i < shape.n_queries; ++i) {
            const std::size_t position = shape.kv_tokens - shape.n_queries + i, end = position + 1;
            const std::size_t begin = shape.window && end > shape.window ? end - shape.window : 0;
            const float* qi = q.data() + i * (shape.head_dim_k + 1);
            double q2 = 0, k2_max = 0, v_max = 0, s_max = 0, max = -INFINITY, sum = 0;
            for (std::size_t d = 0; d < shape.head_dim_k; ++d)
                q2 += static_cast<double>(qi[d]) * static_cast<double>(qi[d]);
            std::vector<double> scores, exact(shape.head_dim_v);
            for (std::size_t key = begin; key < end; ++key) {
                double s = 0, k2 = 0;
                for (std::size_t d = 0; d < shape.head_dim_k; ++d) {
                    const double kd = k[key * k_stride + d];
                    s += static_cast<double>(qi[d]) * kd;
                    k2 += kd * kd;
                }
                s *= static_cast<double>(scale);
                if (shape.softcap > 0)
                    s = static_cast<double>(shape.softcap) * std::tanh(s / static_cast<double>(shape.softcap));
                scores.push_back(s);
                k2_max = std::max(k2_max, k2);
                s_max = std::max(s_max, std::fabs(s));
                max = std::max(max, s);
            }
            for (std::size_t key = begin; key < end; ++key) {
                const double p = std::exp(scores[key - begin] - max);
                sum += p;
                for (std::size_t d = 0; d < shape.head_dim_v; ++d) {
                    const double vd = v[key * v_stride + d];
                    exact[d] += p * vd;
                    v_max = std::max(v_max, std::fabs(vd));
                }
            }
            const double dims = static_cast<double>(shape.head_dim_k), n = static_cast<double>(end - begin);
            const double score_error = (2 * std::sqrt(dims) + 8) * std::sqrt(q2 * k2_max) * static_cast<double>(scale) +
                                       4 * s_max + 8 * static_cast<double>(shape.softcap);
            const double bound = (2 * score_error + 2 * std::sqrt(n) + 64) * 0x1p-24 * v_max;
            for (std::size_t d = 0; d < shape.head_dim_v; ++d)
                far += !(std::fabs(static_cast<double>(out[i * out_stride + d]) - exact[d] / sum) <= bound);
        }
        return far;
    }
};

const DType kKvTypes[] = {DType::f32, DType::f16, DType::bf16};

void check(const Shape& shape, Random& random) {
    const Problem p(shape, random);
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name, " ", dtype_info(shape.dtype).name, " queries ", shape.n_queries, " keys ", shape.kv_tokens,
             " dims ", shape.head_dim_k, " ", shape.head_dim_v, " window ", shape.window, " softcap ", shape.softcap);
        CHECK(p.beyond_bound(p.run(*ops, 0, shape.n_queries)) == 0);
    }
}

}  // namespace

TEST_CASE("one query over any number of keys") {
    Random random(1);
    for (const DType dtype : kKvTypes)
        for (std::size_t keys : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 66, 80, 127, 128, 129, 300, 2049})
            check({.dtype = dtype, .kv_tokens = keys}, random);
}

TEST_CASE("head sizes, equal and unequal, multiples of 16 and not") {
    Random random(2);
    for (const DType dtype : kKvTypes)
        for (std::size_t dims : {1, 8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256, 300, 576})
            check({.dtype = dtype, .n_queries = 6, .kv_tokens = 70, .head_dim_k = dims, .head_dim_v = dims}, random);
    check({.n_queries = 5, .kv_tokens = 90, .head_dim_k = 192, .head_dim_v = 128}, random);
    check({.n_queries = 5, .kv_tokens = 90, .head_dim_k = 24, .head_dim_v = 16}, random);
    check({.n_queries = 4, .kv_tokens = 20, .head_dim_k = 1600, .head_dim_v = 1600},
          random);  // more than the scratch holds
}

TEST_CASE("prefill: many queries, from the start or after a prefix") {
    Random random(3);
    for (const DType dtype : kKvTypes)
        for (const auto& [queries, keys] : {std::pair{129, 129}, {33, 100}, {64, 64}, {5, 1000}, {3, 66}})
            check({.dtype = dtype,
                   .n_queries = static_cast<std::size_t>(queries),
                   .kv_tokens = static_cast<std::size_t>(keys)},
                  random);
}

TEST_CASE("windows") {
    Random random(4);
    for (std::size_t window : {1, 2, 16, 63, 64, 65, 100, 1000})
        for (std::size_t queries : {std::size_t{1}, std::size_t{40}, std::size_t{150}})
            check({.n_queries = queries, .kv_tokens = 200, .window = window}, random);
}

TEST_CASE("soft caps, weak and strong") {
    Random random(5);
    for (const float softcap : {0.5F, 5.0F, 50.0F})
        for (const float q_scale : {0.01F, 1.0F, 30.0F})
            check({.n_queries = 20, .kv_tokens = 90, .softcap = softcap, .q_scale = q_scale}, random);
}

TEST_CASE("sharp softmax: large scores neither overflow nor lose the rest") {
    Random random(6);
    for (const float q_scale : {10.0F, 100.0F}) check({.n_queries = 9, .kv_tokens = 200, .q_scale = q_scale}, random);
}

TEST_CASE("a query has the same bits alone, in a chunk, and in a whole prefill") {
    Random random(7);
    for (const DType dtype : kKvTypes)
        for (std::size_t window : {0, 50}) {
            const Problem p({.dtype = dtype, .n_queries = 150, .kv_tokens = 190, .window = window}, random);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " ", dtype_info(dtype).name, " window ", window);
                const auto whole = p.run(*ops, 0, 150);
                std::size_t differing = 0;
                for (std::size_t chunk : {1, 3, 7, 64, 100})
                    for (std::size_t q0 = 0; q0 < 150; q0 += chunk) {
                        const std::size_t q1 = std::min<std::size_t>(150, q0 + chunk);
                        const auto part = p.run(*ops, q0, q1);
                        for (std::size_t i = q0; i < q1; ++i)
                            for (std::size_t d = 0; d < 64; ++d)
                                differing += !same(part[(i - q0) * 65 + d], whole[i * 65 + d]);
                    }
                CHECK(differing == 0);
            }
        }
}

TEST_CASE("the vector backends agree bit for bit") {
    const auto backends = runnable_backends();
    Random random(8);
    for (const DType dtype : kKvTypes)
        for (std::size_t dims : {64, 80, 128, 40}) {
            const Problem p({.dtype = dtype,
                             .n_queries = 40,
                             .kv_tokens = 333,
                             .head_dim_k = dims,
                             .head_dim_v = dims,
                             .softcap = 20},
                            random);
            for (std::size_t b = 2; b < backends.size(); ++b) {
                INFO(dtype_info(dtype).name, " dims ", dims, " on ", backends[b]->name);
                CHECK(count_differing(p.run(*backends[b], 0, 40), p.run(*backends[1], 0, 40)) == 0);
            }
        }
}

TEST_CASE("keys out of sight are never read into the result") {
    Random random(9);
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        Problem p({.dtype = DType::f32, .n_queries = 1, .kv_tokens = 100, .window = 30}, random);
        const auto clean = p.run(*ops, 0, 1);
        std::vector<float> bad(70 * p.k_stride, NAN);  // the wider of the two
        std::memcpy(p.v_bytes.data(), bad.data(), 70 * p.v_stride * sizeof(float));
        std::memcpy(p.k_bytes.data(), bad.data(), 70 * p.k_stride * sizeof(float));
        CHECK(count_differing(p.run(*ops, 0, 1), clean) == 0);
    }
}

TEST_CASE("NaN in a visible key or value shows in the result") {
    Random random(10);
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        for (const bool in_k : {true, false}) {
            Problem p({.dtype = DType::f32, .n_queries = 2, .kv_tokens = 70}, random);
            const float bad = NAN;
            std::memcpy((in_k ? p.k_bytes : p.v_bytes).data() + 13 * 4 + 3 * 4 * (in_k ? p.k_stride : p.v_stride), &bad,
                        4);
            const auto out = p.run(*ops, 0, 2);
            CHECK(std::isnan(out[13]));
            CHECK(std::isnan(out[65 + 13]));
        }
    }
}

TEST_CASE("no key in sight gives zero") {
    for (const Ops* ops : runnable_backends()) {
        INFO(ops->name);
        std::vector<float> q(64, 1), out(64, NAN);
        AttentionArgs args;
        args.q = q.data();
        args.out = out.data();
        args.q_stride = args.out_stride = args.head_dim_k = args.head_dim_v = 64;
        args.n_queries = 1;
        ops->attention(args);
        CHECK(out == std::vector<float>(64, 0));
    }
}

TEST_CASE("heads that share K and V have the bits of each alone") {
    Random random(31);
    constexpr std::size_t heads = 3, dims = 72, dims_v = 40, keys = 210;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const std::size_t queries : {1, 2, 11})
            for (const std::size_t window : {0, 90}) {
                std::vector<float> q(queries * heads * dims);
                fill_normal(q, random);
                Problem shared({dtype, queries, keys, dims, dims_v, window, 0, 1}, random);
                const KvPages k_pages(dtype, shared.k_bytes, shared.k_stride);
                const KvPages v_pages(dtype, shared.v_bytes, shared.v_stride);
                AttentionArgs args{.q = q.data(),
                                   .q_stride = heads * dims,
                                   .k = k_pages.view(),
                                   .v = v_pages.view(),
                                   .out = nullptr,
                                   .out_stride = heads * dims_v,
                                   .n_queries = queries,
                                   .kv_tokens = keys,
                                   .first_position = keys - queries,
                                   .window = window,
                                   .head_dim_k = dims,
                                   .head_dim_v = dims_v,
                                   .scale = shared.scale,
                                   .softcap = 0};
                for (const Ops* ops : runnable_backends()) {
                    INFO(dtype_info(dtype).name, " ", queries, " queries on ", ops->name);
                    Guarded<float> apart(queries * heads * dims_v, 1), together(queries * heads * dims_v, 1);
                    for (std::size_t head = 0; head < heads; ++head) {
                        AttentionArgs one = args;
                        one.q += head * dims;
                        one.out = apart.data() + head * dims_v;
                        ops->attention(one);
                    }
                    AttentionArgs all = args;
                    all.out = together.data();
                    all.n_heads = heads;
                    all.q_head_stride = dims;
                    all.out_head_stride = dims_v;
                    ops->attention(all);
                    CHECK(together.intact());
                    CHECK(count_differing(apart, together) == 0);
                    CHECK(std::any_of(together.data(), together.data() + together.size(),
                                      [](float x) { return x != 0; }));
                }
            }
}
