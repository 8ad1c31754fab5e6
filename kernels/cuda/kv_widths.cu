// Codes of unlike widths, as the wf codecs have them (hetero-quant(7)): a channel with a wide range has more bits than
// one with a narrow range. Writer and reader find the widths from the ranges, which are stored in place of scales.
#include <algorithm>

#include "kernels/cuda/encode.cuh"
#include "kernels/cuda/kv_values.cuh"
#include "kernels/cuda/reduce.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128, warps = threads / warp_size;

// The channels of a head over a group of tokens, in shared memory.
struct Channels {
    int n, row_words;
    float *range, *zero, *step;
    unsigned* begin;      // of a code in a row, bits
    unsigned* words;      // [warp][row_words]
    std::uint8_t* width;  // bits

    __device__ Channels(unsigned char* shared, int channels, int words_of_row) : n(channels), row_words(words_of_row) {
        range = reinterpret_cast<float*>(shared);
        zero = range + n;
        step = zero + n;
        begin = reinterpret_cast<unsigned*>(step + n);
        words = begin + n;
        width = reinterpret_cast<std::uint8_t*>(words + warps * row_words);
    }
};
int row_words_of(const DeviceCodec& codec, int head_dim) { return (head_dim * codec.mean_width + 31) / 32; }
std::size_t shared_bytes(int head_dim, int row_words) {
    const auto n = static_cast<std::size_t>(head_dim), words = static_cast<std::size_t>(row_words);
    return n * (3 * sizeof(float) + sizeof(unsigned) + 1) + warps * words * sizeof(unsigned);
}

// Larger for a larger step, of equals for the first channel; 0: none.
using Key = unsigned long long;
__device__ Key widest_of_lane(const Channels& all) {
    Key widest = 0;
    for (int c = static_cast<int>(threadIdx.x) % warp_size; c < all.n; c += warp_size) {
        const Key key = Key{__float_as_uint(all.step[c])} << 32 | (0xFFFFFFFFU - static_cast<unsigned>(c));
        if (all.width[c] < max_width && key > widest) widest = key;
    }
    return widest;
}

// Ops::fill_widths by one warp, and where the codes begin: bit by bit to the channel with the largest step.
__device__ void fill_widths(const Channels& all, int mean_width) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    for (int c = lane; c < all.n; c += warp_size) {
        all.width[c] = 1;
        all.step[c] = width_step(all.range[c], 1);
    }
    Key own = widest_of_lane(all);
    for (int bits = all.n * (mean_width - 1); bits > 0; --bits) {
        const Key widest = warp_reduce(own, [](Key a, Key b) { return a > b ? a : b; });
        const auto c = static_cast<int>(0xFFFFFFFFU - static_cast<unsigned>(widest & 0xFFFFFFFFU));
        if (c % warp_size != lane) continue;
        all.step[c] = width_step(all.range[c], ++all.width[c]);
        own = widest_of_lane(all);
    }
    __syncwarp();
    const int each = (all.n + warp_size - 1) / warp_size, first = lane * each, end = std::min(first + each, all.n);
    unsigned sum = 0;
    for (int c = first; c < end; ++c) sum += all.width[c];
    unsigned up_to = sum;
    for (int by = 1; by < warp_size; by *= 2) {
        const unsigned before = __shfl_up_sync(all_lanes, up_to, static_cast<unsigned>(by));
        if (lane >= by) up_to += before;
    }
    unsigned at = up_to - sum;
    for (int c = first; c < end; ++c) {
        all.begin[c] = at;
        at += all.width[c];
    }
}

// Which rows and channels a block has. grid: [group of tokens][head]
struct Group {
    std::size_t token, head, heads, dim;
    int rows;
    __device__ Group(const DeviceCodec& codec, const Values& values)
        : token(blockIdx.x * codec.group_tokens),
          head(blockIdx.y),
          heads(static_cast<std::size_t>(values.n_heads)),
          dim(static_cast<std::size_t>(values.head_dim)),
          rows(std::min(static_cast<int>(codec.group_tokens), values.n_tokens - static_cast<int>(token))) {}
    [[nodiscard]] __device__ std::size_t row(int i) const {
        return (token + static_cast<std::size_t>(i)) * heads + head;
    }
    [[nodiscard]] __device__ std::size_t value(int i, int channel) const {
        return row(i) * dim + static_cast<std::size_t>(channel);
    }
    [[nodiscard]] __device__ std::size_t scale(int channel) const {
        return (std::size_t{blockIdx.x} * heads + head) * dim + static_cast<std::size_t>(channel);
    }
};

