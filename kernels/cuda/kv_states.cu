// K and V of a state to codes and back.
#include "kernels/cuda/encode.cuh"
#include "kernels/cuda/kv_values.cuh"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128, warps = threads / warp_size;

// The largest value of the group that begins at `failed` of the row at `first`; rotated, values have no place of their
// own: of the row.
__device__ void note_largest(const DeviceCodec& codec, const Values& values, const void* x, std::size_t first,
                             std::size_t failed, unsigned long long* place) {
    std::size_t largest = codec.rotated ? first : first + failed;
    const std::size_t end = codec.rotated ? first + static_cast<std::size_t>(values.head_dim) : largest + codec.group;
    for (std::size_t i = largest; i < end; ++i)
        if (fabsf(value_at(values.type, x, i)) > fabsf(value_at(values.type, x, largest))) largest = i;
    atomicMin(place, static_cast<unsigned long long>(largest));
}

// hadamard_warp of 32 * Each values, Each to a lane.
template <int Each>
__device__ void hadamard_lanes(float (&x)[Each]) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
    for (int stride = 1; stride < Each; stride *= 2)
#pragma unroll
        for (int i = 0; i < Each; ++i) {
            if ((i & stride) != 0) continue;
            const float a = x[i], b = x[i + stride];
            x[i] = rounded_sum(a, b);
            x[i + stride] = rounded_sum(a, -b);
        }
#pragma unroll
    for (int distance = 1; distance < warp_size; distance *= 2)
#pragma unroll
        for (int i = 0; i < Each; ++i) {
            const float other = __shfl_xor_sync(all_lanes, x[i], distance);
            x[i] = (lane & distance) == 0 ? rounded_sum(x[i], other) : rounded_sum(other, -x[i]);
        }
    const float factor = hadamard_factor(std::size_t{Each} * warp_size);
#pragma unroll
    for (int i = 0; i < Each; ++i) x[i] = rounded_product(x[i], factor);
}

// A warp has a head of a token.
__global__ void __launch_bounds__(threads)
    kv_quantize_tokens(DeviceCodec codec, Values values, const void* x, DeviceCodes to, unsigned long long* place) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const int dim = values.head_dim, groups = dim / static_cast<int>(codec.group);
    HETERO_DYNAMIC_SHARED(float, shared);  // [warp][dim], then codes likewise
    float* row = shared + warp * dim;
    auto* q = reinterpret_cast<std::uint8_t*>(shared + warps * dim) + warp * dim;
    const std::size_t index = std::size_t{blockIdx.x} * warps + static_cast<std::size_t>(warp);
    if (index >= values.heads()) return;
    const std::size_t first = index * static_cast<std::size_t>(dim);
    int bad = dim;
    for (int i = lane; i < dim; i += warp_size) {
        row[i] = value_at(values.type, x, first + static_cast<std::size_t>(i));
        if (!is_finite(row[i]) && bad == dim) bad = i;
    }
    if (bad < dim) atomicMin(place, static_cast<unsigned long long>(first) + static_cast<unsigned long long>(bad));
    if (__any_sync(all_lanes, bad < dim)) return;
    __syncwarp();
    if (codec.rotated) hadamard_warp(row, dim);
    const auto put = [&](int group, const GroupScale& found) {
        const std::size_t at = index * static_cast<std::size_t>(groups) + static_cast<std::size_t>(group);
        to.scale[at] = found.scale;
        if (to.zero != nullptr) to.zero[at] = found.zero;
    };
    const int failed = encode_groups(codec.codes, row, dim, static_cast<int>(codec.group), q, put);
    if (failed < 0) return write_codes(codec.codes, q, dim, to.codes + index * values.row_bytes(codec.codes));
    if (lane == 0) note_largest(codec, values, x, first, static_cast<std::size_t>(failed), place);
}

