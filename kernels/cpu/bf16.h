// What products and attention in bf16 share. Included after vec_avx512.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr float kLog2E = 1.44269504088896341F;

// Two times 16 values to 16 pairs of bf16, first and second of a pair from a and b.
HETERO_INLINE __m512i bf16_pairs(__m512 a, __m512 b) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
}

// 2^x within 2^-13, 0 for what is far below: 2^f for what x is above a whole number, by the cubic of least relative
// error.
HETERO_INLINE __m512 exp2(__m512 x) {
    const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(7.8024521e-2F);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.2606716e-1F));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9583356e-1F));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.9992520e-1F));
    return _mm512_scalef_ps(p, x);
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
