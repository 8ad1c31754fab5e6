// Attention of one query by spans of keys, over floats and codes, against a naive one in double precision.
//
// Bound: that of attention_test.cpp, with |code * scale| + |zero| for the size of a coded value, since the two are
// summed apart. Merging adds roundings of the number of spans, which the terms of the keys cover. Unless the arguments
// say `exact`, what the rounding of queries and weights adds over codes (api/ops.h).
#include <algorithm>
#include <optional>
#include <string>

#include "inputs.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

struct Coding {
    std::string name;
    DType dtype = DType::f16;
    KvCodes codes = KvCodes::floats;
    std::size_t group = 0, group_tokens = 0;
    bool zeros = false;
    std::optional<std::uint8_t> code = {};  // of every value; none: any
    [[nodiscard]] bool paired() const { return is_paired(codes); }
};

// A head's K or V: pages as a kernel reads them, and what they stand for.
class Coded {
public:
    Coded(Coding coding, std::size_t tokens, std::size_t dims, std::size_t open_tokens, Random& random)
        : dims_(dims),
          values(tokens * dims),
          sizes(tokens * dims),
          codes(tokens * dims),
          scales(tokens * dims),
          coding_(coding) {
        if (coding_.codes != KvCodes::floats && coding_.group_tokens == 0 && coding_.group == 0) coding_.group = dims;
        const bool floats = coding_.codes == KvCodes::floats;
        const std::size_t stride = floats ? dims + 3 : (dims + 1) / 2 * 2;
        const std::size_t element = coding_.dtype == DType::f32 ? 4 : 2;
        const std::size_t row_bytes = floats ? stride * element : coding_.paired() ? stride / 2 : stride;
        const std::size_t n_scales = coding_.group != 0          ? dims / coding_.group * 64
                                     : coding_.group_tokens != 0 ? 64 / coding_.group_tokens * dims
                                                                 : 0;
        constexpr std::size_t kOffset = 32;
        view_.dtype = coding_.dtype;
        view_.codes = coding_.codes;
        view_.offset = kOffset;
        view_.token_stride = stride;
        view_.group = coding_.group;
        view_.group_tokens = coding_.group_tokens;
        view_.scale_offset = kOffset + 64 * row_bytes;
        view_.zero_offset = coding_.zeros ? view_.scale_offset + 2 * n_scales : 0;
        const std::size_t open_begin =
            open_tokens == 0 ? tokens : (tokens - 1) / coding_.group_tokens * coding_.group_tokens;
        for (std::size_t first = 0; first < tokens; first += 64) {
            std::vector<std::uint8_t> page(kOffset + 64 * row_bytes + 2 * n_scales * (coding_.zeros ? 2 : 1), 0xff);
            for (std::size_t i = 0; i < n_scales; ++i) {
                put_half(page, view_.scale_offset + 2 * i, 0.001F + 0.01F * std::fabs(random.normal()));
                if (coding_.zeros) put_half(page, view_.zero_offset + 2 * i, random.normal());
            }
            for (std::size_t t = first; t < std::min(tokens, first + 64); ++t)
                for (std::size_t d = 0; d < dims; ++d) fill(page, kOffset + (t - first) * row_bytes, t, d, random);
            memory_.push_back(std::move(page));
        }
        for (const auto& page : memory_) pages_.push_back(reinterpret_cast<const std::byte*>(page.data()));
        view_.pages = pages_.data();
        if (open_tokens == 0) return;
        for (std::size_t i = open_begin * dims; i < tokens * dims; ++i) {  // what the pages have there must not matter
            const auto bits = half(random.normal());
            open_.push_back(bits);
            values[i] = value_of(bits);
            sizes[i] = std::fabs(values[i]);
            codes[i] = 0;
        }
        view_.open = open_.data();
        view_.open_begin = open_begin;
    }
    Coded(const Coded&) = delete;
    Coded& operator=(const Coded&) = delete;
    [[nodiscard]] const KvView& view() const { return view_; }
    [[nodiscard]] const double* row(std::size_t token) const { return values.data() + token * dims_; }
    [[nodiscard]] bool rounds() const { return coding_.codes != KvCodes::floats && coding_.codes != KvCodes::e4m3fn; }
    [[nodiscard]] const Coding& coding() const { return coding_; }

private:
    static std::uint16_t half(float x) {
        std::uint16_t bits = 0;
        scalar().f32_to_f16(&x, &bits, 1);
        return bits;
    }
    static double value_of(std::uint16_t bits) {
        float x = 0;
        scalar().f16_to_f32(&bits, &x, 1);
        return static_cast<double>(x);
    }
    static void put_half(std::vector<std::uint8_t>& page, std::size_t at, float x) {
        const std::uint16_t bits = half(x);
        std::memcpy(page.data() + at, &bits, 2);
    }
    static double half_at(const std::vector<std::uint8_t>& page, std::size_t at) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, page.data() + at, 2);
        return value_of(bits);
    }

    void fill(std::vector<std::uint8_t>& page, std::size_t row, std::size_t token, std::size_t dim, Random& random) {
        double& value = values[token * dims_ + dim];
        double& size = sizes[token * dims_ + dim];
        if (coding_.codes == KvCodes::floats) {
            const float x = random.normal();
            std::uint16_t bits = half(x);
            if (coding_.dtype == DType::bf16) scalar().f32_to_bf16(&x, &bits, 1);
            float stored = x;
            if (coding_.dtype == DType::f16) scalar().f16_to_f32(&bits, &stored, 1);
            if (coding_.dtype == DType::bf16) scalar().bf16_to_f32(&bits, &stored, 1);
            if (coding_.dtype == DType::f32)
                std::memcpy(page.data() + row + 4 * dim, &x, 4);
            else
                std::memcpy(page.data() + row + 2 * dim, &bits, 2);
            value = static_cast<double>(stored);
            size = std::fabs(value);
            return;
        }
        auto code = coding_.code.value_or(static_cast<std::uint8_t>(random.bits()));
        double number = code;
        if (coding_.paired()) {
            code &= 15;
            std::uint8_t& both = page[row + dim / 2];
            both = static_cast<std::uint8_t>(dim % 2 == 0 ? (both & 0xf0) | code : (both & 0x0f) | code << 4);
            number = coding_.codes == KvCodes::i4 && code >= 8 ? code - 16 : code;
        } else {
            if (coding_.codes == KvCodes::e4m3fn && (code & 127) == 127) code = 0x7e;
            page[row + dim] = code;
            if (coding_.codes == KvCodes::i8) number = static_cast<std::int8_t>(code);
            if (coding_.codes == KvCodes::e4m3fn) {
                const int exponent = code >> 3 & 15;
                number = std::ldexp(exponent == 0 ? code & 7 : 8 + (code & 7), std::max(exponent, 1) - 10);
                if (code & 128) number = -number;
            }
        }
        const std::size_t in_page = token % 64;
        const std::size_t at =
            coding_.group != 0 ? dim / coding_.group * 64 + in_page : in_page / coding_.group_tokens * dims_ + dim;
        const double scaled = number * half_at(page, view_.scale_offset + 2 * at);
        const double zero = coding_.zeros ? half_at(page, view_.zero_offset + 2 * at) : 0;
        codes[token * dims_ + dim] = std::fabs(number);
        scales[token * dims_ + dim] = half_at(page, view_.scale_offset + 2 * at);
        value = scaled + zero;
        size = std::fabs(scaled) + std::fabs(zero);
    }

    std::size_t dims_;

