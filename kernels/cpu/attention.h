// Attention with an online softmax over tiles of keys. Tiles start at multiples of kTileKeys from key 0, whatever the
// queries, so a query's result does not depend on which queries it came with: prefill in chunks and decode agree bit
// for bit. After Milakov and Gimelshein (https://arxiv.org/abs/1805.02867) and Dao et al.
// (https://arxiv.org/abs/2205.14135). Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kTileKeys = kKvPageTokens;
constexpr std::size_t kRowBlock = 32;  // queries of heads that meet a tile together

struct F32Element {
    static constexpr bool kAny = false;
    using Type = float;
    static HETERO_INLINE F32x16 load_lanes(const float* p) { return load(p); }
};
struct F16Element {
    static constexpr bool kAny = false;
    using Type = std::uint16_t;
    static HETERO_INLINE F32x16 load_lanes(const std::uint16_t* p) { return load_f16(p); }
};
struct BF16Element {
    static constexpr bool kAny = false;
    using Type = std::uint16_t;
    static HETERO_INLINE F32x16 load_lanes(const std::uint16_t* p) { return load_bf16(p); }
};

template <class Element>
HETERO_INLINE F32x16 load_some(const typename Element::Type* p, std::size_t n) {
    typename Element::Type lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof lanes[0]);
    return Element::load_lanes(lanes);
}

// Rows of K or V: the caller's, or a tile converted to f32.
template <class Element>
struct Rows {
    const typename Element::Type* data;
    std::size_t stride;
    HETERO_INLINE const typename Element::Type* at(std::size_t i) const { return data + i * stride; }
};

template <class Element>
HETERO_INLINE Rows<Element> tile_rows(const KvView& view, std::size_t page) {
    const void* tile = view.pages[page] + view.offset;
    return {static_cast<const typename Element::Type*>(tile), view.token_stride};
}

// scores[i] = q . k[i], for 16 keys, or 1.
template <class Element>
HETERO_INLINE void dot_16(const float* q, const typename Element::Type* k, std::size_t stride, std::size_t dims,
                          float* scores) {
    constexpr int kAtOnce = kParts == 1 ? 16 : 4;  // sums that fit the registers
    F32x16 acc[4][4];
#pragma GCC unroll 4
    for (int first_key = 0; first_key < 16; first_key += kAtOnce) {
#pragma GCC unroll 16
        for (int i = 0; i < kAtOnce; ++i) acc[(first_key + i) / 4][i % 4] = zero();
        std::size_t d = 0;
        for (; d + kLanes <= dims; d += kLanes) {
            const F32x16 qd = load(q + d);
#pragma GCC unroll 16
            for (int i = 0; i < kAtOnce; ++i) {
                F32x16& a = acc[(first_key + i) / 4][i % 4];
                a = fma(qd, Element::load_lanes(k + static_cast<std::size_t>(first_key + i) * stride + d), a);
            }
        }
        if (d < dims) {
            const F32x16 qd = load(q + d, dims - d);
            for (int i = 0; i < kAtOnce; ++i) {
                F32x16& a = acc[(first_key + i) / 4][i % 4];
                a = fma(qd, load_some<Element>(k + static_cast<std::size_t>(first_key + i) * stride + d, dims - d), a);
            }
        }
    }
    store(scores, sum_4x4(acc));
}

template <class Element>
HETERO_INLINE float dot(const float* q, const typename Element::Type* k, std::size_t dims) {
    F32x16 acc = zero();
    std::size_t d = 0;
    for (; d + kLanes <= dims; d += kLanes) acc = fma(load(q + d), Element::load_lanes(k + d), acc);
    if (d < dims) acc = fma(load(q + d, dims - d), load_some<Element>(k + d, dims - d), acc);
    return sum(acc);
}

// So far: the largest score, and the sum of exp(score - max), by key mod 16.
struct Softmax {
    float max;
    F32x16 sum;
};

