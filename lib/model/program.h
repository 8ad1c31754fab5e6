// One forward pass as data: a list of fused ops over registers. A family file builds it; an executor runs it.
//
// A register is an f32 buffer [token][width] of the tokens in flight. An op names the registers it reads and writes,
// the weights it needs and, where it touches the KV cache, the layer: all that an executor needs to place buffers,
// order work, divide rows among threads or devices, or capture the pass as a graph. What differs between families (pre-
// or post-norm, parallel residual, another attention or FFN) is another list or another op, never another engine. Nor
// is it where an op runs: every weight is a matrix whose rows can be divided among ranks, experts are matrices of their
// own, and attention and FFN meet in registers only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/api/activation.h"
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
    enum class Kind : std::uint8_t {
        heads,  // K and V of each KV head
        latent  // multi-head latent attention (https://arxiv.org/abs/2405.04434): one compressed latent of head_dim_k
                // and one RoPE key of head_dim_v, shared by all heads; n_kv_heads is 1
    };
    std::uint32_t n_kv_heads = 0;
    std::uint32_t head_dim_k = 0, head_dim_v = 0;
    Kind kind = Kind::heads;
    std::uint32_t window = 0;  // tokens that a query sees, its own included, of all queries; 0: all

    // What a query of Attention is multiplied with, and what its output has, per head. Against a latent the query
    // is [latent | RoPE key] and the output a latent.
    [[nodiscard]] std::uint32_t query_dim() const noexcept {
        return kind == Kind::latent ? head_dim_k + head_dim_v : head_dim_k;
    }
    [[nodiscard]] std::uint32_t output_dim() const noexcept { return kind == Kind::latent ? head_dim_k : head_dim_v; }
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

// latent = norm(in[0, rank)), key = rope(in[rank, rank + rope_dim)); both are appended to the KV cache of `layer`,
// whose kind is latent with head_dim_k = rank and head_dim_v = rope_dim. The key is stored in half-split order. What
// `in` holds afterwards is unspecified.
struct LatentKv {
    Norm norm;
    std::uint32_t layer = 0;
    std::uint32_t rope = 0;
    Register in = 0;
};

// Queries against latents: of each head, in = [plain | rotated], out = [Wk plain | rope(rotated)], where Wk[head] is
// the transpose of what would expand a latent to that head's keys. So attention is computed where the cache is
// compressed.
struct LatentQuery {
    Matrix k_absorb;  // [head][rank] x [plain dims]
    std::uint32_t layer = 0;
    std::uint32_t n_heads = 0;
    std::uint32_t rope = 0;
    Register in = 0, out = 0;
};

// out = softmax(cap(q K^T * scale)) V, causal, over the KV cache of `layer`; cap(s) = softcap * tanh(s / softcap).
// Over latents, K is [latent | RoPE key] and V the latent.
struct Attention {
    std::uint32_t layer = 0;
    std::uint32_t n_heads = 0;
    float scale = 1;
    Register q = 0, out = 0;
    std::uint32_t window = 0;  // tokens that a query sees, its own included; 0: all
    float softcap = 0;         // 0: none
};

struct Project {  // out = W in
    Matrix weight;
    Register in = 0, out = 0;
    std::uint32_t n_heads = 0;  // the rows are those of so many heads, each of which only ops of that head read; 0: no
};

// Each head by its own matrix: out[head] = W[head] in[head].
struct HeadProject {
    Matrix weight;  // [head][out dims] x [in dims]
    std::uint32_t n_heads = 0;
    Register in = 0, out = 0;
};

struct ProjectAdd {  // out += norm(W in)
    Matrix weight;
    Register in = 0, out = 0;
    std::optional<Norm> norm;  // of the product, before it is added
};

using kernels::Activation;

// out += norm(Wdown (activation(Wgate in) * (Wup in))), or without a gate out += norm(Wdown activation(Wup in)).
struct FfnAdd {
    Matrix gate, up, down;  // gate has no rows: ungated, with one of the GELUs
    Register in = 0, out = 0;
    Activation activation = Activation::silu;
    std::optional<Norm> norm;  // of the product, before it is added
};

// How a router chooses experts for a token, from its scores s = softmax or sigmoid of the router's product.
// Selection sees s + bias. With groups (adjacent experts, equally many), only the experts of the top_groups groups of
// the highest group score are eligible; of these the top_k highest are chosen, the lower number first where two are
// equal. Weights are the chosen s, divided by their sum if `normalize`, times `scale`.
struct RoutingRule {
    enum class Score : std::uint8_t { softmax, sigmoid };
    enum class GroupScore : std::uint8_t {
        highest,     // of the group's experts (https://arxiv.org/abs/2405.04434)
        highest_two  // their sum (https://arxiv.org/abs/2412.19437)
    };
    Score score = Score::softmax;
    GroupScore group_score = GroupScore::highest;
    std::uint32_t top_k = 0;
    std::uint32_t n_groups = 1, top_groups = 1;
    bool normalize = false;
    float scale = 1;
};

struct Expert {
    Matrix gate, up, down;
};

// out += sum over the chosen experts of weight * Wdown (activation(Wgate in) * (Wup in)), in the order of their
// numbers. Experts that every token has are an FfnAdd of their own.
struct MoeAdd {
    RoutingRule rule;
    Matrix router;          // [expert][hidden]
    Vector selection_bias;  // [expert]; empty: none
    std::vector<Expert> experts;
    Register in = 0, out = 0;
    Activation activation = Activation::silu;
};

// logits = cap(W norm(in)), only for the tokens whose logits are wanted. Always the last op.
struct Head {
    Norm norm;
    Matrix weight;  // [vocab][hidden]
    Register in = 0;
    float softcap = 0;  // 0: none
};

using Op = std::variant<Embed, Normalize, Qkv, LatentKv, LatentQuery, Attention, Project, HeadProject, ProjectAdd,
                        FfnAdd, MoeAdd, Head>;

struct Program {
    std::vector<RegisterInfo> registers;
    std::vector<KvLayout> kv;  // [layer]
    std::vector<RopeConfig> ropes;
    std::vector<Op> ops;
    // Of matrices that the file holds in another form than the ops need.
    std::vector<std::shared_ptr<const std::vector<std::byte>>> storage;

    Register add_register(std::string name, std::uint32_t width) {
        registers.push_back({std::move(name), width});
        return static_cast<Register>(registers.size() - 1);
    }
};

}  // namespace hetero::model
