#include "kernels/cpu/f16_table.h"

#include <array>

#include "kernels/common/half.h"

namespace hetero::kernels {
namespace {

constexpr std::array<float, 65536> widened() {
    std::array<float, 65536> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) table[i] = f16_to_f32(static_cast<std::uint16_t>(i));
    return table;
}

constexpr std::array<float, 65536> kTable = widened();

}  // namespace

constinit const float* const kF16Table = kTable.data();

}  // namespace hetero::kernels
