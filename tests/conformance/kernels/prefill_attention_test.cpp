// Attention of a chunk of queries in 16 bits (kernels/api/tiles.h) against a naive one in double precision, results
// that depend on the query alone, and codes.
#include <span>
#include <string_view>

#include "inputs.h"
#include "kernels/api/tiles.h"
#include "support/kv_pages.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

std::vector<const Ops*> backends() {
    std::vector<const Ops*> list;
    for (const Ops* backend : runnable_backends())
        if (prefill_attention(*backend) != nullptr) list.push_back(backend);
    return list;
}

struct Attention {
    DType type = DType::f16;
    std::size_t heads = 3, dim_k = 64, dim_v = 64, queries = 1, keys = 1, window = 0;
    float softcap = 0;
    float q_size = 1.5F, k_size = 1.5F;  // of normal values
};

struct Problem {
    Attention shape;
    std::vector<float> q, k, v;  // k and v as the cache has them
    KvPages k_pages, v_pages;

    Problem(const Attention& s, Random& random)
        : shape(s),
          q(values(s.queries * s.heads * s.dim_k, random, s.q_size)),
          k(values(s.keys * s.dim_k, random, s.k_size)),
          v(values(s.keys * s.dim_v, random)),
          k_pages(s.type, stored(s.type, k), s.dim_k),
          v_pages(s.type, stored(s.type, v), s.dim_v) {}

    static std::vector<float> values(std::size_t n, Random& random, float size = 1.5F) {
        std::vector<float> x(n);
        fill_normal(x, random, size);
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
    [[nodiscard]] Guarded<float> run(const Ops& ops, std::size_t begin, std::size_t end) const {
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
        prefill_attention(ops)(args);
        CHECK(out.intact());
        return out;
    }

    // Outputs beyond the bound.
    [[nodiscard]] std::size_t beyond_bound(const Ops& ops) const {
        const auto out = run(ops, 0, shape.queries);
        std::size_t far = 0;
        for (std::size_t query = 0; query < shape.queries; ++query)
            for (std::size_t head = 0; head < shape.heads; ++head)
                far += beyond_bound(ops, out.data() + query * (shape.heads * shape.dim_v + 2) + head * shape.dim_v,
                                    query, head);
        return far;
    }

private:
    [[nodiscard]] std::size_t beyond_bound(const Ops& ops, const float* out, std::size_t query,
                                           std::size_t head) const {
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
        const double lengths =
            std::string_view(ops.name) == "amx" ? 0x1p-14 : std::sqrt(static_cast<double>(s.dim_k)) / 31900;
        const double e =
            std::sqrt(q2 * k2) * scale * (lengths + (2 * std::sqrt(static_cast<double>(s.dim_k)) + 8) * 0x1p-24) +
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

TEST_CASE("attention in 16 bits, within its bound") {
    Random random(35);
    for (const Attention& shape : attentions()) {
        const Problem problem(shape, random);
        for (const Ops* ops : backends()) {
            INFO(ops->name, " dims ", shape.dim_k, " ", shape.dim_v, " keys ", shape.keys);
            CHECK(problem.beyond_bound(*ops) == 0);
        }
    }
}

TEST_CASE("attention in 16 bits has the same bits for a query alone and among others") {
    Random random(36);
    for (const Attention& shape : attentions()) {
        const Problem problem(shape, random);
        const std::size_t stride = shape.heads * shape.dim_v + 2;
        for (const Ops* ops : backends()) {
            INFO(ops->name, " dims ", shape.dim_k, " ", shape.dim_v, " keys ", shape.keys);
            const auto whole = problem.run(*ops, 0, shape.queries);
            for (std::size_t begin = 0, step = 1; begin < shape.queries; begin += step, ++step) {
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

TEST_CASE("attention in 16 bits over codes has the bits of their values in f32") {
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
            for (const Ops* ops : backends()) {
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
                prefill_attention (*ops)(args);
                args.k = k_floats.view();
                args.v = v_floats.view();
                args.out = want.data();
                prefill_attention (*ops)(args);
                CHECK(got.intact());
                CHECK(count_differing(got, want) == 0);
            }
        }
}

TEST_CASE("which backends attend in 16 bits") {
    for (const Ops* const* backend = all_backends(); *backend; ++backend) {
        const std::string_view name((*backend)->name);
        INFO(name);
        CHECK((prefill_attention(**backend) != nullptr) == (name == "avx512_bf16" || name == "amx"));
    }
}

TEST_CASE("attention in 16 bits: queries of zeros, keys of zeros, and lengths of every size") {
    Random random(38);
    for (const float size : {0.0F, 1e-37F, 1e-10F, 1e4F})
        for (const bool of_keys : {false, true}) {
            Attention shape{.type = DType::f32, .queries = 20, .keys = 90};
            (of_keys ? shape.k_size : shape.q_size) = size;
            const Problem problem(shape, random);
            for (const Ops* ops : backends()) {
                INFO(ops->name, " ", size, " ", of_keys);
                CHECK(problem.beyond_bound(*ops) == 0);
            }
        }
}
