// Rotated heads to codes and back, exactly the scalar operations (ref/kv_blocks.cpp): a row of a block is a head.
// Included by generic.h after kv_blocks.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// Heads of 16 N values, in registers.
template <class T, int N>
HETERO_INLINE void rotate_rows_as(const KvValues& x, float* y, F32x16 factor, const LaneButterflies& lanes) {
    for (std::size_t row = 0; row < x.rows; ++row, y += kLanes * N) {
        const Byte* p = row_of<T>(x, row);
        for (std::size_t i = 0; i < x.n * T::kBytes; i += 64) prefetch(p + i);
        F32x16 v[N];
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) v[i] = T::get(p + i * kLanes * T::kBytes);
        rotate_registers<N>(v, factor, lanes);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) store(y + kLanes * i, v[i]);
    }
}

template <int N, bool Signed>
HETERO_INLINE void rotated_values(const std::uint8_t* q, float scale, float zero_point, F32x16 factor,
                                  const LaneButterflies& lanes, F32x16 (&v)[N]) {
    const F32x16 s = splat(scale), z = splat(zero_point);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < N; ++i) {
        const U8x16 codes = bytes_load(q + kLanes * i);
        v[i] = (Signed ? signed_values(codes) : unsigned_values(codes)) * s + z;
    }
    rotate_registers<N>(v, factor, lanes);
}

template <class T, int N, bool Signed>
HETERO_INLINE bool dequantize_rotated_as(const std::uint8_t* q, std::size_t q_stride, const float* scale,
                                         const float* zero_point, const KvOutput& x, float* error, F32x16 factor,
                                         const LaneButterflies& lanes) {
    F32x16 largest = zero(), worst = zero(), v[N];
    auto* out = static_cast<Byte*>(x.data);
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride, out += x.stride * T::kBytes) {
        prefetch(q);
        rotated_values<N, Signed>(q, scale[row], zero_point == nullptr ? 0 : zero_point[row], factor, lanes, v);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) {
            T::put(out + i * kLanes * T::kBytes, v[i]);
            largest = max_abs(largest, v[i]);
            worst = max_abs(worst, T::get(out + i * kLanes * T::kBytes) - v[i]);
        }
    }
    if (error != nullptr) raise(error, worst);
    return max_lane(largest) < T::kBeyond;
}

template <class T, int N, bool Signed>
HETERO_INLINE void rotated_difference_as(const std::uint8_t* q, std::size_t q_stride, const float* scale,
                                         const float* zero_point, const KvValues& x, float* error, F32x16 factor,
                                         const LaneButterflies& lanes) {
    F32x16 worst = zero(), v[N];
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        const Byte* p = row_of<T>(x, row);
        prefetch_some(p, x.n * T::kBytes, x.rows * x.stride * T::kBytes);
        rotated_values<N, Signed>(q, scale[row], zero_point == nullptr ? 0 : zero_point[row], factor, lanes, v);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < N; ++i) worst = max_abs(worst, T::get(p + i * kLanes * T::kBytes) - v[i]);
    }
    raise(error, worst);
}

HETERO_INLINE F32x16 rotation_factor(std::size_t n) {
    return splat(static_cast<float>(1 / __builtin_sqrt(static_cast<double>(n))));
}

// The codes of a rotated head, and what rounding took away, in units of the scale: nearly, or not at all where
// `divide`.
template <int N, bool Signed>
HETERO_INLINE void quantize_rotated(const float* x, const Scales& by, bool divide, std::uint8_t* q, F32x16 (&off)[N]) {
    I32x16 k[N];
    F32x16 d[N], largest = zero();
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        d[i] = load(x + kLanes * i) - by.zero_point;
        const F32x16 product = d[i] * by.reciprocal;
        k[i] = round_to_int(product);
        off[i] = from_integer(product);
        largest = max_abs(largest, off[i]);
    }
    if (__builtin_expect(divide || any_greater(largest, splat(0.5F - 0x1p-13F)), 0)) {
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) k[i] = round_to_int(exact_quotient(d[i], by.scale));
    }
    constexpr int together = N < 4 ? N : 4;