// A query of one head in a block, and its softmax so far: out holds the sum of exp(s - max) * v, not yet divided.
struct Row {
    const float* q;
    float* out;
    std::size_t begin, end;  // keys of the tile that it sees
    Softmax softmax;
    F32x16 correction;
    alignas(64) float p[kTileKeys];  // scores, then weights
};

// For `N` rows that see the same keys and `Runs` runs of 16 dims: out = out * correction + sum of p[key] * v[key].
// Even and odd keys are summed apart.
template <class Element, int Runs, int N>
HETERO_INLINE void weigh_values(Row* rows, Rows<Element> v, std::size_t d) {
    F32x16 acc[2][N][Runs];
#pragma GCC unroll 2
    for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
        for (int r = 0; r < Runs; ++r) acc[0][i][r] = acc[1][i][r] = zero();
    const std::size_t begin = rows[0].begin, end = rows[0].end;
    std::size_t key = begin;
    const auto take = [&](std::size_t k, F32x16(&sums)[N][Runs]) __attribute__((always_inline)) {
        const auto* row = v.at(k) + d;
        F32x16 weight[N];
#pragma GCC unroll 2
        for (int i = 0; i < N; ++i) weight[i] = splat(rows[i].p[k]);
#pragma GCC unroll 8
        for (int r = 0; r < Runs; ++r) {
            const F32x16 value = Element::load_lanes(row + 16 * r);
#pragma GCC unroll 2
            for (int i = 0; i < N; ++i) sums[i][r] = fma(weight[i], value, sums[i][r]);
        }
    };
    if (key % 2 == 1 && key < end) take(key++, acc[1]);
    for (; key + 2 <= end; key += 2) {
        take(key, acc[0]);
        take(key + 1, acc[1]);
    }
    if (key < end) take(key, acc[0]);
#pragma GCC unroll 2
    for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
        for (int r = 0; r < Runs; ++r) {
            float* out = rows[i].out + d + 16 * r;
            store(out, fma(load(out), rows[i].correction, acc[0][i][r] + acc[1][i][r]));
        }
}

template <class Element>
HETERO_INLINE void weigh_last_values(const Row& row, Rows<Element> v, std::size_t d, std::size_t n) {
    F32x16 acc[2] = {zero(), zero()};
    for (std::size_t key = row.begin; key < row.end; ++key)
        acc[key % 2] = fma(splat(row.p[key]), load_some<Element>(v.at(key) + d, n), acc[key % 2]);
    store(row.out + d, fma(load(row.out + d, n), row.correction, acc[0] + acc[1]), n);
}

template <class Element, int N>
void add_values(Row* rows, Rows<Element> v, std::size_t dims) {
    constexpr int kRuns = kParts == 1 ? 4 : 2 / N;
    std::size_t d = 0;
    for (; d + 16 * kRuns <= dims; d += 16 * kRuns) weigh_values<Element, kRuns, N>(rows, v, d);
    for (; d + 16 <= dims; d += 16) weigh_values<Element, 1, N>(rows, v, d);
    for (int i = 0; d < dims && i < N; ++i) weigh_last_values<Element>(rows[i], v, d, dims - d);
}

// Scores of the keys that a row sees.
template <class Element>
void score_keys(Row& row, Rows<Element> k, std::size_t dims) {
    std::size_t key = row.begin;
    for (; key + 16 <= row.end; key += 16) dot_16<Element>(row.q, k.at(key), k.stride, dims, row.p + key);
    for (; key < row.end; ++key) row.p[key] = dot<Element>(row.q, k.at(key), dims);
}

