// Rotated heads to codes and back, exactly the scalar operations (ref/kv_blocks.cpp): a row of a block is a head. Heads
// of the usual lengths are worked on sixteen at a time, side by side: a vector is a dim of all of them, so that the
// transform needs no shuffles but those that turn the heads over. Included by generic.h after kv_blocks.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

HETERO_INLINE F32x16 rotation_factor(std::size_t n) {
    return splat(static_cast<float>(1 / __builtin_sqrt(static_cast<double>(n))));
}

void rotate_rows(const KvValues& x, float* y) {
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        for (std::size_t row = 0; row < x.rows; ++row) {
            float* to = y + row * x.n;
            const Byte* p = row_of<T>(x, row);
            std::size_t i = 0;
            for (; i + kLanes <= x.n; i += kLanes) store(to + i, T::get(p + i * T::kBytes));
            if (i < x.n) store(to + i, get<T>(p + i * T::kBytes, x.n - i), x.n - i);
        }
    });
    const std::size_t n = x.n & (~x.n + 1);
    if (x.n != 0) hadamard(y, y, x.rows * x.n / n, n);
}

// One stride of the transform: of v[i] and v[i + Stride]. A difference as a fused product has the same bits and goes to
// other units than the sum.
template <std::size_t Stride, std::size_t N>
HETERO_INLINE void butterfly(F32x16 (&v)[N]) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < N; ++i) {
        if ((i & Stride) != 0) continue;
        const F32x16 a = v[i], b = v[i + Stride];
        v[i] = a + b;
        v[i + Stride] = fma(b, splat(-1), a);
    }
}

// f over all vectors, in a tree.
template <std::size_t N, class F>
HETERO_INLINE F32x16 fold(const F32x16 (&v)[N], F f) {
    static_assert(N == 4 || N == 8);
    const F32x16 four = f(f(v[0], v[1]), f(v[2], v[3]));
    if constexpr (N == 8) return f(four, f(f(v[4], v[5]), f(v[6], v[7])));
    return four;
}

constexpr auto larger_of = [](F32x16 a, F32x16 b) { return max_abs(a, b); };

// Sixteen heads of N values, [dim][head].
template <std::size_t N>
struct Heads {
    static constexpr std::size_t kBlocks = N / kLanes;
    alignas(64) float dims[N][kLanes];

    // The strides below 16 of the transform, of the 16 dims of a block.
    HETERO_INLINE void add_block(std::size_t block, F32x16 (&v)[kLanes]) {
        butterfly<1>(v);
        butterfly<2>(v);
        butterfly<4>(v);
        butterfly<8>(v);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kLanes; ++i) store(dims[block * kLanes + i], v[i]);
    }
    // The other strides, and the factor; visit(v) with the i-th dims of all blocks.
    template <class Visit>
    HETERO_INLINE void finish(F32x16 factor, Visit visit) {
        for (std::size_t i = 0; i < kLanes; ++i) {
            F32x16 v[kBlocks];
#pragma GCC unroll 8
            for (std::size_t k = 0; k < kBlocks; ++k) v[k] = load(dims[k * kLanes + i]);
            butterfly<1>(v);
            butterfly<2>(v);
            if constexpr (kBlocks == 8) butterfly<4>(v);
#pragma GCC unroll 8
            for (std::size_t k = 0; k < kBlocks; ++k) {
                v[k] = v[k] * factor;
                store(dims[k * kLanes + i], v[k]);
            }
            visit(v);
        }
    }
};

// Of up to 16 rows, the last of which stands for those missing.
HETERO_INLINE void row_places(const Byte* first, std::size_t stride_bytes, std::size_t rows,
                              const Byte* (&places)[16]) {
    for (std::size_t r = 0; r < kLanes; ++r) places[r] = first + (r < rows ? r : rows - 1) * stride_bytes;
}

template <class T, std::size_t N>
HETERO_INLINE void load_heads(const Byte* const (&rows)[16], std::size_t ahead, Heads<N>& heads) {
    constexpr std::size_t blocks = N / kLanes, rows_each = kLanes / blocks;
    for (std::size_t block = 0; block < blocks; ++block) {
        for (std::size_t r = block * rows_each; r < (block + 1) * rows_each; ++r)
            prefetch_some(rows[r], N * T::kBytes, ahead);
        F32x16 v[kLanes];
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kLanes; ++r) {
            const Byte* p = rows[r] + block * kLanes * T::kBytes;
            v[r] = T::get(p);
        }
        transpose(v);
        heads.add_block(block, v);
    }
}

