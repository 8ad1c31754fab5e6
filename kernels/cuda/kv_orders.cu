// K and V of a state to other orders.
#include <algorithm>

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

template <class From>
DeviceFault move(DeviceStream stream, const char* name, const void* x, std::size_t items, std::size_t item_bytes,
                 void* y, const From& from) {
    const Shapes shapes = {{"items", items}, {"item_bytes", item_bytes}};
    const auto as = [&](auto word) {
        using Word = decltype(word);
        const std::size_t item_words = item_bytes / sizeof(Word), words = items * item_words;
        const std::size_t most_blocks = static_cast<std::size_t>(of(stream).multiprocessors) * 32;
        const Grid grid{dim3(static_cast<unsigned>(std::min<std::size_t>(blocks_for(words, threads), most_blocks))),
                        dim3(threads)};
        return launch(stream, name, grid, shapes, move_items<Word, From>, static_cast<const Word*>(x),
                      static_cast<Word*>(y), words, item_words, from);
    };
    const std::size_t all = item_bytes | reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y);
    if (all % sizeof(uint4) == 0) return as(uint4{});
    if (all % sizeof(unsigned) == 0) return as(0U);
    if (all % sizeof(std::uint16_t) == 0) return as(std::uint16_t{});
    return as(std::uint8_t{});
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
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