// The same for heads of 32 * Each values, without shared memory: a lane has Each of them, and groups are of whole
// lanes.
template <int Each, class T>
__global__ void __launch_bounds__(threads)
    kv_quantize_lanes(DeviceCodec codec, Values values, const void* x, DeviceCodes to, unsigned long long* place) {
    constexpr int dim = Each * warp_size;
    struct alignas(Each * sizeof(T)) Lane {
        T items[Each];
    };
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const std::size_t index = std::size_t{blockIdx.x} * warps + static_cast<std::size_t>(warp), first = index * dim;
    if (index >= values.heads()) return;
    const Lane read = static_cast<const Lane*>(x)[index * warp_size + static_cast<std::size_t>(lane)];
    float row[Each];
    int bad = Each;
#pragma unroll
    for (int i = Each - 1; i >= 0; --i) {
        row[i] = value_at(values.type, read.items, static_cast<std::size_t>(i));
        if (!is_finite(row[i])) bad = i;
    }
    if (bad < Each) atomicMin(place, static_cast<unsigned long long>(first) + static_cast<unsigned>(lane * Each + bad));
    if (__any_sync(all_lanes, bad < Each)) return;
    if (codec.rotated) hadamard_lanes(row);
    float low = row[0], high = row[0];
#pragma unroll
    for (int i = 1; i < Each; ++i) {
        low = fminf(low, row[i]);
        high = fmaxf(high, row[i]);
    }
    const int group_lanes = static_cast<int>(codec.group) / Each;
    for (int distance = group_lanes / 2; distance > 0; distance /= 2) {
        low = fminf(low, __shfl_xor_sync(all_lanes, low, distance));
        high = fmaxf(high, __shfl_xor_sync(all_lanes, high, distance));
    }
    const GroupScale found = scale_of(codec.codes, low, high);
    const unsigned failed = __ballot_sync(all_lanes, !found.finite);
    if (failed != 0) {
        if (lane == __ffs(static_cast<int>(failed)) - 1)
            note_largest(codec, values, x, first, static_cast<std::size_t>(lane * Each), place);
        return;
    }
    if (lane % group_lanes == 0) {
        const std::size_t at =
            (index * warp_size + static_cast<std::size_t>(lane)) / static_cast<std::size_t>(group_lanes);
        to.scale[at] = found.scale;
        if (to.zero != nullptr) to.zero[at] = found.zero;
    }
    const float scale = f16_to_f32(found.scale), zero = f16_to_f32(found.zero);
    struct alignas(Each) Codes {
        std::uint8_t bytes[Each];
    } codes;
    struct alignas(Each / 2) Pairs {
        std::uint8_t bytes[Each / 2];
    } pairs;
#pragma unroll
    for (int i = 0; i < Each; ++i) codes.bytes[i] = code_of(codec.codes, row[i], scale, zero);
    const std::size_t at = index * warp_size + static_cast<std::size_t>(lane);
    if (!is_paired(codec.codes)) {
        reinterpret_cast<Codes*>(to.codes)[at] = codes;
        return;
    }
#pragma unroll
    for (int i = 0; i < Each / 2; ++i) pairs.bytes[i] = pair_of(codes.bytes[2 * i], codes.bytes[2 * i + 1]);
    reinterpret_cast<Pairs*>(to.codes)[at] = pairs;
}

// A thread has two channels of a group. grid: [group of tokens][pair of channels]
__global__ void __launch_bounds__(threads)
    kv_quantize_channels(DeviceCodec codec, Values values, const void* x, DeviceCodes to, unsigned long long* place) {
    const auto dim = static_cast<std::size_t>(values.head_dim), pairs = (dim + 1) / 2;
    const std::size_t pair = std::size_t{blockIdx.y} * threads + threadIdx.x,
                      heads = static_cast<std::size_t>(values.n_heads);
    if (pair >= heads * pairs) return;
    const std::size_t head = pair / pairs, channel = pair % pairs * 2, group = blockIdx.x,
                      token = group * codec.group_tokens;
    const int n = channel + 1 < dim ? 2 : 1;
    const int rows = std::min(static_cast<int>(codec.group_tokens), values.n_tokens - static_cast<int>(token));
    const auto index = [&](int row, int i) {
        return ((token + static_cast<std::size_t>(row)) * heads + head) * dim + channel + static_cast<std::size_t>(i);
    };
    const auto read = [&](int row, int i) { return value_at(values.type, x, index(row, i)); };
    bool finite = true;
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < n; ++i)
            if (!is_finite(read(row, i))) {
                atomicMin(place, static_cast<unsigned long long>(index(row, i)));
                finite = false;
            }
    if (!finite) return;
    const auto put = [&](int i, const GroupScale& found) {
        const std::size_t at = (group * heads + head) * dim + channel + static_cast<std::size_t>(i);
        to.scale[at] = found.scale;
        if (to.zero != nullptr) to.zero[at] = found.zero;
        if (found.finite) return;
        int largest = 0;
        for (int row = 1; row < rows; ++row)
            if (fabsf(read(row, i)) > fabsf(read(largest, i))) largest = row;
        atomicMin(place, static_cast<unsigned long long>(index(largest, i)));
    };
    const std::size_t row_bytes = values.row_bytes(codec.codes);
    std::uint8_t* codes =
        to.codes + (token * heads + head) * row_bytes + (is_paired(codec.codes) ? channel / 2 : channel);
    (void)encode_channels(codec.codes, n, rows, codes, heads * row_bytes, read, put);
}

