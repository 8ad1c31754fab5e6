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
HETERO_INLINE F32x16 rotation_factor(std::size_t n) {
    return splat(static_cast<float>(1 / __builtin_sqrt(static_cast<double>(n))));
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

void rotated_difference(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero_point, const KvValues& x, float* error) {
    const F32x16 factor = rotation_factor(x.n);
    const LaneButterflies lanes = lane_butterflies();
    const bool done = with_registers(x.n, [&](auto n) {
        constexpr int kN = decltype(n)::value;
        with_type(x.type, [&](auto type) {
            using T = decltype(type);
            is_signed ? rotated_difference_as<T, kN, true>(q, q_stride, scale, zero_point, x, error, factor, lanes)
                      : rotated_difference_as<T, kN, false>(q, q_stride, scale, zero_point, x, error, factor, lanes);
        });
    });
    if (done) return;
    if (x.n > kMaxHead) return ref::rotated_difference(q, q_stride, is_signed, scale, zero_point, x, error);
    float values[kMaxHead];
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        rotated_row(q, is_signed, scale[row], zero_point == nullptr ? 0 : zero_point[row], x.n, values);
        const auto* data = static_cast<const Byte*>(x.data) + row * x.stride * (x.type == DType::f32 ? 4 : 2);
        max_difference({x.type, data, 1, x.n, x.n}, values, error);
    }
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
