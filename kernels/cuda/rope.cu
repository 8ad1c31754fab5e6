// Rotary embedding. The order of the operations is that of kernels/ref, whose bits this has.
#include "kernels/common/rope.h"
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

__global__ void angles(const double* frequencies, std::size_t n_pairs, double factor, const std::int32_t* positions,
                       float* cos_table, float* sin_table) {
    const std::size_t token = blockIdx.x, pair = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x;
    if (pair >= n_pairs) return;
    const double angle = static_cast<double>(positions[token]) * frequencies[pair];
    cos_table[token * n_pairs + pair] = static_cast<float>(cos(angle) * factor);
    sin_table[token * n_pairs + pair] = static_cast<float>(sin(angle) * factor);
}

DeviceFault rope_angles(DeviceStream stream, const double* frequencies, std::size_t n_pairs, double factor,
                        const std::int32_t* positions, std::size_t n_tokens, float* cos_table, float* sin_table) {
    constexpr unsigned threads = 64;
    return launch(stream, "rope_angles", {{blocks_for(n_tokens, 1), blocks_for(n_pairs, threads), 1}, {threads, 1, 1}},
                  {{"tokens", n_tokens}, {"pairs", n_pairs}}, angles, frequencies, n_pairs, factor, positions,
                  cos_table, sin_table);
}

// A block has a head of a token. All of it is read before any is written: src may be dst.
__global__ void rotate_heads(DeviceHeads<const float> src, DeviceHeads<float> dst, std::size_t head_dim,
                             const float* cos_table, const float* sin_table, std::size_t n_pairs, bool interleaved) {
    const std::size_t token = blockIdx.x, head = blockIdx.y;
    const float* from = src.data + token * src.stride + head * src.head_stride;
    float* to = dst.data + token * dst.stride + head * dst.head_stride;
    HETERO_DYNAMIC_SHARED(float, row);  // [head_dim]
    for (std::size_t i = threadIdx.x; i < head_dim; i += blockDim.x) row[i] = from[i];
    __syncthreads();
    for (std::size_t pair = threadIdx.x; pair < n_pairs; pair += blockDim.x) {
        const float a = interleaved ? row[2 * pair] : row[pair];
        const float b = interleaved ? row[2 * pair + 1] : row[pair + n_pairs];
        const float c = cos_table[token * n_pairs + pair], s = sin_table[token * n_pairs + pair];
        rotate_pair(a, b, c, s, to[pair], to[pair + n_pairs]);
    }
    for (std::size_t i = 2 * n_pairs + threadIdx.x; i < head_dim; i += blockDim.x) to[i] = row[i];
}

DeviceFault rope(DeviceStream stream, DeviceHeads<const float> src, DeviceHeads<float> dst, std::size_t n_tokens,
                 std::size_t n_heads, std::size_t head_dim, const float* cos_table, const float* sin_table,
                 std::size_t n_pairs, RopePairing pairing) {
    const unsigned threads = head_dim <= 64 ? 32 : 64;
    return launch(stream, "rope",
                  {{blocks_for(n_tokens, 1), blocks_for(n_heads, 1), 1}, {threads, 1, 1}, head_dim * sizeof(float)},
                  {{"tokens", n_tokens}, {"heads", n_heads}, {"head_dim", head_dim}, {"pairs", n_pairs}}, rotate_heads,
                  src, dst, head_dim, cos_table, sin_table, n_pairs, pairing == RopePairing::interleaved);
}

}  // namespace

void fill_rope(DeviceOps& ops) {
    ops.rope_angles = rope_angles;
    ops.rope = rope;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