// Codes of heads with a scale (and zero) each, as values.
template <std::size_t N, bool Signed>
HETERO_INLINE void load_codes(const Byte* const (&rows)[16], std::size_t ahead, F32x16 scale, F32x16 zero_point,
                              Heads<N>& heads) {
    for (std::size_t first = 0; first < N; first += 64) {
        F32x16 fours[kLanes];  // four dims in a lane
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kLanes; ++r) {
            __builtin_prefetch(rows[r] + first + ahead);
            fours[r] = AsF32::get(rows[r] + first);
        }
        transpose(fours);
#pragma GCC unroll 4
        for (std::size_t block = 0; block < 4; ++block) {
            F32x16 v[kLanes];
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; ++i) {
                const F32x16 codes = fours[4 * block + i];
                v[4 * i] = to_float(take_byte<0, Signed>(codes));
                v[4 * i + 1] = to_float(take_byte<1, Signed>(codes));
                v[4 * i + 2] = to_float(take_byte<2, Signed>(codes));
                v[4 * i + 3] = to_float(take_byte<3, Signed>(codes));
            }
#pragma GCC unroll 16
            for (std::size_t i = 0; i < kLanes; ++i) v[i] = v[i] * scale + zero_point;
            heads.add_block(first / kLanes + block, v);
        }
    }
}

template <class T, std::size_t N, bool Signed>
bool dequantize_rotated_as(const std::uint8_t* q, std::size_t q_stride, const float* scale, const float* zero_point,
                           const KvOutput& x, float* error) {
    const F32x16 factor = rotation_factor(N);
    const std::size_t row_bytes = x.stride * T::kBytes;
    F32x16 largest = zero(), worst = zero();
    Heads<N> heads;
    RowsOut out(x.data, row_bytes, x.streaming && x.stride == N);
    for (std::size_t first = 0; first < x.rows; first += kLanes) {
        const std::size_t rows = x.rows - first < kLanes ? x.rows - first : kLanes;
        const auto some = [&](const float* from) {
            return from == nullptr ? zero() : rows < kLanes ? load(from + first, rows) : load(from + first);
        };
        const Byte* from[kLanes];
        row_places(q + first * q_stride, q_stride, rows, from);
        load_codes<N, Signed>(from, 2 * kLanes * q_stride, some(scale), some(zero_point), heads);
        F32x16 most = zero();
        heads.finish(factor, [&](const auto& v) { most = max_abs(most, fold(v, larger_of)); });
        largest = max(largest, most);
        const bool checked = matters<T>(max_lane(most), error);
        Byte* to = out.place(first);
        for (std::size_t block = 0; block < N / kLanes; ++block) {
            F32x16 v[kLanes];
#pragma GCC unroll 16
            for (std::size_t i = 0; i < kLanes; ++i) v[i] = load(heads.dims[block * kLanes + i]);
            transpose(v);
#pragma GCC unroll 16
            for (std::size_t r = 0; r < kLanes; ++r) {
                if (r >= rows) break;
                Byte* at = to + r * row_bytes + block * kLanes * T::kBytes;
                T::put(at, v[r]);
                if (checked) worst = max_abs(worst, T::get(at) - v[r]);
            }
        }
        out.add(rows);
        if (checked && error != nullptr) raise(error, worst);
    }
    out.end();
    return max_lane(largest) < T::kBeyond;
}

void rotated_row(const std::uint8_t* q, bool is_signed, float scale, float zero_point, std::size_t n, float* out) {
    (void)dequantize_codes<false>(q, n, is_signed, &scale, &zero_point, {DType::f32, out, 1, n, n}, nullptr);
    const std::size_t block = n & (~n + 1);
    if (n != 0) hadamard(out, out, n / block, block);
}