__global__ void __launch_bounds__(threads)
    kv_quantize_widths(DeviceCodec codec, Values values, const void* x, DeviceCodes to, int row_words,
                       unsigned long long* place) {
    HETERO_DYNAMIC_SHARED(unsigned char, shared);
    __shared__ int failed;
    const Channels all(shared, values.head_dim, row_words);
    const Group group(codec, values);
    const int tid = static_cast<int>(threadIdx.x), warp = tid / warp_size, lane = tid % warp_size;
    if (tid == 0) failed = 0;
    __syncthreads();
    for (int c = tid; c < all.n; c += threads) {
        float low = INFINITY, high = -INFINITY;
        int largest = 0, bad = 0;
        for (int row = 0; row < group.rows; ++row) {
            const float value = value_at(values.type, x, group.value(row, c));
            if (!is_finite(value)) {
                atomicMin(place, static_cast<unsigned long long>(group.value(row, c)));
                bad = 1;
            }
            if (fabsf(value) > fmaxf(fabsf(low), fabsf(high)) || row == 0) largest = row;
            low = fminf(low, value);
            high = fmaxf(high, value);
        }
        const GroupScale found = group_scale(low, high, 1, true);
        if (bad == 0 && !found.finite) {
            atomicMin(place, static_cast<unsigned long long>(group.value(largest, c)));
            bad = 1;
        }
        if (bad != 0) atomicMax(&failed, 1);
        to.scale[group.scale(c)] = found.scale;
        to.zero[group.scale(c)] = found.zero;
        all.range[c] = f16_to_f32(found.scale);
        all.zero[c] = f16_to_f32(found.zero);
    }
    __syncthreads();
    if (failed != 0) return;
    if (warp == 0) fill_widths(all, codec.mean_width);
    __syncthreads();
    unsigned* words = all.words + warp * row_words;
    auto* codes = reinterpret_cast<unsigned*>(to.codes);
    for (int row = warp; row < group.rows; row += warps) {
        for (int i = lane; i < row_words; i += warp_size) words[i] = 0;
        __syncwarp();
        for (int c = lane; c < all.n; c += warp_size) {
            const float value = value_at(values.type, x, group.value(row, c)), step = all.step[c];
            const unsigned width = all.width[c], top = (1U << width) - 1, at = all.begin[c], bit = at % 32;
            const float code = step == 0 ? 0.0F : rintf(rounded_sum(value, -all.zero[c]) / step);
            const auto bits = static_cast<unsigned>(fminf(fmaxf(code, 0.0F), static_cast<float>(top)));
            atomicOr(&words[at / 32], bits << bit);
            if (bit + width > 32) atomicOr(&words[at / 32 + 1], bits >> (32 - bit));
        }
        __syncwarp();
        for (int i = lane; i < row_words; i += warp_size)
            codes[group.row(row) * static_cast<std::size_t>(row_words) + static_cast<std::size_t>(i)] = words[i];
        __syncwarp();
    }
}

