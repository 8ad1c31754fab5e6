// The shape of AMX tile registers: all eight as large as they can be. Included after vec_avx512.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

HETERO_INLINE void load_config(const TileConfig& config) {
    asm volatile("" ::"r"(&config) : "memory");  // the intrinsic reads more than it tells the compiler
    _tile_loadconfig(&config);
}

// Tile registers are this thread's while one lives.
struct WholeTiles {
    WholeTiles() {
        TileConfig config;
        for (int tile = 0; tile < 8; ++tile) {
            config.rows[tile] = 16;
            config.row_bytes[tile] = 64;
        }
        load_config(config);
    }
    WholeTiles(const WholeTiles&) = delete;
    WholeTiles& operator=(const WholeTiles&) = delete;
    ~WholeTiles() { _tile_release(); }
};

// What vector code wrote before is in memory for tile loads after it, and the reverse: the tile intrinsics do not tell
// the compiler what they read and write.
HETERO_INLINE void memory_fence_for_tiles() { asm volatile("" ::: "memory"); }

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