// The codes of 16 heads to `rows` rows. What rounding took away is an error in units of the scale; rotated back it is
// no more than `bound` times that over sqrt(N): two strides of the transform, and sums of magnitudes for the others.
template <std::size_t N, bool Zero, bool Error>
HETERO_INLINE void store_rotated(const Heads<N>& heads, const Scales& by, Byte* to, std::size_t q_stride,
                                 std::size_t rows, F32x16& bound) {
    const Scales all[4] = {by, by, by, by};
    F32x16 sums[4] = {zero(), zero(), zero(), zero()};
    for (std::size_t first = 0; first < N; first += 64) {
        F32x16 fours[kLanes];
        for (std::size_t i = 0; i < kLanes; ++i) {
            F32x16 d[4], rounded[4], off[4];
#pragma GCC unroll 4
            for (std::size_t j = 0; j < 4; ++j) {
                d[j] = load(heads.dims[first + 4 * i + j]);
                if (Zero) d[j] = d[j] - by.zero_point;
            }
            Error ? round_quotients(d, all, rounded, off) : round_quotients(d, all, false, rounded);
            fours[i] = join_bytes(rounded);
            if (!Error) continue;
            butterfly<1>(off);
            butterfly<2>(off);
#pragma GCC unroll 4
            for (std::size_t j = 0; j < 4; ++j) sums[j] = sums[j] + abs(off[j]);
        }
        transpose(fours);
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kLanes; ++r) {
            if (r >= rows) break;
            AsF32::put(to + r * q_stride + first, fours[r]);
        }
    }
    if (Error) bound = max(max(sums[0], sums[1]), max(sums[2], sums[3]));
}

// Raises `error` to that of up to 16 heads: of those of whose codes it may be the largest.
template <std::size_t N, bool Zero>
HETERO_INLINE void raise_rotated(const KvValues& x, const Scales& by, F32x16 bound, const std::uint8_t* q,
                                 std::size_t q_stride, float* error) {
    // What f32 rounds on the way there and back.
    const F32x16 slack =
                     (by.scale * splat(256) + abs(by.zero_point)) * splat(0x1p-20F * static_cast<float>(N / kLanes)),
                 most = bound * by.scale * rotation_factor(N) + slack;
    if (__builtin_expect(!any_greater(most, splat(*error)), 1)) return;
    float mosts[kLanes], scale[kLanes], zero_point[kLanes], values[N];
    store(mosts, most);
    store(scale, by.scale);
    store(zero_point, by.zero_point);
    const std::size_t row_bytes = x.stride * (x.type == DType::f32 ? 4 : 2);
    for (std::size_t r = 0; r < x.rows; ++r) {
        if (!(mosts[r] > *error)) continue;
        rotated_row(q + r * q_stride, !Zero, scale[r], zero_point[r], N, values);
        max_difference({x.type, static_cast<const Byte*>(x.data) + r * row_bytes, 1, N, N}, values, error);
    }
}

template <class T, std::size_t N, bool Zero>
bool encode_rotated_as(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                       std::size_t q_stride, float* error, bool streaming) {
    constexpr std::size_t batch = 4096 / N;  // 8 KiB of f32
    const F32x16 factor = rotation_factor(N);
    const std::size_t row_bytes = x.stride * T::kBytes;
    Heads<N> heads[batch / kLanes];
    RowsOut out(q, q_stride, streaming && q_stride == N);
    alignas(64) float low[kBatch] = {}, high[kBatch] = {}, scales[kBatch], zeros[kBatch] = {};
    for (std::size_t first = 0; first < x.rows; first += batch) {
        const std::size_t batch_rows = x.rows - first < batch ? x.rows - first : batch;
        const auto rows_from = [&](std::size_t at) { return batch_rows - at < kLanes ? batch_rows - at : kLanes; };
        F32x16 poison[N / kLanes] = {};  // 0 * x is NaN for infinities and NaN
        for (std::size_t at = 0; at < batch_rows; at += kLanes) {
            Heads<N>& some = heads[at / kLanes];
            const Byte* from[kLanes];
            row_places(row_of<T>(x, first + at), row_bytes, rows_from(at), from);
            load_heads<T, N>(from, batch * row_bytes, some);
            F32x16 least = splat(__builtin_huge_valf()), most = Zero ? splat(-__builtin_huge_valf()) : zero();
            some.finish(factor, [&](const auto& v) {
#pragma GCC unroll 8
                for (std::size_t k = 0; k < N / kLanes; ++k) poison[k] = fma(v[k], zero(), poison[k]);
                if (Zero) least = min(least, fold(v, [](F32x16 a, F32x16 b) { return min(a, b); }));
                most = Zero ? max(most, fold(v, [](F32x16 a, F32x16 b) { return max(a, b); }))
                            : max_abs(most, fold(v, larger_of));
            });
            store(low + at, least);
            store(high + at, most);
        }
        if (!(sum(fold(poison, [](F32x16 a, F32x16 b) { return a + b; })) == 0)) return false;
        if (!batch_scales<Zero>(low, high, batch_rows, levels, scale + first, scales,
                                Zero ? zero_point + first : nullptr, zeros))
            return false;
        for (std::size_t at = 0; at < batch_rows; at += kLanes) {
            const std::size_t rows = rows_from(at);
            F32x16 bound = zero();
            Byte* to = out.place(first + at);
            if (error == nullptr) {
                const Scales by = scales_of<false>(load(scales + at), load(zeros + at));
                store_rotated<N, Zero, false>(heads[at / kLanes], by, to, q_stride, rows, bound);
            } else {
                const Scales by = scales_of<true>(load(scales + at), load(zeros + at));
                store_rotated<N, Zero, true>(heads[at / kLanes], by, to, q_stride, rows, bound);
                raise_rotated<N, Zero>({x.type, row_of<T>(x, first + at), rows, x.stride, N}, by, bound, to, q_stride,
                                       error);
            }
            out.add(rows);
        }
    }
    out.end();
    return true;
}