// For N heads, whose scores are `stride` floats apart: the scores p of a tile's keys [begin, end) to weights, those of
// other keys in the same runs of 16 to 0. corrections: what the values so far must be multiplied by. Whole: all keys
// of the tile. Step by step for all heads: they do not wait for one another.
template <int N, bool Whole>
HETERO_INLINE void weigh_keys(float* p, std::size_t stride, std::size_t begin, std::size_t end, float scale,
                              float softcap, Softmax* softmax, F32x16* corrections) {
    const F32x16 lowest = splat(-__builtin_inff());
    const std::size_t first_run = Whole ? 0 : begin / 16, end_run = Whole ? kTileKeys / 16 : (end + 15) / 16;
    F32x16 scores[N][kTileKeys / 16];
    F32x16 top[N];
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) {
        top[h] = lowest;
#pragma GCC unroll 4
        for (std::size_t run = first_run; run < end_run; ++run) {
            const std::size_t from = run * 16 < begin ? begin - run * 16 : 0, to = smaller(16, end - run * 16);
            const bool all = Whole || (from == 0 && to == 16);
            F32x16 s = load(p + static_cast<std::size_t>(h) * stride + 16 * run);
            if (!all) s = where_between(from, to, s, lowest);
            s = s * splat(scale);
            if (softcap > 0) {
                s = tanh(s / splat(softcap)) * splat(softcap);
                if (!all) s = where_between(from, to, s, lowest);
            }
            scores[h][run] = s;
            top[h] = max(s, top[h]);
        }
    }
    F32x16 maxima[N], sums[N];
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) {
        const float tile_max = max_lane(top[h]);
        const float new_max = tile_max > softmax[h].max ? tile_max : softmax[h].max;
        maxima[h] = splat(new_max);
        corrections[h] = splat(1.0F);
        if (new_max != softmax[h].max) {
            corrections[h] = exp(splat(softmax[h].max) - maxima[h]);
            softmax[h].sum = softmax[h].sum * corrections[h];
            softmax[h].max = new_max;
        }
        sums[h] = softmax[h].sum;
    }
#pragma GCC unroll 4
    for (std::size_t run = first_run; run < end_run; ++run)
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h) {
            const F32x16 weights = exp(scores[h][run] - maxima[h]);
            sums[h] = sums[h] + weights;
            store(p + static_cast<std::size_t>(h) * stride + 16 * run, weights);
        }
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) softmax[h].sum = sums[h];
}

// A tile of keys for a block of rows. Step by step for all of them: each step's rows do not wait for one another.
template <class Element>
void add_tile(const AttentionArgs& a, Row* rows, std::size_t n, Rows<Element> k, Rows<Element> v) {
    for (std::size_t i = 0; i < n; ++i)
        if (rows[i].begin < rows[i].end) score_keys<Element>(rows[i], k, a.head_dim_k);
    for (std::size_t i = 0; i < n; ++i)
        if (rows[i].begin < rows[i].end)
            weigh_keys<1, false>(rows[i].p, 0, rows[i].begin, rows[i].end, a.scale, a.softcap, &rows[i].softmax,
                                 &rows[i].correction);
    for (std::size_t i = 0; i < n;) {
        const bool pair = i + 1 < n && rows[i].begin == rows[i + 1].begin && rows[i].end == rows[i + 1].end;
        if (rows[i].begin < rows[i].end) {
            if (pair)
                add_values<Element, 2>(rows + i, v, a.head_dim_v);
            else
                add_values<Element, 1>(rows + i, v, a.head_dim_v);
        }
        i += pair ? 2 : 1;
    }
}

HETERO_INLINE void scale_to(float* dst, F32x16 factor, std::size_t n) {
    std::size_t d = 0;
    for (; d + 16 <= n; d += 16) store(dst + d, load(dst + d) / factor);
    if (d < n) store(dst + d, load(dst + d, n - d) / factor, n - d);
}

template <class Element>
void convert_rows(Rows<Element> src, std::size_t rows, std::size_t dims, float* dst) {
    for (std::size_t i = 0; i < rows; ++i, dst += dims) {
        std::size_t d = 0;
        for (; d + 16 <= dims; d += 16) store(dst + d, Element::load_lanes(src.at(i) + d));
        if (d < dims) store(dst + d, load_some<Element>(src.at(i) + d, dims - d), dims - d);
    }
}

