// The attention of a decoder that keeps compressed latents.
#include <cstring>

#include "kernels/api/ops.h"
#include "model/families/decoder_parts.h"

namespace hetero::model {

const LatentNames gguf_latent_names{.q = "attn_q.weight",
                                    .q_a = "attn_q_a.weight",
                                    .q_a_norm = "attn_q_a_norm.weight",
                                    .q_b = "attn_q_b.weight",
                                    .kv_a = "attn_kv_a_mqa.weight",
                                    .kv_a_norm = "attn_kv_a_norm.weight",
                                    .kv_b = "attn_kv_b.weight",
                                    .k_b = "attn_k_b.weight",
                                    .v_b = "attn_v_b.weight"};

const LatentNames folder_latent_names{.q = "self_attn.q_proj.weight",
                                      .q_a = "self_attn.q_a_proj.weight",
                                      .q_a_norm = "self_attn.q_a_layernorm.weight",
                                      .q_b = "self_attn.q_b_proj.weight",
                                      .kv_a = "self_attn.kv_a_proj_with_mqa.weight",
                                      .kv_a_norm = "self_attn.kv_a_layernorm.weight",
                                      .kv_b = "self_attn.kv_b_proj.weight"};

namespace {

bool is_float(kernels::DType type) {
    return type == kernels::DType::f32 || type == kernels::DType::f16 || type == kernels::DType::bf16;
}

// Of each head, rows [0, rows) of its `period` rows, transposed: [head][column][row]. Exact: types that are no floats
// become f32.
Matrix transposed_heads(const Matrix& whole, std::uint64_t heads, std::uint64_t rows, std::uint64_t period,
                        Program& program) {
    Matrix out;
    out.name = whole.name;
    out.dtype = is_float(whole.dtype) ? whole.dtype : kernels::DType::f32;
    out.rows = heads * whole.cols;
    out.cols = rows;
    const std::size_t element = kernels::dtype_bytes(out.dtype, 1);
    out.row_bytes = rows * element;
    std::vector<std::byte> storage(out.rows * out.row_bytes);
    std::vector<float> widened(is_float(whole.dtype) ? 0 : whole.cols);
    for (std::uint64_t head = 0; head < heads; ++head) {
        std::byte* target = storage.data() + head * whole.cols * out.row_bytes;
        for (std::uint64_t row = 0; row < rows; ++row) {
            const std::byte* source = whole.data + (head * period + row) * whole.row_bytes;
            if (!widened.empty()) {
                kernels::ops().dequantize(whole.dtype, source, widened.data(), whole.cols);
                if (!whole.row_scale.empty()) {
                    kernels::ops().scale(widened.data(), whole.row_scale[head * period + row], whole.cols);
                }
                source = reinterpret_cast<const std::byte*>(widened.data());
            }
            for (std::uint64_t col = 0; col < whole.cols; ++col) {
                std::memcpy(target + (col * rows + row) * element, source + col * element, element);
            }
        }
    }
    program.storage.push_back(std::make_shared<const std::vector<std::byte>>(std::move(storage)));
    out.data = program.storage.back()->data();
    return out;
}

// From latents to keys (transposed) and values of the heads.
Status take_expansion(const Config& config, const LatentNames& names, const Taker& take, Program& program,
                      Matrix& k_absorb, Matrix& v_expand) {
    const LatentConfig& latent = *config.latent;
    const std::uint64_t heads = config.n_heads, period = latent.plain_dim + latent.v_dim;
    if (!names.k_b.empty() && take.has(names.k_b)) {
        HETERO_TRY(k_absorb, take.stacked(names.k_b, heads, latent.kv_rank, latent.plain_dim));
        HETERO_TRY(v_expand, take.stacked(names.v_b, heads, latent.v_dim, latent.kv_rank));
        return {};
    }
    HETERO_TRY(const Matrix whole, take.matrix(names.kv_b, heads * period, latent.kv_rank));
    k_absorb = transposed_heads(whole, heads, latent.plain_dim, period, program);
    v_expand = row_view(whole, latent.plain_dim, latent.v_dim, heads, period);
    return {};
}

}  // namespace

LatentRegisters add_latent_registers(const Config& config, Program& program) {
    const LatentConfig& latent = *config.latent;
    LatentRegisters registers;
    if (latent.q_rank != 0) registers.q_compressed = program.add_register("compressed query", latent.q_rank);
    registers.q = program.add_register("query", config.n_heads * config.head_dim);
    registers.kv = program.add_register("latent and RoPE key", latent.kv_rank + latent.rope_dim);
    registers.absorbed = program.add_register("query of latents", config.n_heads * (latent.kv_rank + latent.rope_dim));
    registers.latents = program.add_register("attended latents", config.n_heads * latent.kv_rank);
    return registers;
}

Status add_latent_attention(const Config& config, const LatentNames& names, const Taker& take,
                            const LatentRegisters& registers, std::uint32_t layer, Register in, Register attended,
                            Program& program) {
    const LatentConfig& latent = *config.latent;
    const std::uint32_t q_rows = config.n_heads * config.head_dim;
    const auto norm_of = [&](std::string_view name, std::uint32_t size) -> Result<Norm> {
        HETERO_TRY(Norm norm, take.norm(name, size));
        norm.eps = latent.norm_eps;
        return norm;
    };
    if (latent.q_rank == 0) {
        HETERO_TRY(Matrix q, take.matrix(names.q, q_rows, config.hidden));
        program.ops.emplace_back(Project{std::move(q), in, registers.q, config.n_heads});
    } else {
        HETERO_TRY(Matrix q_a, take.matrix(names.q_a, latent.q_rank, config.hidden));
        HETERO_TRY(Norm q_norm, norm_of(names.q_a_norm, latent.q_rank));
        HETERO_TRY(Matrix q_b, take.matrix(names.q_b, q_rows, latent.q_rank));
        program.ops.emplace_back(Project{std::move(q_a), in, registers.q_compressed});
        program.ops.emplace_back(Normalize{std::move(q_norm), registers.q_compressed, registers.q_compressed});
        program.ops.emplace_back(Project{std::move(q_b), registers.q_compressed, registers.q, config.n_heads});
    }
    HETERO_TRY(Matrix kv_a, take.matrix(names.kv_a, latent.kv_rank + latent.rope_dim, config.hidden));
    HETERO_TRY(Norm kv_norm, norm_of(names.kv_a_norm, latent.kv_rank));
    Matrix k_absorb, v_expand;
    HETERO_CHECK(take_expansion(config, names, take, program, k_absorb, v_expand));
    program.ops.emplace_back(Project{std::move(kv_a), in, registers.kv});
    program.ops.emplace_back(LatentKv{std::move(kv_norm), layer, 0, registers.kv});
    program.ops.emplace_back(
        LatentQuery{std::move(k_absorb), layer, config.n_heads, 0, registers.q, registers.absorbed});
    program.ops.emplace_back(
        Attention{layer, config.n_heads, attention_scale(config), registers.absorbed, registers.latents});
    program.ops.emplace_back(HeadProject{std::move(v_expand), config.n_heads, registers.latents, attended});
    return {};
}

}  // namespace hetero::model
