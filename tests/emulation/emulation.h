// A CUDA device on the CPU, for tests: the sources of kernels/cuda, compiled by the host's compiler against the headers
// of include/, run here. A grid runs block by block, the threads of a block as fibers that pass control at barriers and
// warp operations; streams, events and graphs keep CUDA's order and no more of it than they must. What it cannot show
// are races that need true concurrency, and speed.
//
// Device memory ends at a guard page: an access beyond it crashes the test. New memory holds NaN.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/api/device.h"

namespace hetero::kernels {

// The backend; never null.
[[nodiscard]] const DeviceOps& emulated_ops();

}  // namespace hetero::kernels

namespace hetero::emulation {

// The order in which the threads of a block, and the blocks of a grid, are run. A kernel that lacks a barrier gives
// another result in one of them.
enum class Order : std::uint8_t { forward, backward, shuffled };

struct Settings {
    int devices = 2;
    std::size_t total_bytes = std::size_t{4} << 30;  // of a device; more is refused
    Order order = Order::forward;
    std::uint64_t seed = 1;  // of `shuffled`
    // What is given to a stream runs when something waits for it, not before: a missing wait shows as an old value.
    bool late = false;
    // Device memory cannot be read or written by host code. (Slow: two system calls an allocation and launch.)
    bool strict_host = false;
    int capability = 80;
    // A launch of this kernel, after as many that do not, fails, and the device with it. Empty: none.
    std::string fail_kernel = {};
    std::uint64_t fail_after = 0;
};

// Takes effect for what comes after; streams must be idle. Used by one thread at a time.
void configure(const Settings& settings);
[[nodiscard]] const Settings& settings();

// configure() for a scope.
class Configured {
public:
    explicit Configured(const Settings& wanted) : before_(settings()) { configure(wanted); }
    ~Configured() { configure(before_); }
    Configured(const Configured&) = delete;
    Configured& operator=(const Configured&) = delete;

private:
    Settings before_;
};

struct Usage {
    std::size_t bytes = 0, peak_bytes = 0;  // of all devices
    std::size_t allocations = 0;            // that are not freed
    std::size_t launches = 0;               // kernels run
    std::size_t graph_launches = 0;
    std::size_t locked_bytes = 0;     // of the host's memory
    std::size_t unchosen_calls = 0;   // by threads that had chosen no device: CUDA opens the first one
    std::size_t attribute_calls = 0;  // cudaFuncSetAttribute
    std::size_t pageable_copies = 0;  // given to a stream; CUDA makes the caller wait for each
};
[[nodiscard]] Usage usage();

// The call `after` allocations from now fails as if memory were short; < 0: none.
void fail_allocation(int after);

}  // namespace hetero::emulation
