// K and V of new tokens into the pages.
#include "kernels/cuda/encode.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128, warps = threads / warp_size;

__device__ std::byte* tile_at(const DeviceKv& to, const DeviceSequences& s, std::size_t token, std::size_t head) {
    const auto position = static_cast<std::size_t>(s.position[token]);
    const std::uint32_t* pages = s.pages + static_cast<std::size_t>(s.sequence[token]) * s.max_pages;
    return tile_of(to, pages[position / page_tokens], head);
}
__device__ void note(unsigned long long* error, const DeviceKv& to, const DeviceSequences& s, std::size_t token,
                     std::size_t head, std::size_t dim) {
    const auto position = static_cast<unsigned long long>(s.position[token]);
    atomicMin(error, (position * to.n_heads + head) * to.head_dim + dim);
}

// grid: [token][part of its values]
template <Stored S>
__global__ void __launch_bounds__(threads)
    kv_store_floats(DeviceKv to, DeviceSequences s, DeviceHeads<const float> x, unsigned long long* error) {
    const std::size_t token = blockIdx.x, i = std::size_t{blockIdx.y} * threads + threadIdx.x;
    if (i >= to.n_heads * to.head_dim || s.position[token] < 0) return;
    const std::size_t head = i / to.head_dim, dim = i % to.head_dim;
    const float value = x.data[token * x.stride + head * x.head_stride + dim];
    const std::size_t row = static_cast<std::size_t>(s.position[token]) % page_tokens;
    std::byte* tile = tile_at(to, s, token, head);
    const std::size_t at = row * to.token_stride + dim;
    bool finite = is_finite(value);
    if constexpr (S == Stored::f32) {
        reinterpret_cast<float*>(tile)[at] = value;
    } else {
        const std::uint16_t bits = S == Stored::f16 ? f32_to_f16(value) : f32_to_bf16(value);
        reinterpret_cast<std::uint16_t*>(tile)[at] = bits;
        finite = is_finite(S == Stored::f16 ? f16_to_f32(bits) : bf16_to_f32(bits));
    }
    if (!finite) note(error, to, s, token, head, dim);
}

// A warp has a head of a token.
__global__ void __launch_bounds__(threads)
    kv_store_codes(DeviceKv to, DeviceSequences s, DeviceHeads<const float> x, unsigned long long* error) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const int head_dim = static_cast<int>(to.head_dim);
    HETERO_DYNAMIC_SHARED(float, shared);  // [warp][head_dim], then codes likewise
    float* values = shared + warp * head_dim;
    auto* q = reinterpret_cast<std::uint8_t*>(shared + warps * head_dim) + warp * head_dim;
    const std::size_t index = std::size_t{blockIdx.x} * warps + static_cast<std::size_t>(warp);
    const std::size_t token = index / to.n_heads, head = index % to.n_heads;
    if (token >= s.n_tokens || s.position[token] < 0) return;
    const float* from = x.data + token * x.stride + head * x.head_stride;
    bool finite = true;
    for (int i = lane; i < head_dim; i += warp_size) {
        values[i] = f16_to_f32(f32_to_f16(from[i]));
        if (is_finite(values[i])) continue;
        finite = false;
        note(error, to, s, token, head, static_cast<std::size_t>(i));
    }
    if (__any_sync(all_lanes, !finite)) return;
    __syncwarp();
    if (to.rotated) hadamard_warp(values, head_dim);
    const std::size_t row = static_cast<std::size_t>(s.position[token]) % page_tokens;
    std::byte* tile = tile_at(to, s, token, head);
    const auto put = [&](int group, const GroupScale& found) {
        const std::size_t at = static_cast<std::size_t>(group) * page_tokens + row;
        reinterpret_cast<std::uint16_t*>(tile + to.scale_offset)[at] = found.scale;
        if (to.zero_offset != 0) reinterpret_cast<std::uint16_t*>(tile + to.zero_offset)[at] = found.zero;
    };
    if (encode_groups(to.codes, values, head_dim, static_cast<int>(to.group), q, put) >= 0) {
        // Rotated values have no place of their own: the largest of the head.
        if (lane != 0) return;
        int largest = 0;
        for (int i = 1; i < head_dim; ++i)
            if (fabsf(from[i]) > fabsf(from[largest])) largest = i;
        return note(error, to, s, token, head, static_cast<std::size_t>(largest));
    }
    const std::size_t row_bytes = to.token_stride / (is_paired(to.codes) ? 2 : 1);
    write_codes(to.codes, q, head_dim, reinterpret_cast<std::uint8_t*>(tile) + row * row_bytes);
}

// Groups of tokens: f16 into the tail; grid as of floats.
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
    switch (stored_as(to)) {
        case Stored::f32:
            return launch(stream, "kv_store_floats", by_value, shapes, kv_store_floats<Stored::f32>, to, s, x, error);
        case Stored::f16:
            return launch(stream, "kv_store_floats", by_value, shapes, kv_store_floats<Stored::f16>, to, s, x, error);
        case Stored::bf16:
            return launch(stream, "kv_store_floats", by_value, shapes, kv_store_floats<Stored::bf16>, to, s, x, error);
        case Stored::codes:
            break;
    }
    if (to.group_tokens != 0) {
        if (to.rotated) return unsupported(stream, "kv_store", "groups of tokens are not of rotated values", shapes);
        if (s.tails == nullptr) return unsupported(stream, "kv_store", "groups of tokens need tails", shapes);
        if (DeviceFault fault = launch(stream, "kv_store_tail", by_value, shapes, kv_store_tail, to, s, x, error))
            return fault;
        return launch(stream, "kv_close_groups", {dim3(tokens, heads), dim3(threads)}, shapes, kv_close_groups, to, s);
    }
    if (to.group == 0) return unsupported(stream, "kv_store", "codes have groups of dims or of tokens", shapes);
    const Grid by_head{dim3(blocks_for(s.n_tokens * to.n_heads, warps)), dim3(threads),
                       warps * to.head_dim * (sizeof(float) + 1)};
    return launch(stream, "kv_store_codes", by_head, shapes, kv_store_codes, to, s, x, error);
}

}  // namespace

void fill_kv(DeviceOps& ops) { ops.kv_store = kv_store; }

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
