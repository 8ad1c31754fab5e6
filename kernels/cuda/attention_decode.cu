// Attention of single tokens: each span of keys by a block of its own (Flash-Decoding,
// https://crfm.stanford.edu/2023/10/12/flashdecoding.html), then the spans are merged. Query heads of one KV head read
// its rows together.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128, warps = threads / warp_size;
constexpr int key_lanes = 8;                    // threads that multiply one key
constexpr int key_teams = threads / key_lanes;  // of them
constexpr int team_keys = page_tokens / key_teams;

// Two pages' scores take turns, so that one may be written while the other is read.
template <int Heads>
struct Scratch {
    float scores[2][Heads][page_tokens];
    float rescale[2][Heads];
    float max[Heads], sum[Heads];
    float slots[threads * chunk_dims];
};

// Blocks that a multiprocessor has registers for, as many as need no stack: what is read at a time hides the memory's
// latency.
template <Stored K, int Heads>
inline constexpr int least_blocks = (Heads == 8 ? 3 : 4) - (K == Stored::codes && Heads >= 4 ? 1 : 0);

// grid: [token][KV head, block of its query heads][span]
template <Stored K, Stored V, int Heads>
__global__ void __launch_bounds__(threads, least_blocks<K, Heads>)
    attention_spans(DeviceAttention a, DeviceKv values, DeviceSequences s, int first_token, int head_blocks,
                    float* parts) {
    const int token = first_token + static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
    const int kv_head = static_cast<int>(blockIdx.y) / head_blocks, group = static_cast<int>(a.n_heads / a.k.n_heads);
    const int in_group = static_cast<int>(blockIdx.y) % head_blocks * Heads,
              n_heads = std::min(Heads, group - in_group);
    const int first_head = kv_head * group + in_group;
    const Spans spans = spans_at(s.position[token], a);
    if (static_cast<int>(blockIdx.z) >= spans.count) return;
    const int span_begin = (spans.first + static_cast<int>(blockIdx.z)) * spans.length;
    const int begin = std::max(span_begin, spans.begin), end = std::min(span_begin + spans.length, spans.end);
    const int sequence = s.sequence[token];
    const std::uint32_t* pages = s.pages + static_cast<std::size_t>(sequence) * s.max_pages;
    std::uint16_t* tail = a.k.group_tokens != 0 ? s.tails[sequence] : nullptr;
    const int open = a.k.group_tokens != 0
                         ? s.position[token] / static_cast<int>(a.k.group_tokens) * static_cast<int>(a.k.group_tokens)
                         : spans.end;

    HETERO_DYNAMIC_SHARED(unsigned char, shared);
    auto& scratch = *reinterpret_cast<Scratch<Heads>*>(shared);
    auto* q = reinterpret_cast<float*>(shared + sizeof(Scratch<Heads>));  // [Heads][q_width], zeros after the dims
    const int query_dim = static_cast<int>(a.query_dim), q_chunks = chunks_of(query_dim),
              q_width = q_chunks * chunk_dims;
    for (int i = tid; i < Heads * q_width; i += threads) {
        const int head = i / q_width, dim = i % q_width;
        q[i] = head < n_heads && dim < query_dim
                   ? a.q.data[static_cast<std::size_t>(token) * a.q.stride +
                              static_cast<std::size_t>(first_head + head) * a.q.head_stride +
                              static_cast<std::size_t>(dim)]
                   : 0.0F;
    }
    if (tid < Heads) {
        scratch.max[tid] = -INFINITY;
        scratch.sum[tid] = 0;
    }

    const int output_dim = static_cast<int>(a.output_dim), v_chunks = chunks_of(output_dim),
              n_slots = threads / v_chunks;
    const int v_chunk = tid % v_chunks, slot = tid / v_chunks;
    float acc[Heads][chunk_dims] = {};
    const int team = tid / key_lanes, lane = tid % key_lanes;
    __syncthreads();

    for (int page = begin / page_tokens, turn = 0; page * page_tokens < end; ++page, turn ^= 1) {
        const int page_begin = page * page_tokens, from = std::max(begin - page_begin, 0),
                  to = std::min(end - page_begin, int{page_tokens});
        const std::byte* k_tile = tile_of(a.k, pages[page], static_cast<std::size_t>(kv_head));
        float dots[team_keys][Heads] = {};
        for (int chunk = lane; chunk < q_chunks; chunk += key_lanes) {
            const int dim = chunk * chunk_dims, n = std::min(int{chunk_dims}, query_dim - dim);
            float k[team_keys][chunk_dims] = {};
#pragma unroll
            for (int i = 0; i < team_keys; ++i) {
                const int row = team * team_keys + i;
                if (row < from || row >= to) continue;
                if (page_begin + row >= open) {
                    read_tail(tail_row(a.k, tail, static_cast<std::size_t>(kv_head),
                                       static_cast<std::size_t>(page_begin + row)),
                              dim, n, k[i]);
                } else {
                    read_row<K>(a.k, k_tile, row, dim, n, k[i]);
                }
            }
#pragma unroll
            for (int head = 0; head < Heads; ++head) {
                float own[chunk_dims];
                read_plain(q + head * q_width + dim, chunk_dims, own);
#pragma unroll
                for (int i = 0; i < team_keys; ++i)
#pragma unroll
                    for (int d = 0; d < chunk_dims; ++d) dots[i][head] = fmaf(own[d], k[i][d], dots[i][head]);
            }
        }
#pragma unroll
        for (int i = 0; i < team_keys; ++i)
#pragma unroll
            for (int head = 0; head < Heads; ++head) {
                const float dot = warp_sum<key_lanes>(dots[i][head]);
                const int row = team * team_keys + i;
                if (lane == 0) scratch.scores[turn][head][row] = row < from || row >= to ? -INFINITY : score_of(a, dot);
            }
        __syncthreads();

        for (int head = tid / warp_size; head < Heads; head += warps) {  // a warp has a head
            float* scores = scratch.scores[turn][head];
            const int at = tid % warp_size;
            const float low = scores[at], high = scores[at + warp_size];
            const float before = scratch.max[head], top = fmaxf(warp_max(fmaxf(low, high)), before);
            const float p_low = expf(low - top), p_high = expf(high - top);
            const float sum = warp_sum(p_low + p_high);
            scores[at] = p_low;
            scores[at + warp_size] = p_high;
            if (at == 0) {
                const float rescale = expf(before - top);
                scratch.rescale[turn][head] = rescale;
                scratch.sum[head] = fmaf(scratch.sum[head], rescale, sum);
                scratch.max[head] = top;
            }
        }
        __syncthreads();

        if (slot < n_slots) {
            const std::byte* v_tile = tile_of(values, pages[page], static_cast<std::size_t>(kv_head));
            const int dim = v_chunk * chunk_dims, n = std::min(int{chunk_dims}, output_dim - dim);
#pragma unroll
            for (int head = 0; head < Heads; ++head)
#pragma unroll
                for (int d = 0; d < chunk_dims; ++d) acc[head][d] *= scratch.rescale[turn][head];
            for (int row = slot; row < to; row += n_slots) {
                if (row < from) continue;
                float v[chunk_dims];
                read_row<V>(values, v_tile, row, dim, n, v);
#pragma unroll
                for (int head = 0; head < Heads; ++head) {
                    const float p = scratch.scores[turn][head][row];
#pragma unroll
                    for (int d = 0; d < chunk_dims; ++d) acc[head][d] = fmaf(p, v[d], acc[head][d]);
                }
            }
        }
    }

    const std::size_t part = a.output_dim + 2;
#pragma unroll
    for (int head = 0; head < Heads; ++head) {
        __syncthreads();
        for (int d = 0; d < chunk_dims; ++d) scratch.slots[tid * chunk_dims + d] = acc[head][d];
        __syncthreads();
        if (head >= n_heads) continue;
        float* to =
            parts + ((static_cast<std::size_t>(blockIdx.x) * a.n_heads + static_cast<std::size_t>(first_head + head)) *
                         gridDim.z +
                     blockIdx.z) *
                        part;
        if (tid == 0) {
            to[0] = scratch.max[head];
            to[1] = scratch.sum[head];
        }
        for (int dim = tid; dim < output_dim; dim += threads) {
            float sum = 0;
            for (int i = 0; i < n_slots; ++i) sum += scratch.slots[i * v_chunks * chunk_dims + dim];
            to[2 + dim] = sum;
        }
    }
}

