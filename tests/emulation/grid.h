// Runs a grid: fibers, barriers and warp operations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "emulation.h"

namespace hetero::emulation {

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// What the fiber that runs now sees as threadIdx, blockIdx, blockDim and gridDim.
struct Place {
    Dim3 thread{0, 0, 0}, block{0, 0, 0}, block_dim, grid_dim;
};
extern Place place;

// False where threads of a block wait for each other forever.
bool run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes, Order order, std::uint64_t seed,
              const std::function<void()>& kernel);

void* dynamic_shared();  // of the block that runs
void block_barrier();

// Of the lanes in `mask`, each with an item of its own: the last to come calls `complete` for all, items by lane, then
// they go on. All must name the same mask.
void warp_operation(unsigned mask, void* item, void (*complete)(void* const* items, unsigned mask));
[[nodiscard]] unsigned lane_number();

// Copies to shared memory that the thread does not wait for: nothing but NaN is there until it waits for their group.
void begin_copy(void* to, const void* from, std::size_t bytes, std::size_t zeros);  // the last `zeros` bytes: 0
void end_copy_group();
void wait_for_copies(std::size_t groups_left);  // so many of the last groups may still be under way

// An access that a device would refuse: the launch fails, the rest of the block does not run.
[[noreturn]] void refuse(const char* reason);

}  // namespace hetero::emulation