#pragma GCC unroll 2
    for (int i = 0; i < N; i += together) store_codes<Signed, together>(q + kLanes * i, k + i);
}

// What rounding the codes of four heads took away, in units of `scale`, is `off`: whether it could be further than
// `worst` from the heads once rotated back. The last strides of the transform come first, as these need no shuffles;
// then a sum of magnitudes bounds what 16 lanes can make of them.
template <int N>
HETERO_INLINE bool may_exceed(F32x16 (&off)[4][N], const float* scale, float worst, float slack) {
    F32x16 sums[4][4];
    const float wanted = (worst - slack) * static_cast<float>(__builtin_sqrt(16.0 * N));
    for (int first = 0; first < N; first += 4) {
#pragma GCC unroll 4
        for (int row = 0; row < 4; ++row) {
            if (first == 0) {
#pragma GCC unroll 4
                for (int stride = 1; stride < N; stride *= 2) {
#pragma GCC unroll 8
                    for (int i = 0; i < N; ++i) {
                        if ((i & stride) != 0) continue;
                        const F32x16 a = off[row][i], b = off[row][i + stride];
                        off[row][i] = a + b;
                        off[row][i + stride] = a - b;
                    }
                }
            }
            const F32x16 s = splat(scale[row]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) sums[row][i] = abs(off[row][first + i] * s);
        }
        float totals[16];
        store_sums(sums, totals, 4);
        if (any_greater(load(totals), splat(wanted))) return true;
    }
    return false;
}

// Heads of 16 N values, a batch of them at a time: rotated, while their extremes are found; then the codes, and of
// those heads whose error might be the largest, the error.
template <class T, int N, bool Zero>
bool encode_rotated_as(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                       std::size_t q_stride, float* error) {
    constexpr std::size_t batch = N <= 4 ? kBatch : kBatch / 2, n = kLanes * N;
    const F32x16 factor = rotation_factor(n);
    const LaneButterflies lanes = lane_butterflies();
    alignas(64) float rotated[batch * n];
    alignas(64) float low[kBatch] = {}, high[kBatch] = {}, scales[kBatch], zeros[kBatch] = {}, reciprocal[kBatch];
    std::uint16_t scale_bits[kBatch], zero_bits[kBatch];
    for (std::size_t first = 0; first < x.rows; first += batch, q += batch * q_stride) {
        const std::size_t rows = x.rows - first < batch ? x.rows - first : batch;
        F32x16 poison = zero();
        for (std::size_t r = 0; r < rows; ++r) {
            const Byte* p = row_of<T>(x, first + r);
            prefetch_some(p, n * T::kBytes, batch * x.stride * T::kBytes);
            F32x16 v[N];
#pragma GCC unroll 8
            for (std::size_t i = 0; i < N; ++i) v[i] = T::get(p + i * kLanes * T::kBytes);
            rotate_registers<N>(v, factor, lanes);
            F32x16 least = v[0], most = Zero ? v[0] : abs(v[0]);
#pragma GCC unroll 8
            for (std::size_t i = 0; i < N; ++i) {
                store(rotated + r * n + i * kLanes, v[i]);
                poison = fma(v[i], zero(), poison);
                if (Zero) least = min(least, v[i]);
                most = Zero ? max(most, v[i]) : max_abs(most, v[i]);
            }
            if (Zero) low[r] = min_lane(least);
            high[r] = max_lane(most);
        }
        if (!(sum(poison) == 0)) return false;
        if (!batch_scales<Zero>(low, high, rows, levels, scale_bits, scales, zero_bits, zeros)) return false;
        std::memcpy(scale + first, scale_bits, rows * sizeof scale_bits[0]);
        if (Zero) std::memcpy(zero_point + first, zero_bits, rows * sizeof zero_bits[0]);
        float slack = 0;  // what f32 rounds on the way there and back
        bool divide = false;
        for (std::size_t r = 0; r < rows; ++r) {
            const float one = (scales[r] * 256 + __builtin_fabsf(zeros[r])) * (0x1p-20F * N);
            slack = one > slack ? one : slack;
            divide |= needs_division(scales[r]) || scales[r] == 0;
        }
        for (std::size_t r = 0; r < rows; r += kLanes) store(reciprocal + r, reciprocal_of(load(scales + r)));
        for (std::size_t r = 0; r < rows; r += 4) {
            const std::size_t some = rows - r < 4 ? rows - r : 4;
            F32x16 off[4][N];
            for (std::size_t k = 0; k < some; ++k) {
                const Scales one{splat(scales[r + k]), splat(reciprocal[r + k]), splat(zeros[r + k])};
                const float* from = rotated + (r + k) * n;
                quantize_rotated<N, !Zero>(from, one, divide, q + (r + k) * q_stride, off[k]);
            }
            if (error == nullptr) continue;
            if constexpr (N >= 4) {
                if (some == 4 && !divide && !may_exceed<N>(off, scales + r, *error, slack)) continue;
            }
            const KvValues heads{x.type, row_of<T>(x, first + r), some, x.stride, n};
            rotated_difference_as<T, N, !Zero>(q + r * q_stride, q_stride, scales + r, Zero ? zeros + r : nullptr,
                                               heads, error, factor, lanes);
        }
    }
    return true;
}

