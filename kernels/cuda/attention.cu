// Attention over pages: what comes before and after the kernels of attention_decode.cu and attention_prefill.cu.
#include "kernels/cuda/attention.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128, warps = threads / warp_size;
constexpr std::size_t tokens_at_once = 64;  // of a prefill that goes by spans

// A warp has a head of a token.
__global__ void __launch_bounds__(threads)
    rotate_heads(DeviceHeads<const float> from, DeviceHeads<float> to, int n_tokens, int n_heads, int dim) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    HETERO_DYNAMIC_SHARED(float, shared);  // [warp][dim]
    float* x = shared + warp * dim;
    const int index = static_cast<int>(blockIdx.x) * warps + warp;
    if (index >= n_tokens * n_heads) return;
    const auto token = static_cast<std::size_t>(index / n_heads), head = static_cast<std::size_t>(index % n_heads);
    const float* source = from.data + token * from.stride + head * from.head_stride;
    float* target = to.data + token * to.stride + head * to.head_stride;
    for (int i = lane; i < dim; i += warp_size) x[i] = source[i];
    hadamard_warp(x, dim);
    for (int i = lane; i < dim; i += warp_size) target[i] = x[i];
}

DeviceFault rotate(DeviceStream stream, DeviceHeads<const float> from, DeviceHeads<float> to, std::size_t n_tokens,
                   std::size_t n_heads, std::size_t dim) {
    const Grid grid{dim3(blocks_for(n_tokens * n_heads, warps)), dim3(threads), warps * dim * sizeof(float)};
    return launch(stream, "rotate_heads", grid, {{"tokens", n_tokens}, {"heads", n_heads}, {"dim", dim}}, rotate_heads,
                  from, to, static_cast<int>(n_tokens), static_cast<int>(n_heads), static_cast<int>(dim));
}

std::size_t rotated_bytes(const DeviceAttention& a, std::size_t n_tokens) {
    if (!a.k.rotated) return 0;
    return (n_tokens * a.n_heads * a.query_dim * sizeof(float) + 255) / 256 * 256;
}

std::size_t attention_scratch_bytes(const DeviceAttention& a, std::size_t n_tokens, std::size_t max_tokens,
                                    bool decode) {
    constexpr std::size_t least_shared_bytes = std::size_t{99} << 10;  // of the devices that this is compiled for
    if (!decode && tiles_fit(a, least_shared_bytes)) return rotated_bytes(a, n_tokens);
    const std::size_t at_once = decode ? n_tokens : std::min(n_tokens, tokens_at_once);
    return rotated_bytes(a, n_tokens) + parts_bytes(a, at_once, max_tokens);
}

// What no kernel is for; null: nothing.
const char* refusal(const DeviceAttention& a, const DeviceSequences& s) {
    if (a.k.n_heads == 0 || a.n_heads % a.k.n_heads != 0) return "query heads are no multiple of KV heads";
    if (a.output_dim == 0 || a.output_dim > 1024 || a.query_dim > 1024) return "heads have 1 to 1024 dims";
    if ((a.k.codes == KvCodes::floats) != (a.v.codes == KvCodes::floats))
        return "K and V are both floats or both codes";
    if (a.k.codes == KvCodes::floats && a.k.dtype != a.v.dtype) return "K and V are floats of one type";
    for (const DeviceKv* part : {&a.k, &a.v})
        if (part->codes != KvCodes::floats && part->group == 0 && part->group_tokens == 0)
            return "codes have groups of dims or of tokens";
    if (is_latent(a) && (a.k.codes != KvCodes::floats || a.query_dim > a.k.token_stride || a.output_dim > a.query_dim))
        return "latents are floats, in rows as long as a query";
    if (a.v.group_tokens != 0) return "groups of tokens are of K alone";
    if (a.k.group_tokens != 0 && (s.tails == nullptr || a.k.rotated || a.window != 0))
        return "groups of tokens need tails, no rotation and no window";
    return nullptr;
}

template <class Attend>
DeviceFault attend(DeviceStream stream, const char* where, const DeviceAttention& attention, const DeviceSequences& s,
                   void* scratch, Attend attend_rotated) {
    if (s.n_tokens == 0 || attention.n_heads == 0) return {};
    if (const char* reason = refusal(attention, s))
        return unsupported(stream, where, reason,
                           {{"heads", attention.n_heads},
                            {"kv_heads", attention.k.n_heads},
                            {"query_dim", attention.query_dim},
                            {"output_dim", attention.output_dim}});
    DeviceAttention a = attention;
    auto* parts = static_cast<std::byte*>(scratch);
    if (a.k.rotated) {
        const DeviceHeads<float> rotated = {static_cast<float*>(scratch), a.n_heads * a.query_dim, a.query_dim};
        if (DeviceFault fault = rotate(stream, a.q, rotated, s.n_tokens, a.n_heads, a.query_dim)) return fault;
        a.q = {rotated.data, rotated.stride, rotated.head_stride};
        parts += rotated_bytes(a, s.n_tokens);
    }
    if (DeviceFault fault = attend_rotated(a, reinterpret_cast<float*>(parts))) return fault;
    if (!a.v.rotated) return {};
    return rotate(stream, {a.out.data, a.out.stride, a.out.head_stride}, a.out, s.n_tokens, a.n_heads, a.output_dim);
}

DeviceFault attention_decode(DeviceStream stream, const DeviceAttention& attention, const DeviceSequences& s,
                             std::size_t max_tokens, void* scratch) {
    return attend(stream, "attention_decode", attention, s, scratch, [&](const DeviceAttention& a, float* parts) {
        return attend_by_spans(stream, a, s, 0, s.n_tokens, max_tokens, parts);
    });
}

DeviceFault attention_prefill(DeviceStream stream, const DeviceAttention& attention, const DeviceSequences& s,
                              std::size_t max_tokens, void* scratch) {
    return attend(stream, "attention_prefill", attention, s, scratch, [&](const DeviceAttention& a, float* parts) {
        const std::size_t shared_bytes = of(stream).shared_bytes;
        if (tiles_fit(a, shared_bytes)) return attend_by_tiles(stream, a, s, shared_bytes);
        for (std::size_t first = 0; first < s.n_tokens; first += tokens_at_once) {
            const std::size_t n = std::min(s.n_tokens - first, tokens_at_once);
            if (DeviceFault fault = attend_by_spans(stream, a, s, first, n, max_tokens, parts)) return fault;
        }
        return DeviceFault{};
    });
}

}  // namespace

void fill_attention(DeviceOps& ops) {
    ops.attention_scratch_bytes = attention_scratch_bytes;
    ops.attention_prefill = attention_prefill;
    ops.attention_decode = attention_decode;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
