#include "quant/fp8.h"

#include <array>
#include <cmath>

namespace hetero::quant {
namespace {

constexpr std::array<Fp8Info, 3> infos{
    {{"fp8_e4m3fn", 3, 7, 448}, {"fp8_e4m3fnuz", 3, 8, 240}, {"fp8_e5m2", 2, 15, 57344}}};

}  // namespace

double Fp8Info::smallest() const noexcept { return std::ldexp(1.0, 1 - bias - mantissa_bits); }

const Fp8Info& fp8_info(Fp8 format) noexcept { return infos[static_cast<std::size_t>(format)]; }

}  // namespace hetero::quant
