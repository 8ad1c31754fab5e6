// What comes between the products that make Q, K and V and attention, in one launch.
#include "kernels/common/rope.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/store_head.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128, warps = threads / warp_size;

__host__ __device__ inline std::size_t rounded_dim(std::size_t dim) { return (dim + 3) / 4 * 4; }

// A warp has a head of a token: those of q, then k, then v.
template <Stored S>
__global__ void __launch_bounds__(threads)
    finish_heads(DeviceQkv x, DeviceKv k, DeviceKv v, DeviceSequences s, DeviceKvError* error) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const std::size_t widest = rounded_dim(k.head_dim > v.head_dim ? k.head_dim : v.head_dim);
    HETERO_DYNAMIC_SHARED(float, shared);  // [warp][row, rotated row], then codes [warp]
    float* row = shared + static_cast<std::size_t>(warp) * 2 * widest;
    auto* codes =
        reinterpret_cast<std::uint8_t*>(shared + warps * 2 * widest) + static_cast<std::size_t>(warp) * widest;
    const std::size_t n_heads = x.n_heads + k.n_heads + v.n_heads;
    const std::size_t index = std::size_t{blockIdx.x} * warps + static_cast<std::size_t>(warp);
    const std::size_t token = index / n_heads;
    std::size_t head = index % n_heads;
    if (token >= s.n_tokens) return;

    if (head >= x.n_heads + k.n_heads) {
        head -= x.n_heads + k.n_heads;
        const float* from = x.v.data + token * x.v.stride + head * x.v.head_stride;
        for (int i = lane; i < static_cast<int>(v.head_dim); i += warp_size) row[i] = from[i];
        __syncwarp();
        return store_head<S>(v, s, token, head, row, codes, &error->v);
    }
    const bool is_key = head >= x.n_heads;
    if (is_key) head -= x.n_heads;
    const DeviceHeads<float>& heads = is_key ? x.k : x.q;
    const DeviceNorm& norm = is_key ? x.k_norm : x.q_norm;
    float* at = heads.data + token * heads.stride + head * heads.head_stride;
    const int dim = static_cast<int>(k.head_dim), pairs = static_cast<int>(x.n_pairs);
    for (int i = lane; i < dim; i += warp_size) row[i] = at[i];
    __syncwarp();
    if (norm.weight != nullptr) {
        const auto put = [row](std::size_t i, float value) { row[i] = value; };
        norm.kind == DeviceNorm::Kind::rms ? rms_norm_row<WarpThreads>(norm, row, k.head_dim, put)
                                           : layer_norm_row<WarpThreads>(norm, row, k.head_dim, put);
        __syncwarp();
    }
    float* rotated = row + widest;
    const bool interleaved = x.pairing == RopePairing::interleaved;
    for (int pair = lane; pair < pairs; pair += warp_size) {
        const float a = row[interleaved ? 2 * pair : pair], b = row[interleaved ? 2 * pair + 1 : pair + pairs];
        const std::size_t angle = token * x.n_pairs + static_cast<std::size_t>(pair);
        rotate_pair(a, b, x.cos[angle], x.sin[angle], rotated[pair], rotated[pair + pairs]);
    }
    for (int i = 2 * pairs + lane; i < dim; i += warp_size) rotated[i] = row[i];
    __syncwarp();
    if (is_key && k.group_tokens == 0) return store_head<S>(k, s, token, head, rotated, codes, &error->k);
    for (int i = lane; i < dim; i += warp_size) at[i] = rotated[i];
}

DeviceFault finish_qkv(DeviceStream stream, const DeviceQkv& x, const DeviceKv& k, const DeviceKv& v,
                       const DeviceSequences& s, DeviceKvError* error) {
    const Shapes shapes = {{"tokens", s.n_tokens},
                           {"heads", x.n_heads},
                           {"kv_heads", k.n_heads},
                           {"head_dim_k", k.head_dim},
                           {"head_dim_v", v.head_dim}};
    if (stored_as(k) != stored_as(v)) return unsupported(stream, "finish_qkv", "K and V are of one kind", shapes);
    if (v.group_tokens != 0) return unsupported(stream, "finish_qkv", "groups of tokens are of K alone", shapes);
    if (stored_as(v) == Stored::codes && (v.group == 0 || (k.group == 0 && k.group_tokens == 0)))
        return unsupported(stream, "finish_qkv", "codes have groups of dims or of tokens", shapes);
    const std::size_t widest = rounded_dim(k.head_dim > v.head_dim ? k.head_dim : v.head_dim);
    const Grid grid{dim3(blocks_for(s.n_tokens * (x.n_heads + k.n_heads + v.n_heads), warps)), dim3(threads),
                    warps * widest * (2 * sizeof(float) + 1)};
    const auto start = [&](auto kernel) {
        return launch(stream, "finish_qkv", grid, shapes, kernel, x, k, v, s, error);
    };
    switch (stored_as(k)) {
        case Stored::f32:
            return start(finish_heads<Stored::f32>);
        case Stored::f16:
            return start(finish_heads<Stored::f16>);
        case Stored::bf16:
            return start(finish_heads<Stored::bf16>);
        default:
            return start(finish_heads<Stored::codes>);
    }
}

}  // namespace

void fill_qkv(DeviceOps& ops) { ops.finish_qkv = finish_qkv; }

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
