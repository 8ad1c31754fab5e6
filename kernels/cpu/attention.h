// Attention with an online softmax over tiles of keys. Tiles start at multiples of kTileKeys from key 0, whatever the
// queries, so a query's result does not depend on which queries it came with: prefill in chunks and decode agree bit
// for bit. After Milakov and Gimelshein (https://arxiv.org/abs/1805.02867) and Dao et al.
// (https://arxiv.org/abs/2205.14135). Included by generic.h, once per instruction set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kTileKeys = 64;
constexpr std::size_t kQueryBlock = 32;  // queries that share a tile converted to f32

struct F32Element {
    using Type = float;
    static HETERO_INLINE F32x16 load_lanes(const float* p) { return load(p); }
};
struct F16Element {
    using Type = std::uint16_t;
    static HETERO_INLINE F32x16 load_lanes(const std::uint16_t* p) { return load_f16(p); }
};
struct BF16Element {
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

// out = out * correction + sum over keys [begin, end) of p[key] * v[key], for `Runs` runs of 16 dims. Even and odd keys
// are summed apart.
template <class Element, int Runs>
HETERO_INLINE void weigh_values(const float* p, Rows<Element> v, std::size_t d, std::size_t begin, std::size_t end,
                                F32x16 correction, float* out) {
    F32x16 acc[2][Runs];
#pragma GCC unroll 8
    for (int r = 0; r < Runs; ++r) acc[0][r] = acc[1][r] = zero();
    std::size_t key = begin;
    const auto take = [&](std::size_t i, F32x16(&sums)[Runs]) __attribute__((always_inline)) {
        const F32x16 weight = splat(p[i]);
        const auto* row = v.at(i) + d;
#pragma GCC unroll 8
        for (int r = 0; r < Runs; ++r) sums[r] = fma(weight, Element::load_lanes(row + 16 * r), sums[r]);
    };
    if (key % 2 == 1 && key < end) take(key++, acc[1]);
    for (; key + 2 <= end; key += 2) {
        take(key, acc[0]);
        take(key + 1, acc[1]);
    }
    if (key < end) take(key, acc[0]);
#pragma GCC unroll 8
    for (int r = 0; r < Runs; ++r)
        store(out + d + 16 * r, fma(load(out + d + 16 * r), correction, acc[0][r] + acc[1][r]));
}

template <class Element>
HETERO_INLINE void weigh_last_values(const float* p, Rows<Element> v, std::size_t d, std::size_t n, std::size_t begin,
                                     std::size_t end, F32x16 correction, float* out) {
    F32x16 acc[2] = {zero(), zero()};
    for (std::size_t key = begin; key < end; ++key)
        acc[key % 2] = fma(splat(p[key]), load_some<Element>(v.at(key) + d, n), acc[key % 2]);
    store(out + d, fma(load(out + d, n), correction, acc[0] + acc[1]), n);
}

// The softmax of one query so far: out holds the sum of exp(s - max) * v, not yet divided.
struct Softmax {
    float max;
    F32x16 sum;  // by key mod 16
};

// Adds keys [begin, end) of a tile, 0 <= begin < end <= kTileKeys; k and v start at the tile's first key.
template <class Element>
void add_tile(const AttentionArgs& a, const float* q, Rows<Element> k, Rows<Element> v, std::size_t begin,
              std::size_t end, Softmax& state, float* out) {
    alignas(64) float p[kTileKeys];
    std::size_t key = begin;
    for (; key + 16 <= end; key += 16) dot_16<Element>(q, k.at(key), k.stride, a.head_dim_k, p + key);
    for (; key < end; ++key) p[key] = dot<Element>(q, k.at(key), a.head_dim_k);

    const F32x16 lowest = splat(-__builtin_inff());
    const std::size_t first_run = begin / 16, end_run = (end + 15) / 16;
    F32x16 scores[kTileKeys / 16];
    F32x16 top = lowest;
    for (std::size_t run = first_run; run < end_run; ++run) {
        const std::size_t from = run * 16 < begin ? begin - run * 16 : 0;
        const std::size_t to = end - run * 16 < 16 ? end - run * 16 : 16;
        F32x16 s = where_between(from, to, load(p + 16 * run), lowest) * splat(a.scale);
        if (a.softcap > 0) s = tanh(s / splat(a.softcap)) * splat(a.softcap);
        s = where_between(from, to, s, lowest);
        scores[run] = s;
        top = max(s, top);
    }
    const float tile_max = max_lane(top);
    const float new_max = tile_max > state.max ? tile_max : state.max;
    F32x16 correction = splat(1.0F);
    if (new_max != state.max) {
        correction = exp(splat(state.max) - splat(new_max));
        state.sum = state.sum * correction;
        state.max = new_max;
    }
    for (std::size_t run = first_run; run < end_run; ++run) {
        const F32x16 weights = exp(scores[run] - splat(new_max));
        state.sum = state.sum + weights;
        store(p + 16 * run, weights);
    }

    constexpr int kRuns = kParts == 1 ? 4 : 2;
    std::size_t d = 0;
    for (; d + 16 * kRuns <= a.head_dim_v; d += 16 * kRuns)
        weigh_values<Element, kRuns>(p, v, d, begin, end, correction, out);
    for (; d + 16 <= a.head_dim_v; d += 16) weigh_values<Element, 1>(p, v, d, begin, end, correction, out);
    if (d < a.head_dim_v) weigh_last_values<Element>(p, v, d, a.head_dim_v - d, begin, end, correction, out);
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

template <class Element>
void attend(const AttentionArgs& a) {
    using Type = typename Element::Type;
    const auto* k_data = static_cast<const Type*>(a.k.data);
    const auto* v_data = static_cast<const Type*>(a.v.data);
    constexpr bool kIsFloat = sizeof(Type) == sizeof(float);
    const bool fits = kTileKeys * (a.head_dim_k + a.head_dim_v) <= kScratchFloats;
    float* scratch = !kIsFloat && fits && a.n_queries >= 4 ? thread_scratch() : nullptr;

    for (std::size_t block = 0; block < a.n_queries; block += kQueryBlock) {
        const std::size_t block_end = smaller(a.n_queries, block + kQueryBlock);
        // Keys that query i sees.
        const auto keys_begin = [&](std::size_t i) {
            const std::size_t seen = a.first_position + i + 1;
            return a.window != 0 && seen > a.window ? seen - a.window : 0;
        };
        const auto keys_end = [&](std::size_t i) { return smaller(a.first_position + i + 1, a.kv_tokens); };

        Softmax states[kQueryBlock];
        for (std::size_t i = block; i < block_end; ++i) {
            states[i - block] = {-__builtin_inff(), zero()};
            for (std::size_t d = 0; d < a.head_dim_v; ++d) a.out[i * a.out_stride + d] = 0;
        }
        const std::size_t first_key = keys_begin(block), end_key = keys_end(block_end - 1);
        for (std::size_t tile = first_key / kTileKeys * kTileKeys; tile < end_key; tile += kTileKeys) {
            const Rows<Element> k{k_data + tile * a.k.token_stride, a.k.token_stride};
            const Rows<Element> v{v_data + tile * a.v.token_stride, a.v.token_stride};
            const std::size_t keys = smaller(kTileKeys, end_key - tile);
            Rows<F32Element> k32{scratch, a.head_dim_k}, v32{nullptr, a.head_dim_v};
            if (scratch) {
                float* v_scratch = scratch + kTileKeys * a.head_dim_k;
                v32.data = v_scratch;
                convert_rows(k, keys, a.head_dim_k, scratch);
                convert_rows(v, keys, a.head_dim_v, v_scratch);
            }
            for (std::size_t i = block; i < block_end; ++i) {
                const std::size_t begin = keys_begin(i) > tile ? keys_begin(i) - tile : 0;
                const std::size_t end = keys_end(i) > tile ? smaller(kTileKeys, keys_end(i) - tile) : 0;
                if (begin >= end) continue;
                const float* q = a.q + i * a.q_stride;
                float* out = a.out + i * a.out_stride;
                if (scratch)
                    add_tile<F32Element>(a, q, k32, v32, begin, end, states[i - block], out);
                else
                    add_tile<Element>(a, q, k, v, begin, end, states[i - block], out);
            }
        }
        for (std::size_t i = block; i < block_end; ++i) {
            if (keys_begin(i) >= keys_end(i)) continue;  // no key in sight: zero
            scale_to(a.out + i * a.out_stride, splat(sum(states[i - block].sum)), a.head_dim_v);
        }
    }
}

void attention(const AttentionArgs& a) {
    if (a.k.dtype != a.v.dtype) return ref::attention(a);
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
