// Memory, streams, events and graphs, and that a fault says what it was.
#include <cstring>
#include <numeric>

#include "conformance/kernels/inputs.h"
#include "device.h"

using namespace hetero::kernels;
using namespace hetero::test;

TEST_CASE("a device says what it is, and its memory is counted") {
    on_device([](const Device& device) {
        REQUIRE(device.ops.device_count() >= 1);
        DeviceInfo before, during;
        check(device.ops.device_info(0, before));
        CHECK_FALSE(before.name.empty());
        CHECK(before.major >= 8);
        CHECK(before.multiprocessors > 0);
        CHECK(before.free_bytes <= before.total_bytes);
        {
            const auto memory = device.allocate<std::uint8_t>(std::size_t{64} << 20);
            CHECK(reinterpret_cast<std::uintptr_t>(memory.get()) % 256 == 0);
            check(device.ops.device_info(0, during));
        }
        CHECK(before.free_bytes - during.free_bytes >= std::size_t{64} << 20);
        DeviceInfo other;
        const DeviceFault fault = device.ops.device_info(999, other);
        CHECK(fault.kind == DeviceFault::Kind::failed);
        CHECK(fault.device == 999);
        CHECK(fault.message().find("invalid device ordinal (101)") != std::string::npos);
    });
}

TEST_CASE("memory that is not there is refused, and nothing is lost") {
    on_device([](const Device& device) {
        void* memory = nullptr;
        const DeviceFault fault = device.ops.allocate(0, std::size_t{1} << 50, &memory);
        CHECK(fault.kind == DeviceFault::Kind::no_memory);
        CHECK(memory == nullptr);
        CHECK(fault.message() == "cuda:0: cudaMalloc: out of memory (2) [bytes 1125899906842624]");
        const auto small = device.upload(std::vector<float>{1, 2, 3});
        CHECK(small.read() == std::vector<float>{1, 2, 3});
    });
}

TEST_CASE("copies in one and two dimensions, and fills") {
    on_device([](const Device& device) {
        std::vector<std::uint8_t> host(120);
        std::iota(host.begin(), host.end(), std::uint8_t{0});
        const auto from = device.upload(host);
        const auto to = device.allocate<std::uint8_t>(60);
        check(device.ops.fill(device.stream, to.get(), 0xAB, 60));
        check(device.ops.copy_2d(device.stream, to + 3, 20, from + 2, 30, 7, 3));
        std::vector<std::uint8_t> expected(60, 0xAB);
        for (std::size_t row = 0; row < 3; ++row)
            for (std::size_t i = 0; i < 7; ++i) expected[3 + 20 * row + i] = host[2 + 30 * row + i];
        CHECK(to.read() == expected);
        void* pinned = nullptr;
        check(device.ops.allocate_host(0, 40, &pinned));
        check(device.ops.copy(device.stream, pinned, from.get(), 40));
        check(device.ops.synchronize(device.stream));
        CHECK(std::memcmp(pinned, host.data(), 40) == 0);
        check(device.ops.free_host(0, pinned));
        check(device.ops.register_host(0, host.data(), host.size()));
        check(device.ops.copy(device.stream, host.data(), to.get(), 60));
        check(device.ops.synchronize(device.stream));
        check(device.ops.unregister_host(0, host.data()));
        CHECK(std::equal(expected.begin(), expected.end(), host.begin()));
    });
}

TEST_CASE("a launch that cannot be names the kernel, the device and the shapes") {
    on_device([](const Device& device) {
        const auto memory = device.allocate<float>(16);
        // The block's shared memory has a row of the head in it.
        const DeviceFault fault = device.ops.rope(device.stream, {memory, 16, 16}, {memory, 16, 16}, 1, 1, 1 << 20,
                                                  memory, memory, 2, RopePairing::half_split);
        CHECK(fault.kind == DeviceFault::Kind::failed);
        CHECK(fault.where == "rope");
        CHECK(fault.device == 0);
        CHECK(fault.shapes.find("tokens 1, heads 1, head_dim 1048576, pairs 2, grid 1x1x1, block 64x1x1") == 0);
        const auto after = device.upload(std::vector<float>{5});
        CHECK(after.read()[0] == 5);
    });
}

