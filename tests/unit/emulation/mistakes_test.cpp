// Kernels and callers with mistakes, and that each shows.
#include <cuda_pipeline.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <vector>

#include "emulation/emulation.h"
#include "kernels/cuda/launch.h"

using namespace hetero::kernels;
using hetero::emulation::Configured;
using hetero::emulation::Order;
using hetero::emulation::Settings;
using hetero::kernels::emulated::launch;

namespace {

const DeviceOps& device() { return emulated_ops(); }

void check(const DeviceFault& fault) {
    INFO(fault.message());
    REQUIRE_FALSE(static_cast<bool>(fault));
}

struct OwnStream {
    OwnStream() { check(device().create_stream(0, &stream)); }
    ~OwnStream() { static_cast<void>(static_cast<bool>(device().destroy_stream(stream))); }
    operator DeviceStream() const { return stream; }  // NOLINT(google-explicit-constructor)
    DeviceStream stream = nullptr;
};

struct Floats {
    explicit Floats(std::size_t count) : n(count) { check(device().allocate(0, n * sizeof(float), &memory)); }
    ~Floats() { static_cast<void>(static_cast<bool>(device().free(0, memory))); }
    [[nodiscard]] float* get() const { return static_cast<float*>(memory); }
    std::vector<float> read(DeviceStream stream) const {
        std::vector<float> values(n);
        check(device().copy(stream, values.data(), memory, n * sizeof(float)));
        check(device().synchronize(stream));
        return values;
    }
    std::size_t n;
    void* memory = nullptr;
};

// The signal that ends a child that runs `body`, 0 where it ends by itself.
template <class Body>
int signal_of(const Body& body) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        for (const int one : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(one, SIG_DFL);
        if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
        body();
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    // A sanitizer ends the program itself.
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) == 0 ? 0 : SIGSEGV;
}

// Each thread reads what its neighbour wrote.
__global__ void shift(float* y, bool wait) {
    __shared__ float row[64];
    row[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (wait) __syncthreads();
    y[threadIdx.x] = row[(threadIdx.x + 1) % 64];
    if (wait) __syncthreads();
    row[threadIdx.x] = -1;  // for the next run
}

bool shifts(Order order, bool wait) {
    Settings settings;
    settings.order = order;
    const Configured configured(settings);
    const OwnStream stream;
    const Floats y(64);
    bool right = true;
    for (int run = 0; run < 2; ++run) {
        check(launch(stream, "shift", {{1, 1, 1}, {64, 1, 1}}, {}, shift, y.get(), wait));
        const std::vector<float> values = y.read(stream);
        for (std::size_t i = 0; i < 64; ++i) right = right && values[i] == static_cast<float>((i + 1) % 64);
    }
    return right;
}

// Each thread reads what its neighbour has copied.
__global__ void shift_copies(const float* x, float* y, bool wait, std::size_t groups_left) {
    __shared__ __align__(16) float row[2][64];
    __pipeline_memcpy_async(&row[0][threadIdx.x], x + threadIdx.x, 4);
    __pipeline_commit();
    __pipeline_memcpy_async(&row[1][threadIdx.x], x + threadIdx.x, 4, 4);  // zeros
    __pipeline_commit();
    if (wait) __pipeline_wait_prior(groups_left);
    __syncthreads();
    const unsigned from = (threadIdx.x + 1) % 64;
    y[threadIdx.x] = row[0][from];
    y[64 + threadIdx.x] = row[1][from];
    __syncthreads();
}

__global__ void copy_unaligned(const float* x) {
    __shared__ __align__(16) float row[8];
    __pipeline_memcpy_async(row, x + 1, 16);
}

__global__ void write_at(float* y, std::ptrdiff_t index) { y[index] = 1; }

__global__ void wait_apart() { threadIdx.x < 16 ? __syncwarp() : __syncthreads(); }

__global__ void half_a_warp(unsigned mask) {
    if (threadIdx.x < 16) __syncwarp(mask);
}

}  // namespace

TEST_CASE("a missing barrier shows in some order of the threads") {
    for (const Order order : {Order::forward, Order::backward, Order::shuffled}) CHECK(shifts(order, true));
    int wrong = 0;
    for (const Order order : {Order::forward, Order::backward, Order::shuffled}) wrong += !shifts(order, false);
    CHECK(wrong > 0);
}

TEST_CASE("copies are there when they were waited for, and not before") {
    for (const Order order : {Order::forward, Order::backward, Order::shuffled}) {
        Settings settings;
        settings.order = order;
        const Configured configured(settings);
        const OwnStream stream;
        const Floats x(64), y(128);
        check(device().fill(stream, x.get(), 0x3F, 256));  // a number
        const auto arrived = [&](bool wait, std::size_t groups_left) {
            check(launch(stream, "shift_copies", {{1, 1, 1}, {64, 1, 1}}, {}, shift_copies, x.get(), y.get(), wait,
                         groups_left));
            const std::vector<float> values = y.read(stream);
            int rows = 0;
            for (const std::size_t row : {0, 1}) {
                const float wanted = row == 0 ? x.read(stream)[0] : 0;
                const auto begin = values.begin() + static_cast<std::ptrdiff_t>(64 * row);
                const auto right = std::count(begin, begin + 64, wanted);
                const auto absent = std::count_if(begin, begin + 64, [](float value) { return value != value; });
                CHECK(right + absent == 64);
                CHECK((right == 64 || absent == 64));
                rows += right == 64;
            }
            return rows;
        };
        CHECK(arrived(true, 0) == 2);
        CHECK(arrived(true, 1) == 1);
        CHECK(arrived(true, 2) == 0);
        CHECK(arrived(false, 0) == 0);
    }
}