// f<N> for heads of 16 N values that are one block of the transform; false where there are no such.
template <int N>
struct Registers {
    static constexpr int value = N;
};
template <class F>
HETERO_INLINE bool with_registers(std::size_t n, F f) {
    switch (n) {
        case 16:
            return f(Registers<1>{}), true;
        case 32:
            return f(Registers<2>{}), true;
        case 64:
            return f(Registers<4>{}), true;
        case 128:
            return f(Registers<8>{}), true;
        default:
            return false;
    }
}
void rotate_rows(const KvValues& x, float* y) {
    const F32x16 factor = rotation_factor(x.n);
    const LaneButterflies lanes = lane_butterflies();
    if (with_registers(x.n, [&](auto n) {
            with_type(x.type,
                      [&](auto type) { rotate_rows_as<decltype(type), decltype(n)::value>(x, y, factor, lanes); });
        })) {
        return;
    }
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

// Heads that are no single block in registers.
constexpr std::size_t kMaxHead = 1024;
void rotated_row(const std::uint8_t* q, bool is_signed, float scale, float zero_point, std::size_t n, float* out) {
    (void)dequantize_codes<false>(q, n, is_signed, &scale, &zero_point, {DType::f32, out, 1, n, n}, nullptr);
    const std::size_t block = n & (~n + 1);
    if (n != 0) hadamard(out, out, n / block, block);
}

bool dequantize_rotated(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero_point, const KvOutput& x, float* error) {
    const F32x16 factor = rotation_factor(x.n);
    const LaneButterflies lanes = lane_butterflies();
    bool fits = false;
    const bool done = with_registers(x.n, [&](auto n) {
        constexpr int kN = decltype(n)::value;
        fits = with_type(x.type, [&](auto type) {
            using T = decltype(type);
            return is_signed
                       ? dequantize_rotated_as<T, kN, true>(q, q_stride, scale, zero_point, x, error, factor, lanes)
                       : dequantize_rotated_as<T, kN, false>(q, q_stride, scale, zero_point, x, error, factor, lanes);
        });
    });
    if (done) return fits;
    if (x.n > kMaxHead) return ref::dequantize_rotated(q, q_stride, is_signed, scale, zero_point, x, error);
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
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
    });
}

bool encode_rotated(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero_point, std::uint8_t* q,
                    std::size_t q_stride, float* error) {
    bool fits = false;
    const bool done = with_registers(x.n, [&](auto n) {
        constexpr int kN = decltype(n)::value;
        fits = with_type(x.type, [&](auto type) {
            using T = decltype(type);
            return zero_point == nullptr
                       ? encode_rotated_as<T, kN, false>(x, levels, scale, nullptr, q, q_stride, error)
                       : encode_rotated_as<T, kN, true>(x, levels, scale, zero_point, q, q_stride, error);
        });
    });
    if (done) return fits;
    if (x.n == 0 || x.n > kMaxHead) return ref::encode_rotated(x, levels, scale, zero_point, q, q_stride, error);
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

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