namespace {

struct TwoStreams {
    explicit TwoStreams(const Device& device, DeviceEventUse use = DeviceEventUse::order) : ops(device.ops) {
        check(ops.create_stream(0, &side));
        check(ops.create_event(0, use, &forked));
        check(ops.create_event(0, use, &joined));
    }
    ~TwoStreams() {
        check(ops.destroy_event(forked));
        check(ops.destroy_event(joined));
        check(ops.destroy_stream(side));
    }
    const DeviceOps& ops;
    DeviceStream side = nullptr;
    DeviceEvent forked = nullptr, joined = nullptr;
};

}  // namespace

TEST_CASE("a stream that waits for another sees what it did") {
    on_device([](const Device& device) {
        TwoStreams two(device, DeviceEventUse::time);
        const std::size_t n = 1000;
        const auto x = device.upload(std::vector<float>(n, 1)), y = device.upload(std::vector<float>(n, 2));
        check(device.ops.scale(device.stream, x, n, 1, n, 3));
        check(device.ops.record(two.forked, device.stream));
        check(device.ops.wait(two.side, two.forked));
        check(device.ops.add(two.side, x, n, y, n, 1, n));
        check(device.ops.record(two.joined, two.side));
        check(device.ops.wait(device.stream, two.joined));
        check(device.ops.scale(device.stream, y, n, 1, n, 2));
        CHECK(y.read() == std::vector<float>(n, 10));
        check(device.ops.synchronize_event(two.joined));
        float ms = -1;
        check(device.ops.elapsed_ms(two.forked, two.joined, &ms));
        CHECK(ms >= 0);
    });
}

TEST_CASE("an event that is for order alone has no time") {
    on_device([](const Device& device) {
        TwoStreams two(device);
        for (const DeviceEvent event : {two.forked, two.joined}) check(device.ops.record(event, device.stream));
        check(device.ops.synchronize(device.stream));
        float ms = -1;
        CHECK(device.ops.elapsed_ms(two.forked, two.joined, &ms).message().find("cudaEventElapsedTime") !=
              std::string::npos);
    });
}

TEST_CASE("a graph computes with what its memory holds when it is launched, over two streams") {
    on_device([](const Device& device) {
        TwoStreams two(device);
        const std::size_t n = 100;
        const auto x = device.upload(std::vector<float>(n, 1)), y = device.upload(std::vector<float>(n, 0)),
                   z = device.upload(std::vector<float>(n, 0));
        check(device.ops.begin_capture(device.stream));
        check(device.ops.scale(device.stream, x, n, 1, n, 2));
        check(device.ops.record(two.forked, device.stream));
        check(device.ops.wait(two.side, two.forked));
        check(device.ops.add(two.side, x, n, y, n, 1, n));
        check(device.ops.record(two.joined, two.side));
        check(device.ops.wait(device.stream, two.joined));
        check(device.ops.copy(device.stream, z.get(), y.get(), n * sizeof(float)));
        DeviceGraph graph = nullptr;
        check(device.ops.end_capture(device.stream, &graph));
        CHECK(y.read() == std::vector<float>(n, 0));  // recorded, not run
        check(device.ops.launch_graph(graph, device.stream));
        check(device.ops.launch_graph(graph, device.stream));
        CHECK(z.read() == std::vector<float>(n, 2 + 4));
        const std::vector<float> fresh(n, 10);
        check(device.ops.copy(device.stream, x.get(), fresh.data(), n * sizeof(float)));
        check(device.ops.launch_graph(graph, device.stream));
        CHECK(z.read() == std::vector<float>(n, 6 + 20));
        check(device.ops.destroy_graph(graph));
    });
}

TEST_CASE("a capture that another stream did not come back from is refused") {
    on_device([](const Device& device) {
        TwoStreams two(device);
        const auto x = device.upload(std::vector<float>(8, 1));
        check(device.ops.begin_capture(device.stream));
        check(device.ops.record(two.forked, device.stream));
        check(device.ops.wait(two.side, two.forked));
        check(device.ops.scale(two.side, x, 8, 1, 8, 2));
        DeviceGraph graph = nullptr;
        const DeviceFault fault = device.ops.end_capture(device.stream, &graph);
        CHECK(fault.code == 904);  // cudaErrorStreamCaptureUnjoined
        CHECK(graph == nullptr);
        check(device.ops.scale(device.stream, x, 8, 1, 8, 2));
        CHECK(x.read()[0] == 2);
    });
}
