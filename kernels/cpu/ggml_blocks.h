// Blocks of 32 values in ggml's layout, exactly the scalar operations (ref/ggml_blocks.cpp). Sixteen blocks at a time,
// side by side: a vector is an element of all of them. Included by generic.h after kv_rotated.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kBlockValues = 32;

// 1 / scale, 0 where that is infinite.
HETERO_INLINE F32x16 finite_reciprocal(F32x16 scale) {
    const F32x16 inverse = splat(1) / scale;
    return where_less(abs(inverse), splat(__builtin_huge_valf()), inverse, zero());
}
// Nearest to what f16 has: at most 65504.
HETERO_INLINE bool fits_f16(F32x16 v) { return !any_greater(abs(v), splat(0x1.FFDFFEp15F)); }
HETERO_INLINE F32x16 truncated(F32x16 v) { return to_float(truncate_to_int(v)); }

// Sixteen blocks: scales, minima, and the codes of an element of each.
struct Q8_0Blocks {
    static constexpr std::size_t kHeader = 2, kCodes = 32;
    F32x16 scale, minimum = zero(), inverse;
    explicit HETERO_INLINE Q8_0Blocks(const float (&x)[kBlockValues][kLanes]) {
        F32x16 largest = zero();
        for (const auto& v : x) largest = max_abs(largest, load(v));
        scale = largest / splat(127);
        inverse = finite_reciprocal(scale);
    }
    // Half away from zero: to add the number below a half is exact enough not to reach the next integer from below.
    HETERO_INLINE F32x16 code(const float* x) const {
        const F32x16 y = load(x) * inverse;
        return truncated(y + copy_sign(splat(0x1.FFFFFEp-2F), y));
    }
};
struct Q4_0Blocks {
    static constexpr std::size_t kHeader = 2, kCodes = 16;
    F32x16 scale, minimum = zero(), inverse;
    explicit HETERO_INLINE Q4_0Blocks(const float (&x)[kBlockValues][kLanes]) {
        F32x16 largest = zero();
        for (const auto& at : x) {
            const F32x16 v = load(at);
            largest = where_less(abs(largest), abs(v), v, largest);
        }
        scale = largest / splat(-8);
        inverse = finite_reciprocal(scale);
    }
    HETERO_INLINE F32x16 code(const float* x) const {
        return min(truncated(load(x) * inverse + splat(8.5F)), splat(15));
    }
};
struct Q4_1Blocks {
    static constexpr std::size_t kHeader = 4, kCodes = 16;
    F32x16 scale, minimum, inverse;
    explicit HETERO_INLINE Q4_1Blocks(const float (&x)[kBlockValues][kLanes]) {
        F32x16 highest = minimum = load(x[0]);
        for (const auto& at : x) {
            const F32x16 v = load(at);
            minimum = where_less(v, minimum, v, minimum);
            highest = where_less(highest, v, v, highest);
        }
        scale = (highest - minimum) / splat(15);
        inverse = finite_reciprocal(scale);
    }
    HETERO_INLINE F32x16 code(const float* x) const {
        return min(truncated((load(x) - minimum) * inverse + splat(0.5F)), splat(15));
    }
};

// Byte i of the codes of each: an element, or the halves that two are.
template <class Format>
HETERO_INLINE F32x16 byte_of(const Format& by, const float (&x)[kBlockValues][kLanes], std::size_t i) {
    if constexpr (Format::kCodes == kBlockValues)
        return by.code(x[i]);
    else
        return by.code(x[i]) + by.code(x[i + kBlockValues / 2]) * splat(16);
}

template <class Format>
bool quantize_sixteen_blocks(const float* x, std::uint8_t* out) {
    alignas(64) float dims[kBlockValues][kLanes];  // [element][block]
    for (std::size_t first = 0; first < kBlockValues; first += kLanes) {
        F32x16 v[kLanes];
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kLanes; ++r) v[r] = load(x + r * kBlockValues + first);
        transpose(v);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kLanes; ++i) store(dims[first + i], v[i]);
    }
    const Format by(dims);
    if (!fits_f16(by.scale) || !fits_f16(by.minimum)) return false;
    std::uint16_t headers[2][kLanes];
    store_f16(headers[0], by.scale);
    store_f16(headers[1], by.minimum);
    F32x16 fours[kLanes] = {};  // four bytes of a block in a lane
#pragma GCC unroll 8
    for (std::size_t i = 0; i < Format::kCodes / 4; ++i) {
        F32x16 bytes[4];
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j) bytes[j] = byte_of(by, dims, 4 * i + j) + splat(kRounding);
        fours[i] = join_bytes(bytes);
    }
    transpose(fours);
    for (std::size_t r = 0; r < kLanes; ++r, out += Format::kHeader + Format::kCodes) {
        float codes[kLanes];
        store(codes, fours[r]);
        for (std::size_t i = 0; i < Format::kHeader / 2; ++i) std::memcpy(out + 2 * i, &headers[i][r], 2);
        std::memcpy(out + Format::kHeader, codes, Format::kCodes);
    }
    return true;
}

bool quantize_blocks(DType type, const float* x, std::size_t n, void* out) {
    constexpr std::size_t step = kLanes * kBlockValues;
    const auto some = type == DType::q8_0   ? quantize_sixteen_blocks<Q8_0Blocks>
                      : type == DType::q4_0 ? quantize_sixteen_blocks<Q4_0Blocks>
                                            : quantize_sixteen_blocks<Q4_1Blocks>;
    auto* to = static_cast<std::uint8_t*>(out);
    for (; n >= step; n -= step, x += step, to += dtype_bytes(type, step))
        if (!some(x, to)) return false;
    return ref::quantize_blocks(type, x, n, to);
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
