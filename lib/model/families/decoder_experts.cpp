// The FFN of a decoder that is a mixture of experts.
#include "model/families/decoder_parts.h"

namespace hetero::model {

const ExpertNames gguf_expert_names{.router = "ffn_gate_inp.weight",
                                    .selection_bias = "exp_probs_b.bias",
                                    .gate = "ffn_gate.{}.weight",
                                    .up = "ffn_up.{}.weight",
                                    .down = "ffn_down.{}.weight",
                                    .stacked_gate = "ffn_gate_exps.weight",
                                    .stacked_up = "ffn_up_exps.weight",
                                    .stacked_down = "ffn_down_exps.weight",
                                    .shared_gate = "ffn_gate_shexp.weight",
                                    .shared_up = "ffn_up_shexp.weight",
                                    .shared_down = "ffn_down_shexp.weight"};

const ExpertNames folder_expert_names{.router = "mlp.gate.weight",
                                      .selection_bias = "mlp.gate.e_score_correction_bias",
                                      .gate = "mlp.experts.{}.gate_proj.weight",
                                      .up = "mlp.experts.{}.up_proj.weight",
                                      .down = "mlp.experts.{}.down_proj.weight",
                                      .shared_gate = "mlp.shared_experts.gate_proj.weight",
                                      .shared_up = "mlp.shared_experts.up_proj.weight",
                                      .shared_down = "mlp.shared_experts.down_proj.weight"};

namespace {

// One matrix of every expert, of a tensor that has them all or of a tensor each.
Status take_experts(const Taker& take, std::string_view stacked, std::string_view single, std::uint64_t rows,
                    std::uint64_t cols, std::vector<Expert>& experts, Matrix Expert::*member) {
    if (!stacked.empty() && (take.has(stacked) || !take.has(fmt::format(fmt::runtime(single), 0)))) {
        HETERO_TRY(const Matrix whole, take.stacked(stacked, experts.size(), rows, cols));
        for (std::size_t i = 0; i < experts.size(); ++i) experts[i].*member = row_view(whole, i * rows, rows);
        return {};
    }
    for (std::size_t i = 0; i < experts.size(); ++i) {
        HETERO_TRY(experts[i].*member, take.matrix(fmt::format(fmt::runtime(single), i), rows, cols));
    }
    return {};
}

}  // namespace

Status add_experts(const Config& config, const ExpertNames& names, const Taker& take, Register in, Register out,
                   Program& program) {
    const MoeConfig& moe = *config.moe;
    MoeAdd add;
    add.rule = moe.rule;
    add.in = in;
    add.out = out;
    add.activation = config.activation;
    HETERO_TRY(add.router, take.matrix(names.router, moe.n_experts, config.hidden));
    if (moe.selection_bias) {
        HETERO_TRY(add.selection_bias, take.vector(names.selection_bias, moe.n_experts));
    }
    add.experts.resize(moe.n_experts);
    HETERO_CHECK(
        take_experts(take, names.stacked_gate, names.gate, moe.expert_ffn, config.hidden, add.experts, &Expert::gate));
    HETERO_CHECK(
        take_experts(take, names.stacked_up, names.up, moe.expert_ffn, config.hidden, add.experts, &Expert::up));
    HETERO_CHECK(
        take_experts(take, names.stacked_down, names.down, config.hidden, moe.expert_ffn, add.experts, &Expert::down));
    program.ops.emplace_back(std::move(add));
    if (moe.n_shared == 0) return {};
    const std::uint64_t shared_ffn = std::uint64_t{moe.n_shared} * moe.expert_ffn;
    FfnAdd shared;
    shared.in = in;
    shared.out = out;
    shared.activation = config.activation;
    HETERO_TRY(shared.gate, take.matrix(names.shared_gate, shared_ffn, config.hidden));
    HETERO_TRY(shared.up, take.matrix(names.shared_up, shared_ffn, config.hidden));
    HETERO_TRY(shared.down, take.matrix(names.shared_down, config.hidden, shared_ffn));
    program.ops.emplace_back(std::move(shared));
    return {};
}

}  // namespace hetero::model
