// Blocks of the KV state for the conformance tests.
#pragma once
#include "conformance/kernels/inputs.h"

namespace hetero::test {

using kernels::KvOutput;
using kernels::KvValues;

inline constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

inline std::size_t bytes_of(DType type) { return type == DType::f32 ? 4 : 2; }

// To twice the widest vector of any backend, then some beyond.
inline std::vector<std::size_t> lengths() {
    std::vector<std::size_t> out;
    for (std::size_t n = 1; n <= 130; n += n < 70 ? 1 : 7) out.push_back(n);
    out.push_back(128);
    out.push_back(256);
    return out;
}

// Rows of `n` values of a type with gaps of NaN between them, from `skew` elements after an aligned address; and the
// values that these are.
struct Block {
    Block(DType dtype, std::size_t n_rows, std::size_t length, std::size_t gap, std::size_t skew)
        : type(dtype),
          rows(n_rows),
          n(length),
          stride(n + gap),
          bytes(rows * stride * bytes_of(type), skew * bytes_of(type)) {
        for (std::size_t i = 0; i < rows * stride; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
    }
    void set(std::size_t i, float value) {
        if (type == DType::f32) return std::memcpy(bytes.data() + 4 * i, &value, 4), void();
        std::uint16_t bits = 0;
        type == DType::f16 ? scalar().f32_to_f16(&value, &bits, 1) : scalar().f32_to_bf16(&value, &bits, 1);
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
    [[nodiscard]] float get(std::size_t row, std::size_t i) const {
        float value = 0;
        const std::size_t at = row * stride + i;
        if (type == DType::f32) {
            std::memcpy(&value, bytes.data() + 4 * at, 4);
            return value;
        }
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * at, 2);
        type == DType::f16 ? scalar().f16_to_f32(&bits, &value, 1) : scalar().bf16_to_f32(&bits, &value, 1);
        return value;
    }
    template <class F>
    void fill(F value) {
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t i = 0; i < n; ++i) set(r * stride + i, value(r, i));
    }
    [[nodiscard]] KvValues values() const { return {type, bytes.data(), rows, stride, n}; }
    [[nodiscard]] KvOutput output() { return {type, bytes.data(), rows, stride, n}; }

    DType type;
    std::size_t rows, n, stride;
    Guarded<unsigned char> bytes;
};

}  // namespace hetero::test
