// K and V of new tokens into the pages.
#include "kernels/cuda/store_head.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128, warps = threads / warp_size;

// A warp has a head of a token.
template <Stored S>
__global__ void __launch_bounds__(threads)
    kv_store_heads(DeviceKv to, DeviceSequences s, DeviceHeads<const float> x, unsigned long long* error) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const int head_dim = static_cast<int>(to.head_dim);
    HETERO_DYNAMIC_SHARED(float, shared);  // [warp][head_dim], then codes likewise
    float* values = shared + warp * head_dim;
    auto* codes = reinterpret_cast<std::uint8_t*>(shared + warps * head_dim) + warp * head_dim;
    const std::size_t index = std::size_t{blockIdx.x} * warps + static_cast<std::size_t>(warp);
    const std::size_t token = index / to.n_heads, head = index % to.n_heads;
    if (token >= s.n_tokens) return;
    const float* from = x.data + token * x.stride + head * x.head_stride;
    for (int i = lane; i < head_dim; i += warp_size) values[i] = from[i];
    __syncwarp();
    store_head<S>(to, s, token, head, values, codes, error);
}

// Groups of tokens: f16 into the tail. grid: [token][part of its values]
__global__ void __launch_bounds__(threads)
    kv_store_tail(DeviceKv to, DeviceSequences s, DeviceHeads<const float> x, unsigned long long* error) {
    const std::size_t token = blockIdx.x, i = std::size_t{blockIdx.y} * threads + threadIdx.x;
    if (i >= to.n_heads * to.head_dim || s.position[token] < 0) return;
    const std::size_t head = i / to.head_dim, dim = i % to.head_dim;
    const std::uint16_t bits = f32_to_f16(x.data[token * x.stride + head * x.head_stride + dim]);
    tail_row(to, s.tails[s.sequence[token]], head, static_cast<std::size_t>(s.position[token]))[dim] = bits;
    if (!is_finite(f16_to_f32(bits))) note(error, to, s, token, head, dim);
}

// The codes of groups that are full now; a thread has two dims of a head. grid: [token][head]
__global__ void __launch_bounds__(threads) kv_close_groups(DeviceKv to, DeviceSequences s) {
    const std::size_t token = blockIdx.x, head = blockIdx.y;
    const int position = s.position[token], rows = static_cast<int>(to.group_tokens);
    if (position < 0 || (position + 1) % rows != 0) return;
    const int first = position + 1 - rows, first_row = first % page_tokens;
    std::byte* tile = tile_at(to, s, token, head);
    const std::uint16_t* from = tail_row(to, s.tails[s.sequence[token]], head, static_cast<std::size_t>(first));
    const bool paired = is_paired(to.codes);
    const std::size_t row_bytes = to.token_stride / (paired ? 2 : 1);
    auto* codes = reinterpret_cast<std::uint8_t*>(tile) + static_cast<std::size_t>(first_row) * row_bytes;
    for (std::size_t dim = 2 * threadIdx.x; dim < to.head_dim; dim += std::size_t{2} * threads) {
        const auto read = [&](int row, int i) {
            return f16_to_f32(from[static_cast<std::size_t>(row) * to.head_dim + dim + static_cast<std::size_t>(i)]);
        };
        const auto put = [&](int i, const GroupScale& found) {
            const std::size_t at = scale_index(to, first_row, static_cast<int>(dim) + i);
            reinterpret_cast<std::uint16_t*>(tile + to.scale_offset)[at] = found.scale;
            if (to.zero_offset != 0) reinterpret_cast<std::uint16_t*>(tile + to.zero_offset)[at] = found.zero;
        };
        // What was stored is finite in f16, and so are then the scales.
        (void)encode_channels(to.codes, dim + 1 < to.head_dim ? 2 : 1, rows, codes + (paired ? dim / 2 : dim),
                              row_bytes, read, put);
    }
}

DeviceFault kv_store(DeviceStream stream, const DeviceKv& to, const DeviceSequences& s, DeviceHeads<const float> x,
                     unsigned long long* error) {
    const Shapes shapes = {{"tokens", s.n_tokens}, {"heads", to.n_heads}, {"head_dim", to.head_dim}};
    const auto tokens = static_cast<unsigned>(s.n_tokens), heads = static_cast<unsigned>(to.n_heads);
    const Grid by_value{dim3(tokens, blocks_for(to.n_heads * to.head_dim, threads)), dim3(threads)};
    if (to.group_tokens != 0) {
        if (to.rotated) return unsupported(stream, "kv_store", "groups of tokens are not of rotated values", shapes);
        if (s.tails == nullptr) return unsupported(stream, "kv_store", "groups of tokens need tails", shapes);
        if (DeviceFault fault = launch(stream, "kv_store_tail", by_value, shapes, kv_store_tail, to, s, x, error))
            return fault;
        return launch(stream, "kv_close_groups", {dim3(tokens, heads), dim3(threads)}, shapes, kv_close_groups, to, s);
    }
    if (stored_as(to) == Stored::codes && to.group == 0)
        return unsupported(stream, "kv_store", "codes have groups of dims or of tokens", shapes);
    const Grid by_head{dim3(blocks_for(s.n_tokens * to.n_heads, warps)), dim3(threads),
                       warps * to.head_dim * (sizeof(float) + 1)};
    const auto start = [&](auto kernel) {
        return launch(stream, "kv_store", by_head, shapes, kernel, to, s, x, error);
    };
    switch (stored_as(to)) {
        case Stored::f32:
            return start(kv_store_heads<Stored::f32>);
        case Stored::f16:
            return start(kv_store_heads<Stored::f16>);
        case Stored::bf16:
            return start(kv_store_heads<Stored::bf16>);
        default:
            return start(kv_store_heads<Stored::codes>);
    }
}

}  // namespace

void fill_kv(DeviceOps& ops) { ops.kv_store = kv_store; }

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