// Runs of 16 lanes are whole, and within a group.
inline bool can_convert(const KvView& view, std::size_t dims) {
    const std::size_t unit = is_paired(view.codes) ? 32 : 16;
    return view.codes == KvCodes::floats || (dims % unit == 0 && view.group % 16 == 0);
}

// The low 4 bits of each lane in two's complement.
HETERO_INLINE F32x16 signed_nibbles(I32x16 codes) {
    return lookup(where_less(iota(), splat(8.0F), iota(), iota() - splat(16.0F)), codes);
}

// Codes of a tile's first rows to f32: code * scale + zero, each rounded.
HETERO_INLINE F32x16 code_lanes(KvCodes codes, U8x16 bytes) {
    if (codes == KvCodes::i8) return signed_values(bytes);
    if (codes == KvCodes::i4) return signed_nibbles(widen_unsigned(bytes));
    return unsigned_values(bytes);
}

inline void convert_codes(const KvView& view, std::size_t page, std::size_t rows, std::size_t dims, float* dst) {
    const std::byte* bytes = view.pages[page];
    const auto halves_at = [&](std::size_t offset) { return reinterpret_cast<const std::uint16_t*>(bytes + offset); };
    const std::uint16_t *scales = halves_at(view.scale_offset), *zeros = halves_at(view.zero_offset);
    const bool paired = is_paired(view.codes);
    for (std::size_t row = 0; row < rows; ++row, dst += dims) {
        const auto* from =
            reinterpret_cast<const std::uint8_t*>(bytes + view.offset) + row * view.token_stride / (paired ? 2 : 1);
        for (std::size_t d = 0; d < dims; d += 16) {
            F32x16 value;
            if (view.codes == KvCodes::e4m3fn) {
                value = load_e4m3fn(from + d) * splat(256.0F);
            } else if (paired) {
                const U8x16 both = bytes_load(from + d / 32 * 16), low = bits_and(both, 15),
                            high = bits_at(both, 4, 15);
                value = code_lanes(view.codes, d % 32 == 0 ? zip_low(low, high) : zip_high(low, high));
            } else {
                value = code_lanes(view.codes, bytes_load(from + d));
            }
            const std::size_t at =
                view.group != 0 ? d / view.group * kTileKeys + row : row / view.group_tokens * dims + d;
            const auto factor = [&](const std::uint16_t* array) {
                if (view.group == 0) return load_f16(array + at);
                return splat(kF16Table[array[at]]);
            };
            value = value * factor(scales);
            store(dst + d, view.zero_offset != 0 ? value + factor(zeros) : value);
        }
    }
}

// A tile in f32; of codes, those of open groups too.
inline void convert_coded_tile(const KvView& view, std::size_t page, std::size_t rows, std::size_t dims, float* dst) {
    std::size_t closed = rows;
    if (view.open != nullptr && page * kTileKeys + rows > view.open_begin)
        closed = view.open_begin > page * kTileKeys ? view.open_begin - page * kTileKeys : 0;
    convert_codes(view, page, closed, dims, dst);
    if (closed == rows) return;
    const Rows<F16Element> open{view.open + (page * kTileKeys + closed - view.open_begin) * dims, dims};
    convert_rows(open, rows - closed, dims, dst + closed * dims);
}

inline void convert_tile(const KvView& view, std::size_t page, std::size_t rows, std::size_t dims, float* dst) {
    if (view.codes != KvCodes::floats) return convert_coded_tile(view, page, rows, dims, dst);
    if (view.dtype == DType::f16) return convert_rows(tile_rows<F16Element>(view, page), rows, dims, dst);
    if (view.dtype == DType::bf16) return convert_rows(tile_rows<BF16Element>(view, page), rows, dims, dst);
    convert_rows(tile_rows<F32Element>(view, page), rows, dims, dst);
}

// Stands for parts that are of different types, or codes: tiles are always converted.
struct AnyElement : F32Element {
    static constexpr bool kAny = true;
};

