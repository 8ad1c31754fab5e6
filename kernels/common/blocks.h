// What the elements of ggml's block formats stand for (ggml-common.h for the layouts, ggml-quants.c for the meaning).
// Every value is computed in f32 with exactly the operations written here, in this order and never fused, so that all
// backends agree bit for bit. A format is a type: value(b, j) is element j of the block at b.
#pragma once
#include "kernels/common/half.h"

namespace hetero::kernels::blocks {

using Byte = std::uint8_t;

HETERO_HD inline float half_at(const Byte* p) { return f16_to_f32(load<std::uint16_t>(p)); }
HETERO_HD inline float times(float a, int b) { return rounded_product(a, static_cast<float>(b)); }

// Element j of the first 16 is the low nibble of qs[j], element 16 + j the high one.
HETERO_HD inline int nibble(const Byte* qs, int j) { return j < 16 ? qs[j] & 0xf : qs[j - 16] >> 4; }
HETERO_HD inline int five_bits(std::uint32_t high, const Byte* qs, int j) {
    return nibble(qs, j) | static_cast<int>((high >> j) & 1) << 4;
}

struct Q8_0 {
    HETERO_HD static float value(const Byte* b, int j) { return times(half_at(b), static_cast<std::int8_t>(b[2 + j])); }
};
struct Q4_0 {
    HETERO_HD static float value(const Byte* b, int j) { return times(half_at(b), nibble(b + 2, j) - 8); }
};
struct Q4_1 {
    HETERO_HD static float value(const Byte* b, int j) {
        return rounded_sum(times(half_at(b), nibble(b + 4, j)), half_at(b + 2));
    }
};
struct Q5_0 {
    HETERO_HD static float value(const Byte* b, int j) {
        return times(half_at(b), five_bits(load<std::uint32_t>(b + 2), b + 6, j) - 16);
    }
};
struct Q5_1 {
    HETERO_HD static float value(const Byte* b, int j) {
        return rounded_sum(times(half_at(b), five_bits(load<std::uint32_t>(b + 4), b + 8, j)), half_at(b + 2));
    }
};

struct Iq4Nl {
    HETERO_HD static float value(const Byte* b, int j) {
        constexpr std::int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
        return times(half_at(b), values[nibble(b + 2, j)]);
    }
};

struct Q2K {
    HETERO_HD static float value(const Byte* b, int j) {
        const int half = j / 128, plane = j / 32 % 4;  // 32 bytes hold 4 planes of 2 bits
        const Byte scale = b[j / 16];
        const int q = (b[16 + 32 * half + j % 32] >> (2 * plane)) & 3;
        return rounded_sum(times(times(half_at(b + 80), scale & 0xf), q), -times(half_at(b + 82), scale >> 4));
    }
};

struct Q3K {
    // 16 six-bit scales in 12 bytes: low 4 bits in bytes 0..7 (two a byte), high 2 bits in bytes 8..11 (four a byte).
    HETERO_HD static int scale(const Byte* s, int i) {
        const int low = i < 8 ? s[i] & 0xf : s[i - 8] >> 4;
        const int high = (s[8 + i % 4] >> (2 * (i / 4))) & 3;
        return low | high << 4;
    }
    HETERO_HD static float value(const Byte* b, int j) {
        const int half = j / 128, plane = j / 32 % 4;
        const int low = (b[32 + 32 * half + j % 32] >> (2 * plane)) & 3;
        const bool high = (b[j % 32] >> (j / 32)) & 1;
        return times(times(half_at(b + 108), scale(b + 96, j / 16) - 32), low - (high ? 0 : 4));
    }
};

struct ScaleMin {
    int scale, min;
};
// 8 six-bit scales and mins in 12 bytes.
HETERO_HD inline ScaleMin scale_min(const Byte* s, int i) {
    if (i < 4) return {s[i] & 63, s[i + 4] & 63};
    return {(s[i + 4] & 0xf) | (s[i - 4] >> 6) << 4, (s[i + 4] >> 4) | (s[i] >> 6) << 4};
}
// d * scale * q - dmin * min, of a block that begins with d and dmin.
HETERO_HD inline float scaled(const Byte* b, const ScaleMin& sm, int q) {
    return rounded_sum(times(times(half_at(b), sm.scale), q), -times(half_at(b + 2), sm.min));
}

struct Q4K {
    HETERO_HD static float value(const Byte* b, int j) {
        const Byte packed = b[16 + 32 * (j / 64) + j % 32];
        return scaled(b, scale_min(b + 4, j / 32), j / 32 % 2 ? packed >> 4 : packed & 0xf);
    }
};
struct Q5K {
    HETERO_HD static float value(const Byte* b, int j) {
        const Byte packed = b[48 + 32 * (j / 64) + j % 32];
        const int low = j / 32 % 2 ? packed >> 4 : packed & 0xf;
        return scaled(b, scale_min(b + 4, j / 32), low + (((b[16 + j % 32] >> (j / 32)) & 1) << 4));
    }
};

struct Q6K {
    HETERO_HD static float value(const Byte* b, int j) {
        const int half = j / 128, plane = j / 32 % 4;
        const Byte packed = b[64 * half + j % 64];
        const int low = plane < 2 ? packed & 0xf : packed >> 4;
        const int high = (b[128 + 32 * half + j % 32] >> (2 * plane)) & 3;
        return times(times(half_at(b + 208), static_cast<std::int8_t>(b[192 + j / 16])), (low | high << 4) - 32);
    }
};

}  // namespace hetero::kernels::blocks
