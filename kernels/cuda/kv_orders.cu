// K and V of a state to other orders.
#include <algorithm>

#include "kernels/cuda/kv_rows.cuh"
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 128;

// y[i] = x[from(i)], items of some bytes, a Word at a time.
struct Transposed {
    std::size_t rows, columns;
    __device__ std::size_t operator()(std::size_t i) const { return i % rows * columns + i / rows; }
};
struct Gathered {
    std::size_t n_heads, n_gathered;
    const std::int32_t* heads;
    __device__ std::size_t operator()(std::size_t i) const {
        return i / n_gathered * n_heads + static_cast<std::size_t>(heads[i % n_gathered]);
    }
};
struct Paired {
    std::size_t head_dim, n_pairs;
    bool to_halves;
    __device__ std::size_t operator()(std::size_t i) const {
        const std::size_t dim = i % head_dim, row = i - dim;
        if (dim >= 2 * n_pairs) return i;
        return row + (to_halves ? dim % n_pairs * 2 + dim / n_pairs : dim % 2 * n_pairs + dim / 2);
    }
};
template <class Word, class From>
__global__ void __launch_bounds__(threads)
    move_items(const Word* x, Word* y, std::size_t words, std::size_t item_words, From from) {
    for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < words;
         i += std::size_t{gridDim.x} * threads)
        y[i] = x[from(i / item_words) * item_words + i % item_words];
}

// Rows of K or V out of the pages of a sequence, a Word at a time.
template <class Word>
__global__ void __launch_bounds__(threads) collect_rows(DeviceKv from, const std::uint32_t* pages, std::size_t first,
                                                        Word* y, std::size_t words, std::size_t row_words) {
    const std::size_t stride = from.token_stride * (from.dtype == DType::f32 ? 4 : 2);  // bytes
    for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < words;
         i += std::size_t{gridDim.x} * threads) {
        const std::size_t row = i / row_words, position = first + row / from.n_heads;
        const std::byte* tile = tile_of(from, pages[position / page_tokens], row % from.n_heads);
        y[i] = reinterpret_cast<const Word*>(tile + position % page_tokens * stride)[i % row_words];
    }
}

// as(word) with the largest type whose size divides the bits of `all`.
template <class As>
DeviceFault by_words(std::size_t all, const As& as) {
    if (all % sizeof(uint4) == 0) return as(uint4{});
    if (all % sizeof(unsigned) == 0) return as(0U);
    if (all % sizeof(std::uint16_t) == 0) return as(std::uint16_t{});
    return as(std::uint8_t{});
}
Grid grid_of(DeviceStream stream, std::size_t words) {
    const std::size_t most_blocks = static_cast<std::size_t>(of(stream).multiprocessors) * 32;
    return {dim3(static_cast<unsigned>(std::min<std::size_t>(blocks_for(words, threads), most_blocks))), dim3(threads)};
}

template <class From>
DeviceFault move(DeviceStream stream, const char* name, const void* x, std::size_t items, std::size_t item_bytes,
                 void* y, const From& from) {
    const Shapes shapes = {{"items", items}, {"item_bytes", item_bytes}};
    const std::size_t all = item_bytes | reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y);
    return by_words(all, [&](auto word) {
        using Word = decltype(word);
        const std::size_t item_words = item_bytes / sizeof(Word), words = items * item_words;
        return launch(stream, name, grid_of(stream, words), shapes, move_items<Word, From>, static_cast<const Word*>(x),
                      static_cast<Word*>(y), words, item_words, from);
    });
}

DeviceFault kv_collect(DeviceStream stream, const DeviceKv& from, const DeviceSequences& sequences,
                       std::size_t sequence, std::size_t first, std::size_t n_tokens, void* x) {
    const Shapes shapes = {{"tokens", n_tokens}, {"heads", from.n_heads}, {"head_dim", from.head_dim}};
    if (from.codes != KvCodes::floats) return unsupported(stream, "kv_collect", "codes stay in their pages", shapes);
    const std::size_t value_bytes = from.dtype == DType::f32 ? 4 : 2, row_bytes = from.head_dim * value_bytes;
    const std::size_t all = row_bytes | reinterpret_cast<std::uintptr_t>(from.memory) | from.page_bytes | from.offset |
                            from.head_bytes | from.token_stride * value_bytes | reinterpret_cast<std::uintptr_t>(x);
    return by_words(all, [&](auto word) {
        using Word = decltype(word);
        const std::size_t row_words = row_bytes / sizeof(Word), words = n_tokens * from.n_heads * row_words;
        return launch(stream, "kv_collect", grid_of(stream, words), shapes, collect_rows<Word>, from,
                      sequences.pages + sequence * sequences.max_pages, first, static_cast<Word*>(x), words, row_words);
    });
}

DeviceFault kv_transpose(DeviceStream stream, const void* x, std::size_t rows, std::size_t columns,
                         std::size_t item_bytes, void* y) {
    return move(stream, "kv_transpose", x, rows * columns, item_bytes, y, Transposed{rows, columns});
}
DeviceFault kv_gather_heads(DeviceStream stream, const void* x, std::size_t n_tokens, std::size_t n_heads,
                            const std::int32_t* heads, std::size_t n_gathered, std::size_t item_bytes, void* y) {
    return move(stream, "kv_gather_heads", x, n_tokens * n_gathered, item_bytes, y,
                Gathered{n_heads, n_gathered, heads});
}
DeviceFault kv_pairing(DeviceStream stream, const void* x, std::size_t rows, std::size_t head_dim,
                       std::size_t item_bytes, std::size_t n_pairs, RopePairing to, void* y) {
    return move(stream, "kv_pairing", x, rows * head_dim, item_bytes, y,
                Paired{head_dim, n_pairs, to == RopePairing::half_split});
}

}  // namespace

void fill_kv_orders(DeviceOps& ops) {
    ops.kv_transpose = kv_transpose;
    ops.kv_gather_heads = kv_gather_heads;
    ops.kv_pairing = kv_pairing;
    ops.kv_collect = kv_collect;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