__device__ inline float decoded(const DeviceCodec& codec, const Values& values, const ConstDeviceCodes& from,
                                std::size_t row, int i) {
    const auto dim = static_cast<std::size_t>(values.head_dim), at = static_cast<std::size_t>(i);
    const bool paired = is_paired(codec.codes);
    unsigned code = from.codes[row * values.row_bytes(codec.codes) + (paired ? at / 2 : at)];
    if (paired) code = at % 2 == 0 ? code & 15U : code >> 4;
    const auto heads = static_cast<std::size_t>(values.n_heads);
    const std::size_t scale = codec.group != 0 ? row * (dim / codec.group) + at / codec.group
                                               : (row / heads / codec.group_tokens * heads + row % heads) * dim + at;
    const float number = code_value(codec.codes, code), factor = f16_to_f32(from.scale[scale]);
    if (codec.codes == KvCodes::e4m3fn) return rounded_product(number, factor);
    return coded_value(number, factor, from.zero != nullptr ? f16_to_f32(from.zero[scale]) : 0);
}

// All of a head, by a warp.
__device__ inline void decode_head(const DeviceCodec& codec, const Values& values, const ConstDeviceCodes& from,
                                   std::size_t index, float* row) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    for (int i = lane; i < values.head_dim; i += warp_size) row[i] = decoded(codec, values, from, index, i);
    if (codec.rotated) hadamard_warp(row, values.head_dim);
}

// A warp has a head of a token.
__global__ void __launch_bounds__(threads)
    kv_dequantize(DeviceCodec codec, Values values, ConstDeviceCodes from, void* x, unsigned long long* place) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const int dim = values.head_dim;
    HETERO_DYNAMIC_SHARED(float, shared);  // [warp][dim]
    float* row = shared + warp * dim;
    const std::size_t index = std::size_t{blockIdx.x} * warps + static_cast<std::size_t>(warp);
    if (index >= values.heads()) return;
    decode_head(codec, values, from, index, row);
    for (int i = lane; i < dim; i += warp_size) {
        const std::size_t at = index * static_cast<std::size_t>(dim) + static_cast<std::size_t>(i);
        if (!put_value(values.type, x, at, row[i])) atomicMin(place, static_cast<unsigned long long>(at));
    }
}

// A warp has a head of a token. Of floats that are not negative, the order is that of their bits.
__global__ void __launch_bounds__(threads)
    kv_error(DeviceCodec codec, Values values, ConstDeviceCodes from, const void* x, unsigned* error) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const int dim = values.head_dim;
    HETERO_DYNAMIC_SHARED(float, shared);  // [warp][dim]
    float* row = shared + warp * dim;
    const std::size_t index = std::size_t{blockIdx.x} * warps + static_cast<std::size_t>(warp);
    if (index >= values.heads()) return;
    decode_head(codec, values, from, index, row);
    float largest = 0;
    for (int i = lane; i < dim; i += warp_size) {
        const std::size_t at = index * static_cast<std::size_t>(dim) + static_cast<std::size_t>(i);
        const float difference = fabsf(row[i] - value_at(values.type, x, at));
        if (is_finite(difference)) largest = fmaxf(largest, difference);
    }
    largest = warp_max(largest);
    if (lane == 0 && largest > 0) atomicMax(error, __float_as_uint(largest));
}

// What no kernel is for; null: nothing.
const char* refusal(const DeviceCodec& codec, DType type, std::size_t head_dim) {
    if (type != DType::f32 && type != DType::f16 && type != DType::bf16) return "values are f32, f16 or bf16";
    if (codec.codes == KvCodes::floats) return "floats are not coded";
    if (head_dim == 0 || head_dim > 1024) return "heads have 1 to 1024 dims";
    if (codec.mean_width != 0) return widths_refusal(codec);
    if ((codec.group == 0) == (codec.group_tokens == 0)) return "groups are of dims or of tokens";
    if (codec.group != 0 && head_dim % codec.group != 0) return "groups do not divide a head";
    if (codec.group_tokens != 0 && codec.rotated) return "groups of tokens are not of rotated values";
    if (codec.group_tokens != 0 && codec.codes == KvCodes::e4m3fn) return "8-bit floats have no scales by channel";
    return nullptr;
}

Values shape_of(DType type, std::size_t n_tokens, std::size_t n_heads, std::size_t head_dim) {
    return {type, static_cast<int>(n_tokens), static_cast<int>(n_heads), static_cast<int>(head_dim)};
}

