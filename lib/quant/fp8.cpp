#include "quant/fp8.h"

#include <cmath>
#include <limits>

namespace hetero::quant {
namespace {

constexpr std::array<Fp8Info, 3> infos{
    {{"fp8_e4m3fn", 3, 7, 448}, {"fp8_e4m3fnuz", 3, 8, 240}, {"fp8_e5m2", 2, 15, 57344}}};

float value_of(Fp8 format, int code) {
    const Fp8Info& info = fp8_info(format);
    constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    const bool negative = code >= 128;
    const int magnitude = code & 127;
    if (format == Fp8::e4m3fnuz ? code == 0x80 : magnitude == 127) return nan;
    if (format == Fp8::e5m2 && magnitude >= 0x7C) return magnitude > 0x7C ? nan : negative ? -infinity : infinity;
    const int field = magnitude >> info.mantissa_bits, hidden = 1 << info.mantissa_bits;
    const int mantissa = magnitude & (hidden - 1);
    const int exponent = (field == 0 ? 1 : field) - info.bias - info.mantissa_bits;
    const float value = std::ldexp(static_cast<float>(field == 0 ? mantissa : hidden + mantissa), exponent);
    return negative ? -value : value;
}

std::array<float, 256> table_of(Fp8 format) {
    std::array<float, 256> table{};
    for (int code = 0; code < 256; ++code) table[static_cast<std::size_t>(code)] = value_of(format, code);
    return table;
}

}  // namespace

double Fp8Info::smallest() const noexcept { return std::ldexp(1.0, 1 - bias - mantissa_bits); }

const Fp8Info& fp8_info(Fp8 format) noexcept { return infos[static_cast<std::size_t>(format)]; }

const std::array<float, 256>& fp8_values(Fp8 format) noexcept {
    static const std::array<std::array<float, 256>, 3> tables{table_of(Fp8::e4m3fn), table_of(Fp8::e4m3fnuz),
                                                              table_of(Fp8::e5m2)};
    return tables[static_cast<std::size_t>(format)];
}

}  // namespace hetero::quant