TEST_CASE("an asynchronous copy from an address that is no multiple of its size is a fault") {
    CHECK(signal_of([] {
              const OwnStream stream;
              const Floats x(64);
              const DeviceFault fault = launch(stream, "copy", {{1, 1, 1}, {1, 1, 1}}, {}, copy_unaligned, x.get());
              _exit(fault.code == 719 ? 3 : 0);  // cudaErrorLaunchFailure
          }) != 0);
}

TEST_CASE("an access beyond an allocation ends the program") {
    for (const std::size_t n : {std::size_t{64}, std::size_t{100}, std::size_t{4096}}) {
        const auto write = [n](std::ptrdiff_t index) {
            return signal_of([n, index] {
                const OwnStream stream;
                const Floats y(n);
                check(launch(stream, "write", {{1, 1, 1}, {1, 1, 1}}, {}, write_at, y.get(), index));
                const Floats other(1);  // its release looks at what lies beside the allocations
            });
        };
        CHECK(write(0) == 0);
        CHECK(write(static_cast<std::ptrdiff_t>(n)) != 0);
        CHECK(write(static_cast<std::ptrdiff_t>(n) + 2000) != 0);
        CHECK(write(-1) != 0);
    }
}

TEST_CASE("the host cannot read device memory where it must not") {
    const auto read = [](bool strict) {
        return signal_of([strict] {
            Settings settings;
            settings.strict_host = strict;
            const Configured configured(settings);
            const OwnStream stream;
            const Floats y(64);
            check(device().fill(stream, y.get(), 0, 256));
            check(device().synchronize(stream));
            const volatile float value = *static_cast<const volatile float*>(y.get());
            if (value != 0) _exit(2);
        });
    };
    CHECK(read(false) == 0);
    CHECK(read(true) != 0);
}

TEST_CASE("threads that wait for each other are a fault, and every call after it") {
    const auto status_of = [](auto&& body) {
        return signal_of([&] {
            const OwnStream stream;
            const DeviceFault fault = body(stream);
            const bool after = static_cast<bool>(device().synchronize(stream));
            _exit(fault.code == 719 && after ? 3 : 0);  // cudaErrorLaunchFailure
        });
    };
    CHECK(status_of([](const OwnStream& stream) {
              return launch(stream, "apart", {{1, 1, 1}, {64, 1, 1}}, {}, wait_apart);
          }) != 0);
    CHECK(status_of([](const OwnStream& stream) {
              return launch(stream, "half", {{1, 1, 1}, {32, 1, 1}}, {}, half_a_warp, 0xFFFFFFFFU);
          }) != 0);
    CHECK(status_of([](const OwnStream& stream) {
              return launch(stream, "half", {{1, 1, 1}, {32, 1, 1}}, {}, half_a_warp, 0xFFFFU);
          }) == 0);
}

TEST_CASE("late streams show a wait that is missing") {
    for (const bool waits : {true, false}) {
        Settings settings;
        settings.late = true;
        const Configured configured(settings);
        const OwnStream first, second;
        DeviceEvent event = nullptr;
        check(device().create_event(0, DeviceEventUse::order, &event));
        const Floats x(4);
        check(device().fill(first, x.get(), 0, 16));
        check(device().synchronize(first));
        check(launch(first, "write", {{1, 1, 1}, {1, 1, 1}}, {}, write_at, x.get(), std::ptrdiff_t{2}));
        check(device().record(event, first));
        if (waits) check(device().wait(second, event));
        CHECK((x.read(second)[2] == 1) == waits);
        check(device().synchronize(first));
        check(device().destroy_event(event));
    }
}

TEST_CASE("memory is refused beyond the device's size, or when a test says so") {
    Settings settings;
    settings.total_bytes = 1 << 20;
    const Configured configured(settings);
    void* memory = nullptr;
    CHECK(device().allocate(0, (1 << 20) + 1, &memory).kind == DeviceFault::Kind::no_memory);
    {
        const Floats half(1 << 17);
        CHECK(device().allocate(0, (1 << 19) + 1, &memory).kind == DeviceFault::Kind::no_memory);
        CHECK_FALSE(static_cast<bool>(device().allocate(1, 1 << 19, &memory)));  // another device
        check(device().free(1, memory));
    }
    hetero::emulation::fail_allocation(1);
    check(device().allocate(0, 16, &memory));
    check(device().free(0, memory));
    CHECK(device().allocate(0, 16, &memory).kind == DeviceFault::Kind::no_memory);
    CHECK(hetero::emulation::usage().bytes == 0);
}

TEST_CASE("a kernel asks for more shared memory than all have, once for a size") {
    const OwnStream stream;
    const auto asks = [&](std::size_t kib) {
        const std::size_t before = hetero::emulation::usage().attribute_calls;
        const Floats x(4);
        check(launch(stream, "write", {{1, 1, 1}, {1, 1, 1}, kib << 10}, {}, write_at, x.get(), std::ptrdiff_t{2}));
        check(device().synchronize(stream));
        return hetero::emulation::usage().attribute_calls - before;
    };
    CHECK(asks(48) == 0);
    CHECK(asks(60) == 1);
    CHECK(asks(60) == 0);
    CHECK(asks(50) == 0);
    CHECK(asks(90) == 1);
    const Floats x(4);
    CHECK(static_cast<bool>(
        launch(stream, "write", {{1, 1, 1}, {1, 1, 1}, 100 << 10}, {}, write_at, x.get(), std::ptrdiff_t{2})));
}