public:
    std::vector<double> values, sizes;  // [token][dim]; |code * scale| + |zero|
    std::vector<double> codes, scales;  // [token][dim], magnitudes; none of floats and open tokens

private:
    Coding coding_;
    KvView view_;
    std::vector<std::vector<std::uint8_t>> memory_;
    std::vector<const std::byte*> pages_;
    std::vector<std::uint16_t> open_;
};

const Coding plain[] = {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};
const Coding by_token[] = {{"i8", DType::f16, KvCodes::i8},         {"u8", DType::f16, KvCodes::u8, 0, 0, true},
                           {"i4", DType::f16, KvCodes::i4},         {"u4", DType::f16, KvCodes::u4, 0, 0, true},
                           {"e4m3fn", DType::f16, KvCodes::e4m3fn}, {"u4 g32", DType::f16, KvCodes::u4, 32, 0, true},
                           {"i8 g16", DType::f16, KvCodes::i8, 16}};
const Coding by_channel[] = {{"u8 by channel", DType::f16, KvCodes::u8, 0, 32, true},
                             {"i8 by channel", DType::f16, KvCodes::i8, 0, 64},
                             {"u4 by channel", DType::f16, KvCodes::u4, 0, 32, true},
                             {"i4 by channel", DType::f16, KvCodes::i4, 0, 16}};

