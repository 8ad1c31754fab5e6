// Inputs for the conformance tests of kernels: guarded buffers, random numbers that are the same on every machine,
// random blocks of every weight format.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/api/ops.h"

namespace hetero::test {

using kernels::DType;
using kernels::Ops;

// The backends that this CPU runs, the scalar one first.
inline std::vector<const Ops*> runnable_backends() {
    std::vector<const Ops*> list;
    for (const Ops* const* b = kernels::all_backends(); *b; ++b)
        if (kernels::backend_supported(**b)) list.push_back(*b);
    return list;
}
inline const Ops& scalar() { return *kernels::all_backends()[0]; }

// n elements that start `skew` elements after a 64-byte boundary, between guards that show a write outside. (The
// sanitizers do not see masked vector stores.)
template <class T>
class Guarded {
public:
    explicit Guarded(std::size_t n, std::size_t skew = 0)
        : n_(n), bytes_(2 * kGuard + 64 + (n + skew) * sizeof(T), kPattern) {
        auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + kGuard;
        begin_ = (address + 63) / 64 * 64 - reinterpret_cast<std::uintptr_t>(bytes_.data()) + skew * sizeof(T);
        std::fill_n(data(), n, T{});
    }
    T* data() { return reinterpret_cast<T*>(bytes_.data() + begin_); }
    const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + begin_); }
    [[nodiscard]] std::size_t size() const { return n_; }
    T& operator[](std::size_t i) { return data()[i]; }
    const T& operator[](std::size_t i) const { return data()[i]; }
    [[nodiscard]] bool intact() const {
        for (std::size_t i = 0; i < bytes_.size(); ++i)
            if ((i < begin_ || i >= begin_ + n_ * sizeof(T)) && bytes_[i] != kPattern) return false;
        return true;
    }

private:
    static constexpr std::size_t kGuard = 256;
    static constexpr unsigned char kPattern = 0xa5;
    std::size_t n_, begin_ = 0;
    std::vector<unsigned char> bytes_;
};

class Random {  // splitmix64
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t bits() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }
    float normal() {  // sum of 12 uniforms
        double sum = -6;
        for (int i = 0; i < 12; ++i) sum += uniform(0, 1);
        return static_cast<float>(sum);
    }

private:
    std::uint64_t state_;
};

template <class Buffer>
void fill_normal(Buffer& buffer, Random& random, float scale = 1) {
    for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = scale * random.normal();
}

// NaN in what lies between the rows, to show a read beyond a row's end.
template <class Buffer>
void spoil_gaps(Buffer& buffer, std::size_t used, std::size_t stride) {
    for (std::size_t i = 0; i < buffer.size(); ++i)
        if (i % stride >= used) buffer[i] = std::numeric_limits<float>::quiet_NaN();
}

// Signed zeros, subnormals, the largest and smallest numbers, infinities, NaN, ties of rounding.
inline std::vector<float> special_values() {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    return {
        0.0F,           -0.0F,           1.0F,        -1.0F,    0.5F,     -0.5F,  1.5F,     2.5F,       -2.5F,
        126.5F,         127.5F,          -127.5F,     128.0F,   254.5F,   255.5F, 65504.0F, 65519.F,    65520.0F,
        -65520.0F,      6.1e-5F,         5.96e-8F,    2.98e-8F, 2.99e-8F, 1e-40F, -1e-40F,  1.4e-45F,   3.4e38F,
        -3.4e38F,       1.17549435e-38F, 1e-20F,      inf,      -inf,     nan,    -nan,     1.0009766F, 1.00048828125F,
        1.00146484375F, 1.00390625F,     1.01171875F, 88.7F};
}

// Bits equal, or both NaN.
inline bool same(float a, float b) {
    return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

template <class A, class B>
std::size_t count_differing(const A& a, const B& b) {
    REQUIRE(a.size() == b.size());
    std::size_t n = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if constexpr (std::is_same_v<std::decay_t<decltype(a[i])>, float>)
            n += !same(a[i], b[i]);
        else
            n += a[i] != b[i];
    }
    return n;
}

struct WeightType {
    DType type;
    std::vector<std::size_t> half_offsets;  // where a block keeps its f16 scales
};

inline const std::vector<WeightType>& weight_types() {
    static const std::vector<WeightType> types = {
        {DType::f32, {}},        {DType::f16, {}},      {DType::bf16, {}},     {DType::q8_0, {0}},
        {DType::q4_0, {0}},      {DType::q4_1, {0, 2}}, {DType::q5_0, {0}},    {DType::q5_1, {0, 2}},
        {DType::q2_k, {80, 82}}, {DType::q3_k, {108}},  {DType::q4_k, {0, 2}}, {DType::q5_k, {0, 2}},
        {DType::q6_k, {208}},    {DType::iq4_nl, {0}},  {DType::i8, {}},
    };
    return types;
}

// n random weights with scales of about 2^-7; codes, sub-scales and signs are arbitrary.
inline std::vector<std::uint8_t> random_weights(const WeightType& type, std::size_t n, Random& random) {
    const auto& info = kernels::dtype_info(type.type);
    std::vector<std::uint8_t> bytes(kernels::dtype_bytes(type.type, n));
    if (n == 0) return bytes;
    if (info.block_elems == 1 && type.type != DType::i8) {
        std::vector<float> values(n);
        fill_normal(values, random, 0.05F);
        if (type.type == DType::f32) std::memcpy(bytes.data(), values.data(), bytes.size());
        std::vector<std::uint16_t> halves(n);
        if (type.type == DType::f16) scalar().f32_to_f16(values.data(), halves.data(), n);
        if (type.type == DType::bf16) scalar().f32_to_bf16(values.data(), halves.data(), n);
        if (type.type != DType::f32) std::memcpy(bytes.data(), halves.data(), bytes.size());
        return bytes;
    }
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random.bits());
    for (std::size_t block = 0; block < bytes.size(); block += info.block_bytes)
        for (std::size_t offset : type.half_offsets) {
            const auto half = static_cast<std::uint16_t>((random.bits() & 0x83ff) | 8u << 10);
            std::memcpy(bytes.data() + block + offset, &half, sizeof half);
        }
    return bytes;
}

inline std::vector<float> dequantized(DType type, const std::vector<std::uint8_t>& bytes, std::size_t n) {
    std::vector<float> values(n);
    scalar().dequantize(type, bytes.data(), values.data(), n);
    return values;
}

}  // namespace hetero::test