// body(row, channel, value) of all that the block's codes stand for.
template <class Body>
__device__ void for_decoded(const DeviceCodec& codec, const Values& values, const ConstDeviceCodes& from, int row_words,
                            const Body& body) {
    HETERO_DYNAMIC_SHARED(unsigned char, shared);
    const Channels all(shared, values.head_dim, row_words);
    const Group group(codec, values);
    const int tid = static_cast<int>(threadIdx.x), warp = tid / warp_size, lane = tid % warp_size;
    for (int c = tid; c < all.n; c += threads) {
        all.range[c] = f16_to_f32(from.scale[group.scale(c)]) + 0.0F;  // -0 becomes +0
        all.zero[c] = f16_to_f32(from.zero[group.scale(c)]);
    }
    __syncthreads();
    if (warp == 0) fill_widths(all, codec.mean_width);
    __syncthreads();
    const auto* codes = reinterpret_cast<const unsigned*>(from.codes);
    for (int row = warp; row < group.rows; row += warps) {
        const unsigned* words = codes + group.row(row) * static_cast<std::size_t>(row_words);
        for (int c = lane; c < all.n; c += warp_size) {
            const unsigned width = all.width[c], at = all.begin[c], bit = at % 32;
            unsigned code = words[at / 32] >> bit;
            if (bit + width > 32) code |= words[at / 32 + 1] << (32 - bit);
            code &= (1U << width) - 1;
            body(group.value(row, c), coded_value(static_cast<float>(code), all.step[c], all.zero[c]));
        }
    }
}

__global__ void __launch_bounds__(threads) kv_dequantize_widths(DeviceCodec codec, Values values, ConstDeviceCodes from,
                                                                void* x, int row_words, unsigned long long* place) {
    for_decoded(codec, values, from, row_words, [&](std::size_t at, float value) {
        if (!put_value(values.type, x, at, value)) atomicMin(place, static_cast<unsigned long long>(at));
    });
}

__global__ void __launch_bounds__(threads) kv_error_widths(DeviceCodec codec, Values values, ConstDeviceCodes from,
                                                           const void* x, int row_words, unsigned* error) {
    float largest = 0;
    for_decoded(codec, values, from, row_words, [&](std::size_t at, float value) {
        const float difference = fabsf(value - value_at(values.type, x, at));
        if (is_finite(difference)) largest = fmaxf(largest, difference);
    });
    largest = warp_max(largest);
    if (threadIdx.x % warp_size == 0 && largest > 0) atomicMax(error, __float_as_uint(largest));
}

template <class... Params, class... Args>
DeviceFault start(DeviceStream stream, const char* name, const DeviceCodec& codec, const Values& values,
                  void (*kernel)(Params...), const Args&... args) {
    const Shapes shapes = {{"tokens", static_cast<std::size_t>(values.n_tokens)},
                           {"heads", static_cast<std::size_t>(values.n_heads)},
                           {"head_dim", static_cast<std::size_t>(values.head_dim)},
                           {"bits", static_cast<std::size_t>(codec.mean_width)}};
    const Grid grid{dim3(blocks_for(static_cast<std::size_t>(values.n_tokens), codec.group_tokens),
                         static_cast<unsigned>(values.n_heads)),
                    dim3(threads), shared_bytes(values.head_dim, row_words_of(codec, values.head_dim))};
    return launch(stream, name, grid, shapes, kernel, codec, values, args...);
}

}  // namespace

const char* widths_refusal(const DeviceCodec& codec) {
    if (codec.mean_width < 1 || codec.mean_width > max_width) return "codes of unlike widths have 1 to 12 bits";
    if (codec.codes != KvCodes::u8 || codec.group != 0 || codec.group_tokens == 0 || codec.rotated)
        return "codes of unlike widths have zeros, by channel, and are not rotated";
    return nullptr;
}

DeviceFault quantize_widths(DeviceStream stream, const DeviceCodec& codec, const Values& values, const void* x,
                            const DeviceCodes& to, unsigned long long* place) {
    return start(stream, "kv_quantize_widths", codec, values, kv_quantize_widths, x, to,
                 row_words_of(codec, values.head_dim), place);
}
DeviceFault dequantize_widths(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from,
                              const Values& values, void* x, unsigned long long* place) {
    return start(stream, "kv_dequantize_widths", codec, values, kv_dequantize_widths, from, x,
                 row_words_of(codec, values.head_dim), place);
}
DeviceFault error_of_widths(DeviceStream stream, const DeviceCodec& codec, const ConstDeviceCodes& from,
                            const Values& values, const void* x, unsigned* error) {
    return start(stream, "kv_error_widths", codec, values, kv_error_widths, from, x,
                 row_words_of(codec, values.head_dim), error);
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