struct Shape {
    std::size_t keys = 1, dims_k = 64, dims_v = 64, heads = 1, begin = 0, open_tokens = 0, span = 1 << 20;
    float softcap = 0;
};

struct Problem {
    static constexpr double rounding = 2 * (127 * 256 + 127);
    Shape shape;
    Coded k, v;
    std::vector<float> q;
    AttentionArgs args;

    Problem(const Coding& k_coding, const Coding& v_coding, const Shape& s, Random& random)
        : shape(s),
          k(k_coding, s.keys, s.dims_k, s.open_tokens, random),
          v(v_coding, s.keys, s.dims_v, 0, random),
          q(s.heads * (s.dims_k + 1)) {
        fill_normal(q, random);
        spoil_gaps(q, s.dims_k, s.dims_k + 1);
        args = {.q = q.data(),
                .k = k.view(),
                .v = v.view(),
                .n_queries = 1,
                .head_dim_k = s.dims_k,
                .head_dim_v = s.dims_v,
                .scale = 1 / std::sqrt(static_cast<float>(s.dims_k)),
                .softcap = s.softcap,
                .n_heads = s.heads,
                .q_head_stride = s.dims_k + 1};
    }

    // [head][dims_v]
    [[nodiscard]] Guarded<float> run(const Ops& ops) const {
        const std::size_t part = shape.dims_v + 2, first = shape.begin / shape.span;
        const std::size_t n_spans = (shape.keys + shape.span - 1) / shape.span - first;
        Guarded<float> parts(shape.heads * n_spans * part, 1), out(shape.heads * shape.dims_v, 1);
        ops.attention_spans(args, shape.begin, shape.keys, shape.span, parts.data(), n_spans * part);
        for (std::size_t head = 0; head < shape.heads; ++head)
            ops.attention_merge(parts.data() + head * n_spans * part, n_spans, shape.dims_v,
                                out.data() + head * shape.dims_v);
        CHECK(parts.intact());
        CHECK(out.intact());
        return out;
    }

    // The same by prefill's kernel.
    [[nodiscard]] Guarded<float> run_prefill(const Ops& ops) const {
        Guarded<float> out(shape.heads * shape.dims_v, 1);
        AttentionArgs all = args;
        all.out = out.data();
        all.out_head_stride = shape.dims_v;
        all.kv_tokens = shape.keys;
        all.first_position = shape.keys - 1;
        all.window = shape.keys - shape.begin;
        ops.attention(all);
        CHECK(out.intact());
        return out;
    }

    // What the rounding of the query may add to the product with a key.
    [[nodiscard]] double query_rounding(const float* qh, std::size_t key) const {
        if (!k.rounds()) return 0;
        const double *codes = k.codes.data() + key * shape.dims_k, *scales = k.scales.data() + key * shape.dims_k;
        const bool channels = k.coding().group == 0;
        const std::size_t group = channels ? shape.dims_k : k.coding().group;
        double error = 0;
        for (std::size_t first = 0; first < shape.dims_k; first += group) {
            double largest = 0, size = 0;
            for (std::size_t d = first; d < first + group; ++d) {
                const double q_size = std::fabs(static_cast<double>(qh[d]));
                largest = std::max(largest, channels ? q_size * scales[d] : q_size);
                size += channels ? codes[d] : codes[d] * scales[d];
            }
            error += largest * size / rounding;
        }
        return error;
    }

