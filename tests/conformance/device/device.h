// The device that a conformance test runs on: HETERO_TEST_DEVICE=cuda: the first GPU, or the test is skipped; else the
// emulated one, in three orders of its threads, one with device memory out of the host's reach, one with work done
// late.
#pragma once
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/emulation.h"
#include "kernels/api/device.h"
#include "support/skip.h"

namespace hetero::test {

inline void check(const kernels::DeviceFault& fault) {
    INFO(fault.message());
    REQUIRE_FALSE(static_cast<bool>(fault));
}

// Device memory with a copy of host values; freed with it.
template <class T>
class DeviceArray {
public:
    DeviceArray(const kernels::DeviceOps& ops, kernels::DeviceStream stream, std::span<const T> values)
        : DeviceArray(ops, stream, values.size()) {
        check(ops.copy(stream, data_, values.data(), values.size_bytes()));
        check(ops.synchronize(stream));
    }
    DeviceArray(const kernels::DeviceOps& ops, kernels::DeviceStream stream, std::size_t n)
        : ops_(&ops), stream_(stream), n_(n) {
        check(ops.allocate(0, n * sizeof(T), &data_));
    }
    ~DeviceArray() {
        if (ops_ != nullptr) static_cast<void>(static_cast<bool>(ops_->free(0, data_)));
    }
    DeviceArray(DeviceArray&& other) noexcept
        : ops_(std::exchange(other.ops_, nullptr)), stream_(other.stream_), n_(other.n_), data_(other.data_) {}
    DeviceArray& operator=(DeviceArray&&) = delete;

    [[nodiscard]] T* get() const { return static_cast<T*>(data_); }
    operator T*() const { return get(); }  // NOLINT(google-explicit-constructor)
    [[nodiscard]] std::vector<T> read() const {
        std::vector<T> values(n_);
        check(ops_->copy(stream_, values.data(), data_, n_ * sizeof(T)));
        check(ops_->synchronize(stream_));
        return values;
    }

private:
    const kernels::DeviceOps* ops_;
    kernels::DeviceStream stream_;
    std::size_t n_;
    void* data_ = nullptr;
};

class Device {
public:
    explicit Device(const kernels::DeviceOps& table) : ops(table) { check(ops.create_stream(0, &stream)); }
    ~Device() { static_cast<void>(static_cast<bool>(ops.destroy_stream(stream))); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    template <class T>
    [[nodiscard]] DeviceArray<T> upload(const std::vector<T>& values) const {
        return DeviceArray<T>(ops, stream, std::span<const T>(values));
    }
    template <class T>
    [[nodiscard]] DeviceArray<T> allocate(std::size_t n) const {
        return DeviceArray<T>(ops, stream, n);
    }

    const kernels::DeviceOps& ops;
    kernels::DeviceStream stream = nullptr;
};

// body(const Device&)
template <class Body>
void on_device(const Body& body) {
    const char* wanted = std::getenv("HETERO_TEST_DEVICE");
    if (wanted != nullptr && std::string_view(wanted) == "cuda") {
        const char* why_not = nullptr;
        const kernels::DeviceOps* ops = kernels::cuda_ops(&why_not);
        if (ops == nullptr) return note_skip(why_not);
        return body(Device(*ops));
    }
    using emulation::Order;
    for (const Order order : {Order::forward, Order::backward, Order::shuffled}) {
        CAPTURE(static_cast<int>(order));
        emulation::Settings settings;
        settings.order = order;
        settings.strict_host = order == Order::backward;
        settings.late = order == Order::shuffled;
        const emulation::Configured configured(settings);
        body(Device(kernels::emulated_ops()));
    }
}

}  // namespace hetero::test
