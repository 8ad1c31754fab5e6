// What the two kinds of attention share.
#pragma once
#include <algorithm>

#include "kernels/cuda/kv_rows.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// Keys of one token are divided into spans of a length that depends on its position and the heads' shape alone, so that
// its bits do not depend on the tokens beside it nor on the grid.
struct Spans {
    int begin, end;     // keys in sight
    int length, first;  // tokens of a span, and the first span's number
    int count;
};
inline constexpr int shortest_span = 128;
inline constexpr int heads_together = 8;  // query heads of a KV head that a block has, at most

// Where KV heads are few, more spans of one token keep the device busy.
__host__ __device__ inline int most_spans(const DeviceAttention& a) {
    constexpr std::size_t fewest = 64, most = 256, enough_blocks = 512;
    const std::size_t blocks = a.k.n_heads * ((a.n_heads / a.k.n_heads + heads_together - 1) / heads_together);
    std::size_t spans = fewest;
    while (spans < most && 2 * spans * blocks <= enough_blocks) spans *= 2;
    return static_cast<int>(spans);
}

__host__ __device__ inline Spans spans_at(int position, const DeviceAttention& a) {
    Spans spans = {0, position + 1, shortest_span, 0, 0};
    if (a.window != 0 && static_cast<std::size_t>(spans.end) > a.window)
        spans.begin = spans.end - static_cast<int>(a.window);
    while (spans.length * most_spans(a) < spans.end) spans.length *= 2;
    spans.first = spans.begin / spans.length;
    spans.count = spans.end <= 0 ? 0 : (spans.end + spans.length - 1) / spans.length - spans.first;
    return spans;
}

// The most that spans_at() gives for positions up to max_tokens.
[[nodiscard]] inline std::size_t spans_within(std::size_t max_tokens, const DeviceAttention& a) {
    const std::size_t seen = a.window != 0 && a.window < max_tokens ? a.window + shortest_span : max_tokens + 1;
    return std::min<std::size_t>((seen + shortest_span - 1) / shortest_span, static_cast<std::size_t>(most_spans(a)));
}

__device__ inline float score_of(const DeviceAttention& attention, float dot) {
    const float score = dot * attention.scale;
    return attention.softcap > 0 ? attention.softcap * tanhf(score / attention.softcap) : score;
}

// A latent is a key whose first dims are the value.
[[nodiscard]] __host__ __device__ inline bool is_latent(const DeviceAttention& attention) {
    return attention.query_dim != attention.k.head_dim;
}
[[nodiscard]] inline const DeviceKv& values_of(const DeviceAttention& attention) {
    return is_latent(attention) ? attention.k : attention.v;
}

// attention_decode.cu: tokens [first, first + n_tokens), queries rotated already.
DeviceFault attend_by_spans(DeviceStream stream, const DeviceAttention& attention, const DeviceSequences& sequences,
                            std::size_t first, std::size_t n_tokens, std::size_t max_tokens, float* parts);
[[nodiscard]] std::size_t parts_bytes(const DeviceAttention& attention, std::size_t n_tokens, std::size_t max_tokens);

// attention_prefill.cu: false where no block fits the device's shared memory.
[[nodiscard]] bool tiles_fit(const DeviceAttention& attention, std::size_t shared_bytes);
DeviceFault attend_by_tiles(DeviceStream stream, const DeviceAttention& attention, const DeviceSequences& sequences,
                            std::size_t shared_bytes);

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