    // And that of the weights p [key - begin], to the sum of p * v[dim].
    [[nodiscard]] double weight_rounding(const std::vector<double>& p, std::size_t dim) const {
        double error = 0, largest = 0, size = 0;
        for (std::size_t key = shape.begin; v.rounds() && key < shape.keys; ++key) {
            const std::size_t i = key * shape.dims_v + dim;
            largest = std::max(largest, p[key - shape.begin] * v.scales[i]);
            size += v.codes[i];
            if (key % 64 != 63 && key + 1 < shape.keys) continue;
            error += largest * size / rounding;
            largest = size = 0;
        }
        return error;
    }

    [[nodiscard]] std::size_t beyond_bound(const Guarded<float>& out, bool exact) const {
        std::size_t far = 0;
        for (std::size_t head = 0; head < shape.heads; ++head) {
            const float* qh = q.data() + head * (shape.dims_k + 1);
            double q2 = 0, k2_max = 0, v_max = 0, s_max = 0, max = -INFINITY, sum = 0, rounded = 0;
            for (std::size_t d = 0; d < shape.dims_k; ++d)
                q2 += static_cast<double>(qh[d]) * static_cast<double>(qh[d]);
            std::vector<double> scores, wanted(shape.dims_v);
            const double cap = static_cast<double>(shape.softcap);
            for (std::size_t key = shape.begin; key < shape.keys; ++key) {
                double s = 0, k2 = 0;
                for (std::size_t d = 0; d < shape.dims_k; ++d) {
                    const double size = k.sizes[key * shape.dims_k + d];
                    s += static_cast<double>(qh[d]) * k.row(key)[d];
                    k2 += size * size;
                }
                s *= static_cast<double>(args.scale);
                if (cap > 0) s = cap * std::tanh(s / cap);
                scores.push_back(s);
                k2_max = std::max(k2_max, k2);
                if (!exact) rounded = std::max(rounded, query_rounding(qh, key) * static_cast<double>(args.scale));
                s_max = std::max(s_max, std::fabs(s));
                max = std::max(max, s);
            }
            for (std::size_t key = shape.begin; key < shape.keys; ++key) {
                const double p = scores[key - shape.begin] = std::exp(scores[key - shape.begin] - max);
                sum += p;
                for (std::size_t d = 0; d < shape.dims_v; ++d) {
                    wanted[d] += p * v.row(key)[d];
                    v_max = std::max(v_max, v.sizes[key * shape.dims_v + d]);
                }
            }
            const double dims = static_cast<double>(shape.dims_k), n = static_cast<double>(shape.keys - shape.begin);
            const double score_error =
                (2 * std::sqrt(dims) + 8) * std::sqrt(q2 * k2_max) * static_cast<double>(args.scale) + 4 * s_max +
                8 * cap;
            const double bound = ((2 * score_error + 2 * std::sqrt(n) + 64) * 0x1p-24 + 2 * rounded) * v_max;
            for (std::size_t d = 0; d < shape.dims_v; ++d) {
                const double added = exact ? 0 : 1.01 * weight_rounding(scores, d) / sum;  // of rounded scores
                const double error = std::fabs(static_cast<double>(out[head * shape.dims_v + d]) - wanted[d] / sum);
                far += !(error <= bound + added);
            }
        }
        return far;
    }
};

void check(const Coding& k, const Coding& v, const Shape& shape, Random& random) {
    Problem p(k, v, shape, random);
    for (const bool exact : {false, true}) {
        p.args.exact = exact;
        std::optional<Guarded<float>> vectors;
        for (const Ops* ops : runnable_backends()) {
            INFO(ops->name, ", K ", k.name, ", V ", v.name, ", keys ", shape.begin, " to ", shape.keys, ", dims ",
                 shape.dims_k, " ", shape.dims_v, ", heads ", shape.heads, ", span ", shape.span, ", exact ", exact);
            const auto out = p.run(*ops);
            CHECK(p.beyond_bound(out, exact) == 0);
            if (exact) CHECK(p.beyond_bound(p.run_prefill(*ops), true) == 0);
            if (ops == &scalar()) continue;
            if (vectors) CHECK(count_differing(out, *vectors) == 0);  // they agree bit for bit
            vectors = out;
        }
    }
}

}  // namespace

