// K or V of one head of a token into its page, by a warp.
#pragma once
#include "kernels/cuda/encode.cuh"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

__device__ inline std::byte* tile_at(const DeviceKv& to, const DeviceSequences& s, std::size_t token,
                                     std::size_t head) {
    const auto position = static_cast<std::size_t>(s.position[token]);
    const std::uint32_t* pages = s.pages + static_cast<std::size_t>(s.sequence[token]) * s.max_pages;
    return tile_of(to, pages[position / page_tokens], head);
}
__device__ inline void note(unsigned long long* error, const DeviceKv& to, const DeviceSequences& s, std::size_t token,
                            std::size_t head, std::size_t dim) {
    const auto position = static_cast<unsigned long long>(s.position[token]);
    atomicMin(error, (position * to.n_heads + head) * to.head_dim + dim);
}

// False where the stored value is not finite.
template <Stored S>
__device__ inline bool store_float(std::byte* tile, std::size_t at, float value) {
    if constexpr (S == Stored::f32) {
        reinterpret_cast<float*>(tile)[at] = value;
        return is_finite(value);
    } else {
        const std::uint16_t bits = S == Stored::f16 ? f32_to_f16(value) : f32_to_bf16(value);
        reinterpret_cast<std::uint16_t*>(tile)[at] = bits;
        return is_finite(S == Stored::f16 ? f16_to_f32(bits) : bf16_to_f32(bits));
    }
}

// `values` [head_dim], the warp's own in shared memory, are spoilt by codes; q: as many bytes there.
template <Stored S>
__device__ inline void store_head(const DeviceKv& to, const DeviceSequences& s, std::size_t token, std::size_t head,
                                  float* values, std::uint8_t* q, unsigned long long* error) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size, head_dim = static_cast<int>(to.head_dim);
    if (s.position[token] < 0) return;
    const std::size_t row = static_cast<std::size_t>(s.position[token]) % page_tokens;
    std::byte* tile = tile_at(to, s, token, head);
    if constexpr (S != Stored::codes) {
        for (int i = lane; i < head_dim; i += warp_size) {
            if (!store_float<S>(tile, row * to.token_stride + static_cast<std::size_t>(i), values[i]))
                note(error, to, s, token, head, static_cast<std::size_t>(i));
        }
    } else {
        bool finite = true;
        float largest = -1;
        int largest_at = 0;
        for (int i = lane; i < head_dim; i += warp_size) {
            if (fabsf(values[i]) > largest) {
                largest = fabsf(values[i]);
                largest_at = i;
            }
            values[i] = f16_to_f32(f32_to_f16(values[i]));
            if (is_finite(values[i])) continue;
            finite = false;
            note(error, to, s, token, head, static_cast<std::size_t>(i));
        }
        if (__any_sync(all_lanes, !finite)) return;
        __syncwarp();
        if (to.rotated) hadamard_warp(values, head_dim);
        const auto put = [&](int group, const GroupScale& found) {
            const std::size_t at = static_cast<std::size_t>(group) * page_tokens + row;
            reinterpret_cast<std::uint16_t*>(tile + to.scale_offset)[at] = found.scale;
            if (to.zero_offset != 0) reinterpret_cast<std::uint16_t*>(tile + to.zero_offset)[at] = found.zero;
        };
        if (encode_groups(to.codes, values, head_dim, static_cast<int>(to.group), q, put) >= 0) {
            // Rotated values have no place of their own: the largest of the head.
            const float most = warp_max(largest);  // by all lanes
            if (largest == most) note(error, to, s, token, head, static_cast<std::size_t>(largest_at));
            return;
        }
        const std::size_t row_bytes = to.token_stride / (is_paired(to.codes) ? 2 : 1);
        write_codes(to.codes, q, head_dim, reinterpret_cast<std::uint8_t*>(tile) + row * row_bytes);
    }
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
