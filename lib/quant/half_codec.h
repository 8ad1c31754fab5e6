// What the two 16-bit float codecs share: conversion by kernels::ops(), nearest-even, and a check for overflow.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/api/ops.h"
#include "quant/place.h"

namespace hetero::quant {

// Format has: name, dtype, exponent_mask (all ones: infinity or NaN), remedy, largest, overflow (the
// smallest magnitude that rounds to infinity), epsilon, smallest, and narrow(ops) / widen(ops), the conversions.
template <class Format>
class HalfCodec final : public Codec {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return Format::name; }
    [[nodiscard]] DType value_dtype(const Params&) const noexcept override { return Format::dtype; }
    [[nodiscard]] bool has_scale() const noexcept override { return false; }
    [[nodiscard]] Status check(const Params& params, std::uint32_t) const override {
        return check_no_params(*this, params);
    }
    [[nodiscard]] std::uint64_t groups(const Params&, const Shape&) const noexcept override { return 0; }
    [[nodiscard]] EncodedBytes bytes(const Params&, const Shape& shape) const noexcept override {
        return {shape.elements() * sizeof(std::uint16_t), 0, 0};
    }

    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(
            check_sizes(*this, params, shape, values.size(), {out.values.size(), out.scale.size(), out.zero.size()}));
        const auto narrow = Format::narrow(kernels::ops());
        std::array<std::uint16_t, tile> words;
        for (std::size_t begin = 0; begin < values.size(); begin += tile) {
            const std::size_t n = std::min(tile, values.size() - begin);
            narrow(values.data() + begin, words.data(), n);
            unsigned special = 0;
            for (std::size_t i = 0; i < n; ++i) {
                special |= (words[i] & Format::exponent_mask) == Format::exponent_mask ? 1U : 0U;
            }
            if (special != 0) return fail_special(shape, values, std::span(words).first(n), begin);
            std::memcpy(out.values.data() + begin * sizeof(std::uint16_t), words.data(), n * sizeof(std::uint16_t));
        }
        return {};
    }

    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
        const auto widen = Format::widen(kernels::ops());
        if (reinterpret_cast<std::uintptr_t>(values.data()) % alignof(std::uint16_t) == 0) {
            widen(reinterpret_cast<const std::uint16_t*>(values.data()), out.data(), out.size());
            return {};
        }
        std::array<std::uint16_t, tile> words;  // the bytes may lie at any address
        for (std::size_t begin = 0; begin < out.size(); begin += tile) {
            const std::size_t n = std::min(tile, out.size() - begin);
            std::memcpy(words.data(), values.data() + begin * sizeof(std::uint16_t), n * sizeof(std::uint16_t));
            widen(words.data(), out.data() + begin, n);
        }
        return {};
    }

    [[nodiscard]] double error_bound(const Params&, double min, double max) const noexcept override {
        const double magnitude = std::max(std::fabs(min), std::fabs(max));
        if (magnitude >= Format::overflow) return std::numeric_limits<double>::infinity();
        return std::max(magnitude * Format::epsilon, Format::smallest) / 2;
    }

private:
    static constexpr std::size_t tile = 4096;

    Status fail_special(const Shape& shape, std::span<const float> values, std::span<const std::uint16_t> words,
                        std::size_t begin) const {
        for (std::size_t i = 0; i < words.size(); ++i) {
            if ((words[i] & Format::exponent_mask) != Format::exponent_mask) continue;
            const std::size_t index = begin + i;
            if (!std::isfinite(values[index])) return fail_nonfinite(shape, values, index);
            return fail(Errc::bad_input, "{}: value {} is beyond {} (largest: {}); {}", place_text(shape, index),
                        values[index], Format::name, Format::largest, Format::remedy);
        }
        return fail(Errc::internal, "{}: a value that was not storable is gone", Format::name);
    }
};

}  // namespace hetero::quant
