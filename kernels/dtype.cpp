#include "kernels/api/dtype.h"

#include <array>

namespace hetero::kernels {
namespace {

constexpr std::size_t kTypes = static_cast<std::size_t>(DType::count_);

// In the order of DType.
constexpr std::array<DTypeInfo, kTypes> kInfo = {{
    {"f32", 1, 4},
    {"f16", 1, 2},
    {"bf16", 1, 2},
    {"i8", 1, 1},
    {"u8", 1, 1},
    {"i32", 1, 4},
    {"q8_0", 32, 34},    // f16 d, 32 x i8
    {"q4_0", 32, 18},    // f16 d, 32 x 4 bits
    {"q4_1", 32, 20},    // f16 d, f16 m, 32 x 4 bits
    {"q5_0", 32, 22},    // f16 d, 32 high bits, 32 x 4 bits
    {"q5_1", 32, 24},    // f16 d, f16 m, 32 high bits, 32 x 4 bits
    {"q2_k", 256, 84},   // 16 x (4-bit scale, 4-bit min), 256 x 2 bits, f16 d, f16 dmin
    {"q3_k", 256, 110},  // 256 high bits, 256 x 2 bits, 16 x 6-bit scale, f16 d
    {"q4_k", 256, 144},  // f16 d, f16 dmin, 8 x (6-bit scale, 6-bit min), 256 x 4 bits
    {"q5_k", 256, 176},  // f16 d, f16 dmin, 8 x (6-bit scale, 6-bit min), 256 high bits, 256 x 4 bits
    {"q6_k", 256, 210},  // 256 x 4 bits, 256 x 2 high bits, 16 x i8 scale, f16 d
    {"iq4_nl", 32, 18},  // f16 d, 32 x 4-bit index into a table
}};

constexpr DTypeInfo kUnknown = {"unknown", 1, 1};

}  // namespace

const DTypeInfo& dtype_info(DType type) noexcept {
    const auto index = static_cast<std::size_t>(type);
    return index < kTypes ? kInfo[index] : kUnknown;
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
    for (std::size_t i = 0; i < kTypes; ++i)
        if (kInfo[i].name == name) return static_cast<DType>(i);
    return std::nullopt;
}

}  // namespace hetero::kernels
