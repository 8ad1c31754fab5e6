// Norms, activations, and what else has a thread for each value.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/store.cuh"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr unsigned flat_threads = 256;

// Threads for a row of n values: whole warps, few idle.
constexpr unsigned most_row_threads = 512;
unsigned row_threads(std::size_t n) {
    const std::size_t warps = (n + 4 * warp_size - 1) / (4 * warp_size), most = most_row_threads / warp_size;
    return static_cast<unsigned>(warp_size * (warps < 1 ? 1 : warps > most ? most : warps));
}

// A block has a row: blockIdx.x is its token, blockIdx.y its head.
template <DeviceNorm::Kind kind>
__global__ void __launch_bounds__(most_row_threads)
    norm_rows(DeviceNorm norm, DeviceHeads<const float> x, std::size_t n, bool add, DeviceOutput out) {
    const std::size_t token = blockIdx.x, first = blockIdx.y * x.head_stride;
    const auto put = [&](std::size_t i, float value) {
        if (add) value += out.f32[token * out.f32_stride + first + i];
        store(out, token, first + i, value);
    };
    const float* row = x.data + token * x.stride + first;
    if constexpr (kind == DeviceNorm::Kind::rms)
        rms_norm_row<BlockThreads>(norm, row, n, put);
    else
        layer_norm_row<BlockThreads>(norm, row, n, put);
}

DeviceFault norm(DeviceStream stream, const DeviceNorm& norm, DeviceHeads<const float> x, std::size_t n_tokens,
                 std::size_t n_heads, std::size_t n, bool add, const DeviceOutput& out) {
    const Grid grid{{blocks_for(n_tokens, 1), blocks_for(n_heads, 1), 1}, {row_threads(n), 1, 1}};
    return launch(
        stream, "norm", grid, {{"tokens", n_tokens}, {"heads", n_heads}, {"cols", n}},
        norm.kind == DeviceNorm::Kind::rms ? norm_rows<DeviceNorm::Kind::rms> : norm_rows<DeviceNorm::Kind::layer>,
        norm, x, n, add, out);
}

__device__ float silu(float x) {
    if (x >= -64) return x / (1 + expf(-x));
    const float half = expf(x / 2);  // exp(-x) would overflow below -88
    return x * half * half;
}

__device__ float activated(Activation activation, float x) {
    switch (activation) {
        case Activation::silu:
            return silu(x);
        case Activation::gelu_tanh: {
            constexpr float root = 0.7978845608F;  // of 2 / pi
            return x / 2 * (1 + tanhf(root * fmaf(0.044715F * x * x, x, x)));
        }
        case Activation::gelu_erf:
            return x / 2 * erfcf(x * -0.7071067812F);
    }
    return x;
}

__global__ void activate_values(Activation activation, const float* gate, const float* up, std::size_t stride,
                                std::size_t n, DeviceOutput out) {
    const std::size_t i = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (i >= n) return;
    const float g = gate[token * stride + i];
    float value;
    if (up == nullptr) {
        value = activated(activation, g);
    } else if (activation == Activation::silu && g < -64) {
        const float half = expf(g / 2);
        value = (g * half) * (half * up[token * stride + i]);
    } else {
        value = activated(activation, g) * up[token * stride + i];
    }
    store(out, token, i, value);
}

Grid token_grid(std::size_t n_tokens, std::size_t n) {
    return {{blocks_for(n_tokens, 1), blocks_for(n, flat_threads), 1}, {flat_threads, 1, 1}};
}

DeviceFault activate(DeviceStream stream, Activation activation, const float* gate, const float* up, std::size_t stride,
                     std::size_t n_tokens, std::size_t n, const DeviceOutput& out) {
    return launch(stream, "activate", token_grid(n_tokens, n), {{"tokens", n_tokens}, {"cols", n}}, activate_values,
                  activation, gate, up, stride, n, out);
}

__global__ void add_values(const float* x, std::size_t x_stride, float* y, std::size_t y_stride, std::size_t n) {
    const std::size_t i = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (i < n) y[token * y_stride + i] += x[token * x_stride + i];
}

DeviceFault add(DeviceStream stream, const float* x, std::size_t x_stride, float* y, std::size_t y_stride,
                std::size_t n_tokens, std::size_t n) {
    return launch(stream, "add", token_grid(n_tokens, n), {{"tokens", n_tokens}, {"cols", n}}, add_values, x, x_stride,
                  y, y_stride, n);
}

__global__ void scale_values(float* y, std::size_t stride, std::size_t n, float factor) {
    const std::size_t i = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (i < n) y[token * stride + i] *= factor;
}

DeviceFault scale(DeviceStream stream, float* y, std::size_t stride, std::size_t n_tokens, std::size_t n,
                  float factor) {
    return launch(stream, "scale", token_grid(n_tokens, n), {{"tokens", n_tokens}, {"cols", n}}, scale_values, y,
                  stride, n, factor);
}

__global__ void cap_values(float* y, std::size_t stride, std::size_t n, float cap) {
    const std::size_t i = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (i < n) y[token * stride + i] = cap * tanhf(y[token * stride + i] / cap);
}

DeviceFault softcap(DeviceStream stream, float* y, std::size_t stride, std::size_t n_tokens, std::size_t n, float cap) {
    return launch(stream, "softcap", token_grid(n_tokens, n), {{"tokens", n_tokens}, {"cols", n}}, cap_values, y,
                  stride, n, cap);
}

__global__ void look_for_not_finite(const float* x, std::size_t stride, std::size_t n, unsigned long long* place) {
    const std::size_t i = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (i >= n || (__float_as_uint(x[token * stride + i]) & 0x7F800000U) != 0x7F800000U) return;
    atomicMin(place, static_cast<unsigned long long>(token * n + i));
}

DeviceFault find_not_finite(DeviceStream stream, const float* x, std::size_t stride, std::size_t n_tokens,
                            std::size_t n, unsigned long long* place) {
    return launch(stream, "find_not_finite", token_grid(n_tokens, n), {{"tokens", n_tokens}, {"cols", n}},
                  look_for_not_finite, x, stride, n, place);
}

}  // namespace

void fill_elementwise(DeviceOps& ops) {
    ops.norm = norm;
    ops.activate = activate;
    ops.add = add;
    ops.scale = scale;
    ops.softcap = softcap;
    ops.find_not_finite = find_not_finite;
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