TEST_CASE("spans: any number of keys, of every type") {
    Random random(41);
    for (const std::size_t keys : {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300}) {
        for (const Coding& c : plain) check(c, c, {.keys = keys}, random);
        for (const Coding& c : by_token) check(c, c, {.keys = keys}, random);
        for (const Coding& c : by_channel) check(c, by_token[0], {.keys = keys}, random);
    }
}

TEST_CASE("spans: K and V of different types") {
    Random random(42);
    check(plain[1], by_token[3], {.keys = 100, .heads = 3}, random);
    check(by_token[0], plain[1], {.keys = 100, .heads = 3}, random);
    check(by_channel[0], by_token[1], {.keys = 100, .heads = 3}, random);
    check(by_channel[2], by_token[5], {.keys = 100, .heads = 3}, random);
}

TEST_CASE("spans: head sizes, equal and unequal") {
    Random random(43);
    for (const std::size_t dims : {1, 8, 16, 24, 40, 72, 80, 96, 128, 192, 256, 576})
        for (const Coding& c : plain) check(c, c, {.keys = 70, .dims_k = dims, .dims_v = dims, .heads = 2}, random);
    for (const std::size_t dims : {32, 40, 96, 128, 256}) {
        for (const Coding& c : by_token)
            if (dims % std::max<std::size_t>(c.group, 1) == 0)
                check(c, c, {.keys = 70, .dims_k = dims, .dims_v = dims, .heads = 2}, random);
        for (const Coding& c : by_channel)
            check(c, by_token[1], {.keys = 70, .dims_k = dims, .dims_v = dims, .heads = 2}, random);
    }
    check(plain[1], plain[1], {.keys = 90, .dims_k = 192, .dims_v = 128}, random);
    check(plain[1], plain[1], {.keys = 20, .dims_k = 576, .dims_v = 512, .heads = 9}, random);
    check(plain[1], plain[1], {.keys = 20, .dims_k = 20000, .dims_v = 64}, random);  // more than the scratch holds
}

TEST_CASE("spans: the length does not matter, windows begin anywhere") {
    Random random(44);
    for (const std::size_t span : {64, 128, 256})
        for (const std::size_t begin : {0, 1, 50, 63, 64, 65, 130, 257}) {
            check(plain[1], plain[1], {.keys = 400, .heads = 3, .begin = begin, .span = span}, random);
            check(by_channel[0], by_token[3], {.keys = 400, .heads = 3, .begin = begin, .span = span}, random);
            check(by_token[5], by_token[5], {.keys = 400, .heads = 3, .begin = begin, .span = span}, random);
        }
}

TEST_CASE("spans: the tokens of an open group are read as they are") {
    Random random(45);
    for (const Coding& c : by_channel)
        for (const std::size_t keys : {1, 15, 16, 17, 32, 33, 64, 65, 95, 97, 128, 200})
            for (const std::size_t begin : {std::size_t{0}, keys - 1, keys / 2})
                check(c, by_token[0], {.keys = keys, .heads = 3, .begin = begin, .open_tokens = 1, .span = 64}, random);
}

TEST_CASE("spans: soft caps") {
    Random random(46);
    for (const float softcap : {0.5F, 5.0F, 50.0F}) {
        check(plain[1], plain[1], {.keys = 90, .softcap = softcap}, random);
        check(by_token[1], by_token[1], {.keys = 90, .softcap = softcap}, random);
    }
}

