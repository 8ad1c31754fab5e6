// One forward pass as data: a list of fused ops over registers. A family file builds it; an executor runs it.
//
// A register is an f32 buffer [token][width] of the tokens in flight. An op names the registers it reads and writes,
// the weights it needs and, where it touches the KV cache, the layer: all that an executor needs to place buffers,
// order work, divide rows among threads or devices, or capture the pass as a graph. What differs between families (pre-
// or post-norm, parallel residual, another attention or FFN) is another list or another op, never another engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
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
    std::uint64_t rows = 0, cols = 0;  // y[rows] = W x[cols] + bias
    std::size_t row_bytes = 0;
    std::vector<float> bias;  // [rows]; empty: none
    // Where the rows are spread over a fused matrix: groups of `group_rows` adjacent rows, `group_bytes` from one group
    // to the next. 0: all rows are adjacent.
    std::uint64_t group_rows = 0;
    std::size_t group_bytes = 0;
    // [rows], of i8: a row's product is multiplied by its scale before the bias is added. Empty: none.
    std::vector<float> row_scale;
};

// Rows of a fused matrix, and their biases, as a matrix of their own: `groups` groups of `group_rows` adjacent rows,
// the first at row `first`, then one every `period` rows. The weights are not copied. All rows must lie in `whole`,
// which must not be such a view itself.
[[nodiscard]] Matrix row_view(const Matrix& whole, std::uint64_t first, std::uint64_t group_rows,
                              std::uint64_t groups = 1, std::uint64_t period = 0);

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

// A normalization over the width of what it is applied to. Models that multiply by (1 + w) have the 1 added on reading.
struct Norm {
    enum class Kind : std::uint8_t {
        rms,   // x / sqrt(mean(x^2) + eps) * weight (https://arxiv.org/abs/1910.07467)
        layer  // (x - mean) / sqrt(variance + eps) * weight + bias (https://arxiv.org/abs/1607.06450)
    };
    Kind kind = Kind::rms;
    Vector weight, bias;  // bias: of `layer` only
    float eps = 0;
};

struct Embed {     // out = scale * table[token]
    Matrix table;  // [vocab][hidden]
    Register out = 0;
    float scale = 1;
};

struct Normalize {  // out = norm(in)
    Norm norm;
    Register in = 0, out = 0;
};

// q = rope(q_norm(Wq in)); rope(k_norm(Wk in)) and Wv in are appended to the KV cache of `layer`, K in half-split
// order.
struct Qkv {
    Matrix q, k, v;
    std::uint32_t layer = 0;    // of Program::kv
    std::uint32_t n_heads = 0;  // query heads; a multiple of the layer's KV heads
    std::uint32_t rope = 0;     // index into Program::ropes
    Register in = 0, q_out = 0;
    std::optional<Norm> q_norm, k_norm;  // over each head
};

// out = softmax(cap(q K^T * scale)) V, causal, over the KV cache of `layer`; cap(s) = softcap * tanh(s / softcap).
struct Attention {
    std::uint32_t layer = 0;
    std::uint32_t n_heads = 0;
    float scale = 1;
    Register q = 0, out = 0;
    std::uint32_t window = 0;  // tokens that a query sees, its own included; 0: all
    float softcap = 0;         // 0: none
};

struct ProjectAdd {  // out += norm(W in)
    Matrix weight;
    Register in = 0, out = 0;
    std::optional<Norm> norm;  // of the product, before it is added
};

enum class Activation : std::uint8_t { silu, gelu_tanh, gelu_erf };

// out += norm(Wdown (activation(Wgate in) * (Wup in))), or without a gate out += norm(Wdown activation(Wup in)).
struct FfnAdd {
    Matrix gate, up, down;  // gate has no rows: ungated, with one of the GELUs
    Register in = 0, out = 0;
    Activation activation = Activation::silu;
    std::optional<Norm> norm;  // of the product, before it is added
};

// logits = cap(W norm(in)), only for the tokens whose logits are wanted. Always the last op.
struct Head {
    Norm norm;
    Matrix weight;  // [vocab][hidden]
    Register in = 0;
    float softcap = 0;  // 0: none
};

using Op = std::variant<Embed, Normalize, Qkv, Attention, ProjectAdd, FfnAdd, Head>;

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
