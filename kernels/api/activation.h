// What a feed-forward network does between its products.
#pragma once
#include <cstdint>

namespace hetero::kernels {

enum class Activation : std::uint8_t { silu, gelu_tanh, gelu_erf };

}  // namespace hetero::kernels