// grid: [token][query head]. Ops::attention_merge.
__global__ void __launch_bounds__(threads)
    attention_merge(DeviceAttention a, DeviceSequences s, int first_token, int max_spans, const float* parts) {
    const int token = first_token + static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
    const int count = spans_at(s.position[token], a).count, output_dim = static_cast<int>(a.output_dim);
    const std::size_t part = a.output_dim + 2;
    parts +=
        (static_cast<std::size_t>(blockIdx.x) * a.n_heads + blockIdx.y) * static_cast<std::size_t>(max_spans) * part;
    HETERO_DYNAMIC_SHARED(float, weights);  // [span]
    float max = -INFINITY, sum = 0;
    for (int span = 0; span < count; ++span) max = fmaxf(max, parts[static_cast<std::size_t>(span) * part]);
    for (int span = tid; span < count; span += threads)
        weights[span] = expf(parts[static_cast<std::size_t>(span) * part] - max);
    __syncthreads();
    for (int span = 0; span < count; ++span)
        sum = fmaf(weights[span], parts[static_cast<std::size_t>(span) * part + 1], sum);
    float* out = a.out.data + static_cast<std::size_t>(token) * a.out.stride + blockIdx.y * a.out.head_stride;
    for (int dim = tid; dim < output_dim; dim += threads) {
        float acc = 0;
        for (int span = 0; span < count; ++span)
            acc = fmaf(weights[span], parts[static_cast<std::size_t>(span) * part + 2 + static_cast<std::size_t>(dim)],
                       acc);
        out[dim] = count > 0 ? acc / sum : 0.0F;
    }
}

