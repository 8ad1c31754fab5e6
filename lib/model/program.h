// One forward pass as data: a list of fused ops over registers. A family file builds it; an executor runs it.
//
// A register is an f32 buffer [token][width] of the tokens in flight. An op names the registers it reads and writes,
// the weights it needs and, where it touches the KV cache, the layer: all that an executor needs to place buffers,
// order work, divide rows among threads or devices, or capture the pass as a graph. What differs between families (pre-
// or post-norm, parallel residual, another attention or FFN) is another list or another op, never another engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/api/dtype.h"
#include "model/rope.h"

namespace hetero::model {

// A weight matrix where its file has it. The model owns the mapping.
struct Matrix {
    std::string name;  // of the tensor, for messages
    kernels::DType dtype = kernels::DType::f32;
    const std::byte* data = nullptr;   // [rows][cols], blocks along cols
    std::uint64_t rows = 0, cols = 0;  // y[rows] = W x[cols]
    std::size_t row_bytes = 0;
};

// A weight vector, widened to f32: norms and biases are less than a thousandth of a model.
struct Vector {
    std::string name;
    std::vector<float> values;
};

using Register = std::uint32_t;  // index into Program::registers

struct RegisterInfo {
    std::string name;
    std::uint32_t width = 0;  // elements per token
};

// What one layer keeps per token, and how its heads are laid out.
struct KvLayout {
    std::uint32_t n_kv_heads = 0;
    std::uint32_t head_dim_k = 0, head_dim_v = 0;
};

struct Embed {     // out = table[token]
    Matrix table;  // [vocab][hidden]
    Register out = 0;
};

struct RmsNorm {  // out = in / sqrt(mean(in^2) + eps) * weight
    Vector weight;
    float eps = 0;
    Register in = 0, out = 0;
};

// q = rope(Wq in); rope(Wk in) and Wv in are appended to the KV cache of `layer`, K in half-split order.
struct Qkv {
    Matrix q, k, v;
    std::uint32_t layer = 0;    // of Program::kv
    std::uint32_t n_heads = 0;  // query heads; a multiple of the layer's KV heads
    std::uint32_t rope = 0;     // index into Program::ropes
    Register in = 0, q_out = 0;
};

// out = softmax(q K^T * scale) V, causal, over the KV cache of `layer`.
struct Attention {
    std::uint32_t layer = 0;
    std::uint32_t n_heads = 0;
    float scale = 1;
    Register q = 0, out = 0;
};

struct ProjectAdd {  // out += W in
    Matrix weight;
    Register in = 0, out = 0;
};

struct GatedFfnAdd {  // out += Wdown (silu(Wgate in) * (Wup in))
    Matrix gate, up, down;
    Register in = 0, out = 0;
};

// logits = W norm(in), only for the tokens whose logits are wanted. Always the last op.
struct Head {
    Vector norm_weight;
    float eps = 0;
    Matrix weight;  // [vocab][hidden]
    Register in = 0;
};

using Op = std::variant<Embed, RmsNorm, Qkv, Attention, ProjectAdd, GatedFfnAdd, Head>;

struct Program {
    std::vector<RegisterInfo> registers;
    std::vector<KvLayout> kv;  // [layer]
    std::vector<RopeConfig> ropes;
    std::vector<Op> ops;

    Register add_register(std::string name, std::uint32_t width) {
        registers.push_back({std::move(name), width});
        return static_cast<Register>(registers.size() - 1);
    }
};

}  // namespace hetero::model