// Heads of other lengths, one at a time.
constexpr std::size_t kMaxHead = 1024;

template <class T>
bool dequantize_rotated_any(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                            const float* zero_point, const KvOutput& x, float* error) {
    float values[kMaxHead];
    F32x16 largest = zero(), worst = zero();
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        rotated_row(q, is_signed, scale[row], zero_point == nullptr ? 0 : zero_point[row], x.n, values);
        Byte* out = static_cast<Byte*>(x.data) + row * x.stride * T::kBytes;
        for (std::size_t i = 0; i < x.n; i += kLanes) {
            const std::size_t left = x.n - i < kLanes ? x.n - i : kLanes;
            const F32x16 v = left < kLanes ? load(values + i, left) : load(values + i);
            put<T>(out + i * T::kBytes, v, left);
            largest = max_abs(largest, v);
            worst = max_abs(worst, get<T>(out + i * T::kBytes, left) - v);
        }
    }
    if (error != nullptr) raise(error, worst);
    return max_lane(largest) < T::kBeyond;
}

bool encode_rotated_any(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                        std::size_t q_stride, float* error) {
    float values[kMaxHead];
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        const auto* data = static_cast<const Byte*>(x.data) + row * x.stride * (x.type == DType::f32 ? 4 : 2);
        const KvValues one{x.type, data, 1, x.n, x.n};
        rotate_rows(one, values);
        std::uint16_t* zero_of = zero_point == nullptr ? nullptr : zero_point + row;
        if (!encode_rows({DType::f32, values, 1, x.n, x.n}, levels, scale + row, zero_of, q, q_stride, nullptr, false))
            return false;
        if (error == nullptr) continue;
        float s = 0, z = 0;
        f16_to_f32(scale + row, &s, 1);
        if (zero_of != nullptr) f16_to_f32(zero_of, &z, 1);
        rotated_row(q, zero_of == nullptr, s, z, x.n, values);
        max_difference(one, values, error);
    }
    return true;
}

bool dequantize_rotated(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero_point, const KvOutput& x, float* error) {
    if (x.n > kMaxHead) return ref::dequantize_rotated(q, q_stride, is_signed, scale, zero_point, x, error);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return with_length(x.n, [&](auto length) {
            constexpr std::size_t n = decltype(length)::value;
            if constexpr (n == 0) {
                return dequantize_rotated_any<T>(q, q_stride, is_signed, scale, zero_point, x, error);
            } else {
                return is_signed ? dequantize_rotated_as<T, n, true>(q, q_stride, scale, zero_point, x, error)
                                 : dequantize_rotated_as<T, n, false>(q, q_stride, scale, zero_point, x, error);
            }
        });
    });
}

bool encode_rotated(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                    std::size_t q_stride, float* error, bool streaming) {
    if (x.n == 0 || x.n > kMaxHead)
        return ref::encode_rotated(x, levels, scale, zero_point, q, q_stride, error, streaming);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return with_length(x.n, [&](auto length) {
            constexpr std::size_t n = decltype(length)::value;
            if constexpr (n == 0) {
                return encode_rotated_any(x, levels, scale, zero_point, q, q_stride, error);
            } else {
                return zero_point == nullptr
                           ? encode_rotated_as<T, n, false>(x, levels, scale, nullptr, q, q_stride, error, streaming)
                           : encode_rotated_as<T, n, true>(x, levels, scale, zero_point, q, q_stride, error, streaming);
            }
        });
    });
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
