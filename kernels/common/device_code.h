// What the arithmetic that the CPU's reference and the GPU's kernels share is written with.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define HETERO_HD __host__ __device__
#else
#define HETERO_HD
#endif

namespace hetero::kernels {

// std::bit_cast, which device code cannot call.
template <class To, class From>
HETERO_HD constexpr To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    return __builtin_bit_cast(To, value);
}

template <class T>
HETERO_HD inline T load(const void* p) {  // at any alignment
    T value;
    memcpy(&value, p, sizeof value);
    return value;
}

// A product and a sum that are rounded each, whatever the compiler may fuse elsewhere.
HETERO_HD inline float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
HETERO_HD inline float rounded_sum(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

HETERO_HD constexpr bool is_finite(float x) { return (bits_as<std::uint32_t>(x) & 0x7F800000U) != 0x7F800000U; }

}  // namespace hetero::kernels