using QuantizeLanes = void (*)(DeviceCodec, Values, const void*, DeviceCodes, unsigned long long*);
template <int Each>
QuantizeLanes quantize_lanes_of(DType type) {
    return type == DType::f32 ? kv_quantize_lanes<Each, float> : kv_quantize_lanes<Each, std::uint16_t>;
}
// Null where a row, or a group of it, is not one of whole lanes.
QuantizeLanes quantize_lanes(const DeviceCodec& codec, DType type, std::size_t head_dim, const void* x,
                             const void* codes) {
    const std::size_t each = head_dim / warp_size, group_lanes = each == 0 ? 0 : codec.group / each;
    const auto addresses = reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(codes);
    if (group_lanes == 0 || group_lanes * each != codec.group || (group_lanes & (group_lanes - 1)) != 0 ||
        addresses % (each * sizeof(float)) != 0)
        return nullptr;
    switch (head_dim) {
        case 64:
            return quantize_lanes_of<2>(type);
        case 128:
            return quantize_lanes_of<4>(type);
        case 256:
            return quantize_lanes_of<8>(type);
        default:
            return nullptr;
    }
}

DeviceFault quantize(DeviceStream stream, const DeviceCodec& codec, DType type, const void* x, std::size_t n_tokens,
                     std::size_t n_heads, std::size_t head_dim, const DeviceCodes& to, unsigned long long* place) {
    const Shapes shapes = {{"tokens", n_tokens}, {"heads", n_heads}, {"head_dim", head_dim}};
    if (const char* reason = refusal(codec, type, head_dim)) return unsupported(stream, "kv_quantize", reason, shapes);
    const Values values = shape_of(type, n_tokens, n_heads, head_dim);
    if (codec.mean_width != 0) return quantize_widths(stream, codec, values, x, to, place);
    if (codec.group_tokens != 0) {
        const Grid grid{
            dim3(blocks_for(n_tokens, codec.group_tokens), blocks_for(n_heads * ((head_dim + 1) / 2), threads)),
            dim3(threads)};
        return launch(stream, "kv_quantize_channels", grid, shapes, kv_quantize_channels, codec, values, x, to, place);
    }
    if (const QuantizeLanes kernel = quantize_lanes(codec, type, head_dim, x, to.codes))
        return launch(stream, "kv_quantize_lanes", {dim3(blocks_for(n_tokens * n_heads, warps)), dim3(threads)}, shapes,
                      kernel, codec, values, x, to, place);
    const Grid grid{dim3(blocks_for(n_tokens * n_heads, warps)), dim3(threads), warps * head_dim * (sizeof(float) + 1)};
    return launch(stream, "kv_quantize_tokens", grid, shapes, kv_quantize_tokens, codec, values, x, to, place);
}

DeviceFault dequantize(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from,
                       std::size_t n_tokens, std::size_t n_heads, std::size_t head_dim, DType type, void* x,
                       unsigned long long* place) {
    const Shapes shapes = {{"tokens", n_tokens}, {"heads", n_heads}, {"head_dim", head_dim}};
    if (const char* reason = refusal(codec, type, head_dim))
        return unsupported(stream, "kv_dequantize", reason, shapes);
    if (codec.mean_width != 0)
        return dequantize_widths(stream, codec, from, shape_of(type, n_tokens, n_heads, head_dim), x, place);
    const Grid grid{dim3(blocks_for(n_tokens * n_heads, warps)), dim3(threads), warps * head_dim * sizeof(float)};
    return launch(stream, "kv_dequantize", grid, shapes, kv_dequantize, codec,
                  shape_of(type, n_tokens, n_heads, head_dim), from, x, place);
}

DeviceFault error_of(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from, std::size_t n_tokens,
                     std::size_t n_heads, std::size_t head_dim, DType type, const void* x, float* error) {
    const Shapes shapes = {{"tokens", n_tokens}, {"heads", n_heads}, {"head_dim", head_dim}};
    if (const char* reason = refusal(codec, type, head_dim)) return unsupported(stream, "kv_error", reason, shapes);
    auto* bits = reinterpret_cast<unsigned*>(error);
    if (codec.mean_width != 0)
        return error_of_widths(stream, codec, from, shape_of(type, n_tokens, n_heads, head_dim), x, bits);
    const Grid grid{dim3(blocks_for(n_tokens * n_heads, warps)), dim3(threads), warps * head_dim * sizeof(float)};
    return launch(stream, "kv_error", grid, shapes, kv_error, codec, shape_of(type, n_tokens, n_heads, head_dim), from,
                  x, bits);
}

}  // namespace

void fill_kv_states(DeviceOps& ops) {
    ops.kv_quantize = quantize;
    ops.kv_dequantize = dequantize;
    ops.kv_error = error_of;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
