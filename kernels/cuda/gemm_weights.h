// Products of up to 64 tokens with weights of another type than theirs, that are decoded on their way
// (gemm_weights.cu).
#pragma once
#include "kernels/cuda/result.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

inline constexpr std::size_t most_decoded_tokens = 64;  // beyond, it is cheaper to write the weights out as halves

// Of f16 or bf16 inputs. `scratch` holds partial sums, where more blocks than there are tiles keep the device busy.
[[nodiscard]] DeviceFault multiply_weights(DeviceStream stream, const DeviceMatrix& w, const DeviceRows& x,
                                           std::size_t n_tokens, const Result& out, void* scratch,
                                           std::size_t scratch_bytes);

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