template <class Element>
void attend(const AttentionArgs& a) {
    using Type = typename Element::Type;
    constexpr bool kAny = Element::kAny;
    constexpr bool kIsFloat = sizeof(Type) == sizeof(float) && !kAny;
    const bool fits = kTileKeys * (a.head_dim_k + a.head_dim_v) <= kScratchFloats;
    const std::size_t n_rows = a.n_queries * a.n_heads;
    float* scratch = !kIsFloat && fits && (n_rows >= 4 || kAny) ? thread_scratch() : nullptr;

    for (std::size_t block = 0; block < n_rows; block += kRowBlock) {
        const std::size_t n = smaller(kRowBlock, n_rows - block);
        // Keys that row i, of query i / n_heads, sees.
        const auto query = [&](std::size_t i) { return (block + i) / a.n_heads; };
        const auto keys_begin = [&](std::size_t i) {
            const std::size_t seen = a.first_position + query(i) + 1;
            return a.window != 0 && seen > a.window ? seen - a.window : 0;
        };
        const auto keys_end = [&](std::size_t i) { return smaller(a.first_position + query(i) + 1, a.kv_tokens); };

        Row rows[kRowBlock];
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t head = (block + i) % a.n_heads;
            rows[i].q = a.q + query(i) * a.q_stride + head * a.q_head_stride;
            rows[i].out = a.out + query(i) * a.out_stride + head * a.out_head_stride;
            rows[i].softmax = {-__builtin_inff(), zero()};
            for (std::size_t d = 0; d < a.head_dim_v; ++d) rows[i].out[d] = 0;
        }
        const std::size_t first_key = keys_begin(0), end_key = keys_end(n - 1);
        for (std::size_t tile = first_key / kTileKeys * kTileKeys; tile < end_key; tile += kTileKeys) {
            const Rows<Element> k = tile_rows<Element>(a.k, tile / kTileKeys);
            const Rows<Element> v = tile_rows<Element>(a.v, tile / kTileKeys);
            for (std::size_t i = 0; i < n; ++i) {
                rows[i].begin = keys_begin(i) > tile ? keys_begin(i) - tile : 0;
                rows[i].end = keys_end(i) > tile ? smaller(kTileKeys, keys_end(i) - tile) : 0;
            }
            if (scratch) {
                const std::size_t keys = smaller(kTileKeys, end_key - tile);
                float* v_scratch = scratch + kTileKeys * a.head_dim_k;
                convert_tile(a.k, tile / kTileKeys, keys, a.head_dim_k, scratch);
                convert_tile(a.v, tile / kTileKeys, keys, a.head_dim_v, v_scratch);
                add_tile<F32Element>(a, rows, n, {scratch, a.head_dim_k}, {v_scratch, a.head_dim_v});
            } else {
                add_tile<Element>(a, rows, n, k, v);
            }
        }
        for (std::size_t i = 0; i < n; ++i) {
            if (keys_begin(i) >= keys_end(i)) continue;  // no key in sight: zero
            scale_to(rows[i].out, splat(sum(rows[i].softmax.sum)), a.head_dim_v);
        }
    }
}

[[maybe_unused]] void attention(const AttentionArgs& a) {
    if (a.k.codes != KvCodes::floats || a.v.codes != KvCodes::floats || a.k.dtype != a.v.dtype) {
        const bool fits = kTileKeys * (a.head_dim_k + a.head_dim_v) <= kScratchFloats && thread_scratch() != nullptr;
        return fits && can_convert(a.k, a.head_dim_k) && can_convert(a.v, a.head_dim_v) ? attend<AnyElement>(a)
                                                                                        : ref::attention(a);
    }
    switch (a.k.dtype) {
        case DType::f16:
            return attend<F16Element>(a);
        case DType::bf16:
            return attend<BF16Element>(a);
        default:
            return attend<F32Element>(a);
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