template <Stored K, Stored V, int Heads>
DeviceFault spans_of(DeviceStream stream, const DeviceAttention& a, const DeviceKv& values, const DeviceSequences& s,
                     std::size_t first, std::size_t n_tokens, std::size_t n_spans, float* parts) {
    const std::size_t group = a.n_heads / a.k.n_heads, blocks = (group + Heads - 1) / Heads;
    const std::size_t q_width = static_cast<std::size_t>(chunks_of(static_cast<int>(a.query_dim))) * chunk_dims;
    const Grid grid{dim3(static_cast<unsigned>(n_tokens), static_cast<unsigned>(a.k.n_heads * blocks),
                         static_cast<unsigned>(n_spans)),
                    dim3(threads), sizeof(Scratch<Heads>) + Heads * q_width * sizeof(float)};
    return launch(stream, "attention_spans", grid,
                  {{"tokens", n_tokens},
                   {"heads", a.n_heads},
                   {"kv_heads", a.k.n_heads},
                   {"query_dim", a.query_dim},
                   {"output_dim", a.output_dim}},
                  attention_spans<K, V, Heads>, a, values, s, static_cast<int>(first), static_cast<int>(blocks), parts);
}

template <Stored K, Stored V>
DeviceFault spans_for_group(DeviceStream stream, const DeviceAttention& a, const DeviceKv& values,
                            const DeviceSequences& s, std::size_t first, std::size_t n_tokens, std::size_t n_spans,
                            float* parts) {
    const std::size_t group = a.n_heads / a.k.n_heads;
    if (group == 1) return spans_of<K, V, 1>(stream, a, values, s, first, n_tokens, n_spans, parts);
    if (group == 2) return spans_of<K, V, 2>(stream, a, values, s, first, n_tokens, n_spans, parts);
    if (group <= 4) return spans_of<K, V, 4>(stream, a, values, s, first, n_tokens, n_spans, parts);
    return spans_of<K, V, heads_together>(stream, a, values, s, first, n_tokens, n_spans, parts);
}

}  // namespace

std::size_t parts_bytes(const DeviceAttention& a, std::size_t n_tokens, std::size_t max_tokens) {
    return n_tokens * a.n_heads * spans_within(max_tokens, a) * (a.output_dim + 2) * sizeof(float);
}

DeviceFault attend_by_spans(DeviceStream stream, const DeviceAttention& a, const DeviceSequences& s, std::size_t first,
                            std::size_t n_tokens, std::size_t max_tokens, float* parts) {
    if (n_tokens == 0) return {};
    const std::size_t n_spans = spans_within(max_tokens, a);
    const DeviceKv& values = values_of(a);
    DeviceFault fault;
    switch (stored_as(a.k)) {
        case Stored::f32:
            fault = spans_for_group<Stored::f32, Stored::f32>(stream, a, values, s, first, n_tokens, n_spans, parts);
            break;
        case Stored::f16:
            fault = spans_for_group<Stored::f16, Stored::f16>(stream, a, values, s, first, n_tokens, n_spans, parts);
            break;
        case Stored::bf16:
            fault = spans_for_group<Stored::bf16, Stored::bf16>(stream, a, values, s, first, n_tokens, n_spans, parts);
            break;
        case Stored::codes:
            fault =
                spans_for_group<Stored::codes, Stored::codes>(stream, a, values, s, first, n_tokens, n_spans, parts);
            break;
    }
    if (fault) return fault;
    const Grid grid{dim3(static_cast<unsigned>(n_tokens), static_cast<unsigned>(a.n_heads)), dim3(threads),
                    n_spans * sizeof(float)};
    return launch(stream, "attention_merge", grid,
                  {{"tokens", n_tokens}, {"heads", a.n_heads}, {"output_dim", a.output_dim}}, attention_merge, a, s,
                  static_cast<int>(first), static_cast<int>(n_spans), parts);
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
