// What the two kinds of attention share.
#pragma once
#include <algorithm>

#include "kernels/cuda/kv_rows.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

// Keys of one token are divided into spans of a length that depends on its position alone, so that its bits do not
// depend on the tokens beside it nor on the grid.
struct Spans {
    int begin, end;     // keys in sight
    int length, first;  // tokens of a span, and the first span's number
    int count;
};
inline constexpr int shortest_span = 128, most_spans = 64;

__host__ __device__ inline Spans spans_at(int position, std::size_t window) {
    Spans spans = {0, position + 1, shortest_span, 0, 0};
    if (window != 0 && static_cast<std::size_t>(spans.end) > window) spans.begin = spans.end - static_cast<int>(window);
    while (spans.length * most_spans < spans.end) spans.length *= 2;
    spans.first = spans.begin / spans.length;
    spans.count = spans.end <= 0 ? 0 : (spans.end + spans.length - 1) / spans.length - spans.first;
    return spans;
}

// The most that spans_at() gives for positions up to max_tokens.
[[nodiscard]] inline std::size_t spans_within(std::size_t max_tokens, std::size_t window) {
    const std::size_t seen = window != 0 && window < max_tokens ? window + shortest_span : max_tokens + 1;
    const std::size_t spans = (seen + shortest_span - 1) / shortest_span;
    return spans < most_spans ? spans : most_spans;
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
