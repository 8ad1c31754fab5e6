// Weights to 8-bit integers, and extremes: exactly the scalar operations. Included by generic.h, once per instruction
// set.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

void quantize_i8(const float* x, float scale, std::int8_t* q, std::size_t n) {
    if (scale == 0) {
        if (n > 0) std::memset(q, 0, n);
        return;
    }
    const F32x16 by = splat(scale), low = splat(-127), high = splat(127);
    const auto codes = [&](F32x16 v) { return narrow(round_to_int(min(max(v / by, low), high))); };  // NaN: low
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) bytes_store(reinterpret_cast<std::uint8_t*>(q + i), codes(load(x + i)));
    if (i < n) {
        const U8x16 last = codes(load(x + i, n - i));
        std::memcpy(q + i, &last, n - i);
    }
}

bool min_max(const float* x, std::size_t n, float* lowest, float* highest) {
    F32x16 low = splat(x[0]), high = low, poison = zero();  // 0 * x is NaN for infinities and NaN
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const F32x16 v = load(x + i);
        low = min(low, v);
        high = max(high, v);
        poison = fma(v, zero(), poison);
    }
    if (i < n) {
        const F32x16 v = where_between(0, n - i, load(x + i, n - i), splat(x[0]));
        low = min(low, v);
        high = max(high, v);
        poison = fma(v, zero(), poison);
    }
    if (sum(poison) != 0) return false;
    *lowest = min_lane(low);
    *highest = max_lane(high);
    return true;
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
