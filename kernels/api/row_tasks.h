// How the tokens and the rows of a product are divided among threads: what the engine does, and hw-probe measures.
#pragma once
#include <algorithm>
#include <cstddef>

#include "kernels/api/packed.h"
#include "kernels/api/tiles.h"

namespace hetero::kernels {

enum class RowProduct { tiles, packed, unpacked };  // TileOps::gemm, Ops::packed_gemm, Ops::gemm and gemv

// At least 1.
[[nodiscard]] constexpr std::size_t rows_per_task(std::size_t rows, std::size_t threads, RowProduct how) noexcept {
    const auto round_up = [](std::size_t n, std::size_t granule) { return (n + granule - 1) / granule * granule; };
    if (how == RowProduct::tiles) {  // few enough to lie expanded in a cache, and enough to be worth it
        constexpr std::size_t tasks_per_thread = 3, tile = tile_tokens;
        return std::clamp(round_up(rows / (threads * tasks_per_thread), tile), 2 * tile, 6 * tile);
    }
    if (threads == 1) return std::max<std::size_t>(rows, 1);
    // So that a delayed thread does not hold up the others for long; of weights as they are, each task lays out its
    // tokens.
    const std::size_t tasks_per_thread = how == RowProduct::packed ? 4 : 2;
    return std::max(packed_rows, round_up(rows / (threads * tasks_per_thread), packed_rows));
}

// At least 1. Where there are many, each thread has its own, of which it reads what it has written itself; the weights
// are read by all.
[[nodiscard]] constexpr std::size_t tokens_per_task(std::size_t n_tokens, std::size_t threads,
                                                    RowProduct how) noexcept {
    constexpr std::size_t tokens_of_thread = 128;  // that are worth it
    const std::size_t parts =
        how == RowProduct::packed ? std::clamp<std::size_t>(n_tokens / tokens_of_thread, 1, threads) : 1;
    const std::size_t tiles = (n_tokens + activation_tile - 1) / activation_tile;
    return std::max<std::size_t>((tiles + parts - 1) / parts, 1) * activation_tile;
}

}  // namespace hetero::kernels