TEST_CASE("spans: heads that share K and V have the bits of each alone") {
    Random random(47);
    const Coding codings[] = {plain[1], by_token[0], by_token[5], by_channel[2]};
    for (const Coding& c : codings)
        for (const std::size_t heads : {2, 3, 4, 5, 9}) {
            const Problem p(c, c.group_tokens == 0 ? c : by_token[0], {.keys = 203, .heads = heads, .span = 64},
                            random);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " ", c.name, " ", heads, " heads");
                const auto together = p.run(*ops);
                std::vector<float> parts(4 * 66), alone(64);
                std::size_t differing = 0;
                for (std::size_t head = 0; head < heads; ++head) {
                    AttentionArgs one = p.args;
                    one.q += head * one.q_head_stride;
                    one.n_heads = 1;
                    for (std::size_t span = 0; span < 4; ++span)
                        ops->attention_spans(one, span * 64, std::min<std::size_t>(span * 64 + 64, 203), 64,
                                             parts.data() + span * 66, 0);
                    ops->attention_merge(parts.data(), 4, 64, alone.data());
                    for (std::size_t d = 0; d < 64; ++d) differing += !same(alone[d], together[head * 64 + d]);
                }
                CHECK(differing == 0);
            }
        }
}

TEST_CASE("spans: NaN in a visible key or value shows, elsewhere it does not") {
    Random random(48);
    for (const Ops* ops : runnable_backends())
        for (const bool in_k : {true, false}) {
            INFO(ops->name, " ", in_k);
            Problem p(plain[0], plain[0], {.keys = 70, .begin = 10}, random);
            const Guarded<float> clean = p.run(*ops);
            const KvView& view = in_k ? p.args.k : p.args.v;
            auto* tile = const_cast<std::byte*>(view.pages[0]) + view.offset;
            const float bad = NAN;
            std::memcpy(tile + (3 * view.token_stride + 13) * sizeof bad, &bad, sizeof bad);
            CHECK(count_differing(p.run(*ops), clean) == 0);
            std::memcpy(tile + (33 * view.token_stride + 13) * sizeof bad, &bad, sizeof bad);
            CHECK(std::isnan(p.run(*ops)[13]));
        }
}

TEST_CASE("spans: the largest products that integers must hold") {
    Random random(49);
    for (const Coding& c :
         {Coding{"u8", DType::f16, KvCodes::u8, 0, 0, true, 255},
          Coding{"i8", DType::f16, KvCodes::i8, 0, 0, false, 128},
          Coding{"u4", DType::f16, KvCodes::u4, 0, 0, true, 15}, Coding{"i4", DType::f16, KvCodes::i4, 0, 0, false, 8},
          Coding{"u8 by channel", DType::f16, KvCodes::u8, 0, 32, true, 255}})
        for (const float query : {1.0F, -1.0F, 1e-20F}) {
            const Coding& v = c.group_tokens == 0 ? c : by_token[0];
            Problem p(c, v, {.keys = 64, .dims_k = 256, .dims_v = 256, .heads = 3}, random);
            std::fill(p.q.begin(), p.q.end(), query);
            for (const Ops* ops : runnable_backends()) {
                INFO(ops->name, " ", c.name, " ", query);
                CHECK(p.beyond_bound(p.run(*ops), false) == 0);
            }
        }
}

TEST_CASE("spans: NaN or infinity in a query over codes shows in its head alone") {
    Random random(50);
    for (const Coding& c : {by_token[0], by_token[5], by_channel[0]})
        for (const float bad : {NAN, INFINITY}) {
            Problem p(c, by_token[0], {.keys = 100, .heads = 3}, random);
            std::vector<Guarded<float>> clean;
            for (const Ops* ops : runnable_backends()) clean.push_back(p.run(*ops));
            p.q[65 + 5] = bad;
            for (std::size_t i = 0; i < runnable_backends().size(); ++i) {
                const Ops* ops = runnable_backends()[i];
                INFO(ops->name, " ", c.name, " ", bad);
                const auto out = p.run(*ops);
                std::size_t differing = 0, numbers = 0;
                for (std::size_t d = 0; d < 64; ++d) {
                    differing += !same(out[d], clean[i][d]) + !same(out[128 + d], clean[i][128 + d]);
                    numbers += !std::isnan(out[64 + d]);
                }
                CHECK(differing == 0);
                CHECK(numbers == 0);
            }
        }
}
