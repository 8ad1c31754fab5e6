#include "grid.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifdef __x86_64__
// Saves the registers that a call preserves on the stack, the stack pointer in *from, and goes on where `to` was saved.
extern "C" void hetero_emulation_switch(void** from, void* to);
#endif

namespace hetero::emulation {

Place place;

namespace {

constexpr std::size_t stack_bytes = 128 << 10, page = 4096, max_threads = 1024;

#ifdef __x86_64__
asm(R"(
.text
.globl hetero_emulation_switch
.hidden hetero_emulation_switch
.type hetero_emulation_switch, @function
hetero_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size hetero_emulation_switch, . - hetero_emulation_switch
)");
using Context = void*;
void switch_to(Context& from, Context& to) { hetero_emulation_switch(&from, to); }
void prepare(Context& context, std::byte* stack, void (*entry)()) {
    // Six registers, then the address to return to; on entry of a function the stack is 8 beyond a multiple of 16.
    auto** top = reinterpret_cast<void**>(stack + stack_bytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    top -= 6;
    std::memset(top, 0, 6 * sizeof(void*));
    context = static_cast<void*>(top);
}
#else
using Context = ucontext_t;
void switch_to(Context& from, Context& to) { swapcontext(&from, &to); }
void prepare(Context& context, std::byte* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = stack_bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#endif

enum class State : std::uint8_t { fresh, ready, at_barrier, in_warp, done };

struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes, zeros, group;
};

struct Fiber {
    State state = State::fresh;
    Context context{};
    std::byte* stack = nullptr;
    Dim3 thread;
    std::vector<Copy> copies;     // under way
    std::size_t copy_groups = 0;  // that were ended
#ifdef __SANITIZE_ADDRESS__
    void* fake_stack = nullptr;
#endif
};

struct Warp {
    unsigned mask = 0, arrived = 0;
    void* items[32] = {};
};

struct Stacks {
    std::byte* memory = nullptr;
    std::vector<std::byte*> free;  // the last is taken next: it is still in a cache

    std::byte* take() {
        if (memory == nullptr) {
            constexpr std::size_t step = stack_bytes + page;  // each above a page that cannot be touched
            memory = static_cast<std::byte*>(mmap(nullptr, max_threads * step, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
            if (memory == MAP_FAILED) std::abort();
            for (std::size_t i = max_threads; i-- > 0;) {
                mprotect(memory + i * step, page, PROT_NONE);
                free.push_back(memory + i * step + page);
            }
        }
        std::byte* stack = free.back();
        free.pop_back();
        return stack;
    }
};

struct Runner {
    const std::function<void()>* kernel = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<unsigned> order;  // of threads, warp by warp
    Stacks stacks;
    std::vector<std::byte> shared;
    std::byte* shared_begin = nullptr;
    std::size_t live = 0, waiting = 0;
    std::size_t place_in_order = 0, warp_end = 0;  // of the thread that runs, and where its warp ends there
    Fiber* current = nullptr;
    Context scheduler{};
    bool refused = false;
#ifdef __SANITIZE_ADDRESS__
    const void* scheduler_stack = nullptr;
    std::size_t scheduler_bytes = 0;
#endif
};
Runner runner;

void run_thread();

// Makes it the thread that runs; the switch is the caller's.
void enter(Fiber& fiber) {
    if (fiber.state == State::fresh) {
        fiber.stack = runner.stacks.take();
        prepare(fiber.context, fiber.stack, run_thread);
    }
    fiber.state = State::ready;
    place.thread = fiber.thread;
    runner.current = &fiber;
}

bool can_run(const Fiber& fiber) { return fiber.state == State::fresh || fiber.state == State::ready; }

// The next thread of the warp that can run, in its order; null: none is left of this round.
Fiber* next_of_warp() {
    while (++runner.place_in_order < runner.warp_end) {
        Fiber& fiber = runner.fibers[runner.order[runner.place_in_order]];
        if (can_run(fiber)) return &fiber;
    }
    return nullptr;
}

// On to the next thread, or to the scheduler. A thread that is done has to go there: its stack is in use up to then.
void leave(State state) {
    Fiber& fiber = *runner.current;
    fiber.state = state;
    Fiber* next = state == State::done || runner.refused ? nullptr : next_of_warp();
    if (next != nullptr) enter(*next);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(state == State::done ? nullptr : &fiber.fake_stack,
                                   next != nullptr ? next->stack : runner.scheduler_stack,
                                   next != nullptr ? stack_bytes : runner.scheduler_bytes);
#endif
    switch_to(fiber.context, next != nullptr ? next->context : runner.scheduler);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
#endif
}

void run_thread() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    (*runner.kernel)();
    leave(State::done);
}

// From the scheduler; comes back when a thread is done, or no other of its warp can run.
void resume(Fiber& fiber) {
    enter(fiber);
#ifdef __SANITIZE_ADDRESS__
    void* own = nullptr;
    __sanitizer_start_switch_fiber(&own, fiber.stack, stack_bytes);
#endif
    switch_to(runner.scheduler, fiber.context);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(own, nullptr, nullptr);
#endif
    Fiber& last = *runner.current;
    if (last.state == State::done) {
        runner.stacks.free.push_back(last.stack);
        last.stack = nullptr;
        --runner.live;
    }
}

void abandon() {
    for (Fiber& fiber : runner.fibers) {
        if (fiber.stack == nullptr) continue;
#ifdef __SANITIZE_ADDRESS__
        __asan_unpoison_memory_region(fiber.stack, stack_bytes);
#endif
        runner.stacks.free.push_back(fiber.stack);
        fiber.stack = nullptr;
    }
}

// Each warp runs as far as it comes without the others.
bool run_block() {
    const std::size_t n = runner.fibers.size();
    for (Fiber& fiber : runner.fibers) {
        fiber.state = State::fresh;
        fiber.copies.clear();
        fiber.copy_groups = 0;
    }
    for (Warp& warp : runner.warps) warp = {};
    std::fill(runner.shared.begin(), runner.shared.end(), std::byte{0xFF});
    runner.live = n;
    runner.waiting = 0;
    while (runner.live > 0) {
        bool progress = false;
        for (std::size_t first = 0; first < n;) {
            std::size_t end = first + 1;
            const unsigned warp = runner.order[first] / 32;
            while (end < n && runner.order[end] / 32 == warp) ++end;
            runner.warp_end = end;
            for (bool again = true; again;) {
                again = false;
                for (runner.place_in_order = first; runner.place_in_order < end; ++runner.place_in_order) {
                    Fiber& fiber = runner.fibers[runner.order[runner.place_in_order]];
                    if (!can_run(fiber)) continue;
                    resume(fiber);
                    if (runner.refused) return false;
                    again = progress = true;
                }
            }
            first = end;
        }
        if (runner.live > 0 && runner.waiting == runner.live) {
            runner.waiting = 0;
            for (Fiber& fiber : runner.fibers)
                if (fiber.state == State::at_barrier) fiber.state = State::ready;
        } else if (!progress) {
            std::fprintf(stderr, "emulation: block %u,%u,%u: %zu threads, %zu of them at a barrier, wait forever\n",
                         place.block.x, place.block.y, place.block.z, runner.live, runner.waiting);
            return false;
        }
    }
    return true;
}

}  // namespace

bool run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes, Order order, std::uint64_t seed,
              const std::function<void()>& kernel) {
#ifdef __SANITIZE_ADDRESS__
    pthread_attr_t attributes;
    void* stack = nullptr;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return false;
    pthread_attr_getstack(&attributes, &stack, &runner.scheduler_bytes);
    pthread_attr_destroy(&attributes);
    runner.scheduler_stack = stack;
#endif
    const unsigned n = block.x * block.y * block.z;
    runner.kernel = &kernel;
    runner.refused = false;
    runner.fibers.resize(n);
    runner.warps.resize((n + 31) / 32);
    for (unsigned i = 0; i < n; ++i)
        runner.fibers[i].thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    runner.shared.resize(shared_bytes + 256);
    const auto address = reinterpret_cast<std::uintptr_t>(runner.shared.data());
    runner.shared_begin = runner.shared.data() + (256 - address % 256) % 256;

    runner.order.resize(n);
    std::iota(runner.order.begin(), runner.order.end(), 0U);
    if (order == Order::backward) std::reverse(runner.order.begin(), runner.order.end());
    std::minstd_rand random(static_cast<std::uint32_t>(seed));
    if (order == Order::shuffled) {  // warps among each other, and the lanes of each
        std::vector<unsigned> warps(runner.warps.size());
        std::iota(warps.begin(), warps.end(), 0U);
        std::shuffle(warps.begin(), warps.end(), random);
        auto to = runner.order.begin();
        for (const unsigned warp : warps) {
            const auto begin = to;
            for (unsigned lane = 32 * warp; lane < std::min(n, 32 * warp + 32); ++lane) *to++ = lane;
            std::shuffle(begin, to, random);
        }
    }

    place.grid_dim = grid;
    place.block_dim = block;
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    std::vector<std::uint64_t> block_order;
    if (order == Order::shuffled) {
        block_order.resize(blocks);
        std::iota(block_order.begin(), block_order.end(), std::uint64_t{0});
        std::shuffle(block_order.begin(), block_order.end(), random);
    }
    for (std::uint64_t i = 0; i < blocks; ++i) {
        std::uint64_t at = order == Order::backward ? blocks - 1 - i : i;
        if (order == Order::shuffled) at = block_order[i];
        place.block = {static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                       static_cast<unsigned>(at / grid.x / grid.y)};
        if (!run_block()) {
            abandon();
            return false;
        }
    }
    return true;
}

void* dynamic_shared() { return runner.shared_begin; }

void block_barrier() {
    ++runner.waiting;
    leave(State::at_barrier);
}

unsigned lane_number() { return static_cast<unsigned>(runner.current - runner.fibers.data()) % 32; }

void warp_operation(unsigned mask, void* item, void (*complete)(void* const*, unsigned)) {
    const auto thread = static_cast<std::size_t>(runner.current - runner.fibers.data());
    const unsigned lane = thread % 32, first = static_cast<unsigned>(thread - lane);
    Warp& warp = runner.warps[thread / 32];
    if ((mask >> lane & 1U) == 0) refuse("a lane is not in the mask it names");
    // Lanes beyond the block's end are in no mask's way.
    const std::size_t lanes = std::min<std::size_t>(32, runner.fibers.size() - first);
    if (lanes < 32) mask &= (1U << lanes) - 1;
    if (warp.arrived != 0 && warp.mask != mask) refuse("lanes of a warp name unlike masks");
    warp.mask = mask;
    warp.arrived |= 1U << lane;
    warp.items[lane] = item;
    if (warp.arrived != mask) return leave(State::in_warp);
    warp.arrived = 0;
    if (complete != nullptr) complete(warp.items, mask);
    for (unsigned other = 0; other < 32; ++other)
        if ((mask >> other & 1U) != 0 && other != lane) runner.fibers[first + other].state = State::ready;
}

void begin_copy(void* to, const void* from, std::size_t bytes, std::size_t zeros) {
    const auto is_aligned = [bytes](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; };
    if (bytes != 4 && bytes != 8 && bytes != 16) refuse("an asynchronous copy is not of 4, 8 or 16 bytes");
    if (!is_aligned(to) || !is_aligned(from)) refuse("an asynchronous copy is not aligned to its size");
    if (zeros > bytes) refuse("an asynchronous copy has more zeros than bytes");
    std::memset(to, 0xFF, bytes);
    Fiber& fiber = *runner.current;
    fiber.copies.push_back(
        {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, zeros, fiber.copy_groups});
}

void end_copy_group() { ++runner.current->copy_groups; }

void wait_for_copies(std::size_t groups_left) {
    Fiber& fiber = *runner.current;
    std::erase_if(fiber.copies, [&](const Copy& copy) {
        if (copy.group + groups_left >= fiber.copy_groups) return false;
        std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
        std::memset(copy.to + copy.bytes - copy.zeros, 0, copy.zeros);
        return true;
    });
}

void refuse(const char* reason) {
    std::fprintf(stderr, "emulation: block %u,%u,%u thread %u,%u,%u: %s\n", place.block.x, place.block.y, place.block.z,
                 place.thread.x, place.thread.y, place.thread.z, reason);
    runner.refused = true;
    leave(State::in_warp);
    std::abort();  // nobody goes on
}

}  // namespace hetero::emulation
