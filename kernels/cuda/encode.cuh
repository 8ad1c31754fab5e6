// Values of K and V to codes, as the codecs of hetero-quant(7) make them.
#pragma once
#include <algorithm>

#include "kernels/cuda/kv_rows.cuh"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

__host__ __device__ inline int levels_of(KvCodes codes) {
    switch (codes) {
        case KvCodes::i8:
            return 127;
        case KvCodes::u8:
            return 255;
        case KvCodes::i4:
            return 7;
        case KvCodes::u4:
            return 15;
        default:
            return 448;  // of e4m3fn: the largest value
    }
}
__host__ __device__ inline bool has_zero(KvCodes codes) { return codes == KvCodes::u8 || codes == KvCodes::u4; }

// Of a group with these extremes.
__device__ inline GroupScale scale_of(KvCodes codes, float low, float high) {
    const bool zero = has_zero(codes);
    return group_scale(low, zero ? high : fmaxf(fabsf(low), fabsf(high)), levels_of(codes), zero);
}
// As a byte.
__device__ inline std::uint8_t code_of(KvCodes codes, float x, float scale, float zero) {
    if (codes == KvCodes::e4m3fn) return fp8_code(fp8_layout(Fp8::e4m3fn), x, scale);
    return static_cast<std::uint8_t>(static_cast<int>(integer_code(x, scale, zero, !has_zero(codes))));
}
__device__ inline std::uint8_t pair_of(std::uint8_t low, std::uint8_t high) {
    return static_cast<std::uint8_t>((low & 15U) | (high & 15U) << 4);
}

// A row x of n values in shared memory by one warp, in groups of `group`: codes to q (shared memory, a byte each), the
// scale of group g to put(g, scale). The first value of the first group that has no finite scale, or -1.
template <class Put>
__device__ inline int encode_groups(KvCodes codes, const float* x, int n, int group, std::uint8_t* q, Put put) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    int failed = -1;
    for (int begin = 0, index = 0; begin < n; begin += group, ++index) {
        const int end = std::min(begin + group, n);
        float low = INFINITY, high = -INFINITY;
        for (int i = begin + lane; i < end; i += warp_size) {
            low = fminf(low, x[i]);
            high = fmaxf(high, x[i]);
        }
        const GroupScale found = scale_of(codes, warp_min(low), warp_max(high));
        if (lane == 0) put(index, found);
        if (!found.finite) {
            failed = failed < 0 ? begin : failed;
            continue;
        }
        const float scale = f16_to_f32(found.scale), zero = f16_to_f32(found.zero);
        for (int i = begin + lane; i < end; i += warp_size) q[i] = code_of(codes, x[i], scale, zero);
    }
    __syncwarp();
    return failed;
}

// n codes of a row, from shared memory to where it is kept, by one warp.
__device__ inline void write_codes(KvCodes codes, const std::uint8_t* q, int n, std::uint8_t* to) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    if (!is_paired(codes)) {
        for (int i = lane; i < n; i += warp_size) to[i] = q[i];
        return;
    }
    for (int i = lane; i < (n + 1) / 2; i += warp_size)
        to[i] = pair_of(q[2 * i], 2 * i + 1 < n ? q[2 * i + 1] : std::uint8_t{0});
}

// n (1 or 2) channels side by side over `rows` tokens, by one thread: read(row, i), put(i, scale), and the codes to
// to + row * row_bytes, a byte each, or both in one. False where a scale is not finite.
template <class Read, class Put>
__device__ inline bool encode_channels(KvCodes codes, int n, int rows, std::uint8_t* to, std::size_t row_bytes,
                                       Read read, Put put) {
    float scale[2] = {}, zero[2] = {};
    bool finite = true;
    for (int i = 0; i < n; ++i) {
        float low = INFINITY, high = -INFINITY;
        for (int row = 0; row < rows; ++row) {
            const float value = read(row, i);
            low = fminf(low, value);
            high = fmaxf(high, value);
        }
        const GroupScale found = scale_of(codes, low, high);
        put(i, found);
        finite = finite && found.finite;
        scale[i] = f16_to_f32(found.scale);
        zero[i] = f16_to_f32(found.zero);
    }
    for (int row = 0; finite && row < rows; ++row, to += row_bytes) {
        std::uint8_t q[2] = {};
        for (int i = 0; i < n; ++i) q[i] = code_of(codes, read(row, i), scale[i], zero[i]);
        to[0] = is_paired(codes) ? pair_of(q[0], q[1]) : q[0];
        if (!is_paired(codes) && n == 2) to[1] = q[1];
    }
    return finite;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
