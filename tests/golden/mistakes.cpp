// The golden tests are worth what they catch: a model that is wrong in one of the usual ways must miss their tolerance.
#include <cmath>
#include <functional>
#include <initializer_list>
#include <optional>

#include "golden/tiny.h"

namespace {

using namespace hetero;
using namespace hetero::test;

// For mistakes in a program. Each says whether anything was changed.
template <class Value, class Other>
bool take(Value& value, Other other) {
    const Value replacement = other;
    if (value == replacement) return false;
    value = replacement;
    return true;
}
bool take(std::optional<model::Norm>& norm, std::nullopt_t) {
    const bool had = norm.has_value();
    norm.reset();
    return had;
}
bool take(std::vector<float>& values, std::initializer_list<float>) {
    const bool had = !values.empty();
    values.clear();
    return had;
}
template <class Op>
bool each(model::Program& program, const std::function<bool(Op&)>& change) {
    bool changed = false;
    for (model::Op& any : program.ops) {
        if (auto* op = std::get_if<Op>(&any)) changed = change(*op) || changed;
    }
    return changed;
}
bool each_norm(model::Program& program, const std::function<bool(model::Norm&)>& change) {
    const auto inner = [&](std::optional<model::Norm>& norm) { return norm && change(*norm); };
    each<model::Normalize>(program, [&](auto& op) { return change(op.norm); });
    each<model::Head>(program, [&](auto& op) { return change(op.norm); });
    each<model::ProjectAdd>(program, [&](auto& op) { return inner(op.norm); });
    each<model::FfnAdd>(program, [&](auto& op) { return inner(op.norm); });
    each<model::Qkv>(program, [&](auto& op) { return inner(op.q_norm) | inner(op.k_norm); });
    each<model::LatentKv>(program, [&](auto& op) { return change(op.norm); });
    return true;
}

}  // namespace

TEST_CASE("typical mistakes exceed the tolerance") {
    struct Mistake {
        std::string name;
        std::function<bool(model::Program&)> make;  // false: this model has nothing of the kind
    };
    const std::vector<Mistake> mistakes = {
        {"wrong RoPE pairing",
         [](model::Program& program) {
             for (model::RopeConfig& rope : program.ropes) {
                 rope.pairing = rope.pairing == kernels::RopePairing::half_split ? kernels::RopePairing::interleaved
                                                                                 : kernels::RopePairing::half_split;
             }
             return true;
         }},
        {"RoPE base", [](model::Program& program) { return program.ropes[0].theta *= 1.2, true; }},
        {"RoPE scaling ignored",
         [](model::Program& program) {
             model::RopeConfig& rope = program.ropes[0];
             rope.attention_factor = 1;
             const bool scaled = rope.scaling != model::RopeScalingKind::none || !rope.frequency_divisors.empty();
             rope.scaling = model::RopeScalingKind::none;
             rope.frequency_divisors.clear();
             return scaled;
         }},
        {"RoPE over twice the dimensions",
         [](model::Program& program) {
             const model::KvLayout& layout = program.kv[0];
             const bool latent = layout.kind == model::KvLayout::Kind::latent;
             if (2 * program.ropes[0].rotary_dim > (latent ? layout.head_dim_v : layout.head_dim_k)) return false;
             return program.ropes[0].rotary_dim *= 2, true;
         }},
        {"local layers with the global RoPE",
         [](model::Program& program) { return each<model::Qkv>(program, [](auto& op) { return take(op.rope, 0U); }); }},
        {"norm epsilon",
         [](model::Program& program) {
             return each_norm(program, [](model::Norm& norm) { return norm.eps *= 1000, true; });
         }},
        {"norm weights without 1 added",  // where the weights are that far from 1
         [](model::Program& program) {
             return each_norm(program, [](model::Norm& norm) {
                 for (float& weight : norm.weight.values) weight -= 1;
                 return true;
             });
         }},
        {"norms after attention and FFN ignored",
         [](model::Program& program) {
             const auto drop = [](auto& op) { return take(op.norm, std::nullopt); };
             const bool projects = each<model::ProjectAdd>(program, drop);
             return each<model::FfnAdd>(program, drop) || projects;
         }},
        {"norm over the heads of Q ignored",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return take(op.q_norm, std::nullopt); });
         }},
        {"norm over the heads of K after RoPE, as if its weights were 1",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) {
                 if (op.k_norm) std::fill(op.k_norm->weight.values.begin(), op.k_norm->weight.values.end(), 1.0F);
                 return op.k_norm.has_value();
             });
         }},
        {"bias of Q ignored",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return take(op.q.bias, {}); });
         }},
        {"bias of V ignored",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return take(op.v.bias, {}); });
         }},
        {"bias of the FFN ignored",
         [](model::Program& program) {
             return each<model::FfnAdd>(program, [](auto& op) { return take(op.down.bias, {}); });
         }},
        {"interleaved Q, K and V read as if they lay apart",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) {
                 const bool spread = op.q.group_rows != 0;
                 op.q.group_rows = op.k.group_rows = op.v.group_rows = 0;
                 return spread;
             });
         }},
        {"attention scale",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return op.scale *= 0.99F, true; });
         }},
        {"attention soft cap ignored",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return take(op.softcap, 0.0F); });
         }},
        {"logit soft cap ignored",
         [](model::Program& program) {
             return each<model::Head>(program, [](auto& op) { return take(op.softcap, 0.0F); });
         }},
        {"sliding window ignored",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return take(op.window, 0U); });
         }},
        {"sliding window one too short",
         [](model::Program& program) {
             return each<model::Attention>(program, [](auto& op) { return op.window != 0 && (--op.window, true); });
         }},
        {"sliding window in the other layers",
         [](model::Program& program) {
             std::uint32_t window = 0;
             bool full = false;
             each<model::Attention>(program, [&](auto& op) {
                 window = std::max(window, op.window);
                 full = full || op.window == 0;
                 return true;
             });
             each<model::Attention>(program, [&](auto& op) { return op.window = op.window == 0 ? window : 0, true; });
             return window != 0 && full;
         }},
        {"embedding not scaled",
         [](model::Program& program) {
             return each<model::Embed>(program, [](auto& op) { return take(op.scale, 1.0F); });
         }},
        {"the other GELU",
         [](model::Program& program) {
             return each<model::FfnAdd>(program, [](auto& op) {
                 if (op.activation == model::Activation::silu) return false;
                 op.activation = op.activation == model::Activation::gelu_erf ? model::Activation::gelu_tanh
                                                                              : model::Activation::gelu_erf;
                 return true;
             });
         }},
        {"FFN reads what attention reads",
         [](model::Program& program) {
             const auto read = std::get<model::Normalize>(program.ops[1]).out;
             return each<model::FfnAdd>(program, [&](auto& op) { return take(op.in, read); });
         }},
        {"serial instead of parallel residual",
         [](model::Program& program) {
             bool changed = false;
             for (auto op = program.ops.begin(); op + 1 != program.ops.end(); ++op) {
                 if (!std::holds_alternative<model::Normalize>(op[0]) ||
                     !std::holds_alternative<model::Normalize>(op[1])) {
                     continue;
                 }
                 std::rotate(op + 1, op + 2, op + 5);  // past Qkv, Attention and ProjectAdd
                 changed = true;
             }
             return changed;
         }},
        {"gate and up exchanged",
         [](model::Program& program) {
             return each<model::FfnAdd>(program, [](auto& op) {
                 if (op.gate.rows == 0) return false;
                 std::swap(op.gate, op.up);
                 return true;
             });
         }},
        {"K and V exchanged",
         [](model::Program& program) {
             return each<model::Qkv>(program, [](auto& op) { return std::swap(op.k, op.v), true; });
         }},
        {"YaRN's factor of Q and K ignored",
         [](model::Program& program) { return take(program.ropes[0].attention_factor, 1.0); }},
        {"YaRN from another original context",
         [](model::Program& program) {
             return program.ropes[0].original_context *= 64, program.ropes[0].scaling == model::RopeScalingKind::yarn;
         }},
        {"norm of latents ignored",
         [](model::Program& program) {
             return each<model::LatentKv>(program, [](auto& op) {
                 return std::fill(op.norm.weight.values.begin(), op.norm.weight.values.end(), 1.0F), true;
             });
         }},
        {"one expert fewer",
         [](model::Program& program) {
             return each<model::MoeAdd>(program, [](auto& op) { return --op.rule.top_k, true; });
         }},
        {"weights of experts not normalized, or normalized",
         [](model::Program& program) {
             return each<model::MoeAdd>(program, [](auto& op) { return op.rule.normalize = !op.rule.normalize, true; });
         }},
        {"scale of experts ignored",
         [](model::Program& program) {
             return each<model::MoeAdd>(program, [](auto& op) { return take(op.rule.scale, 1.0F); });
         }},
        {"the router's other score",
         [](model::Program& program) {
             return each<model::MoeAdd>(program, [](auto& op) {
                 using Score = model::RoutingRule::Score;
                 op.rule.score = op.rule.score == Score::softmax ? Score::sigmoid : Score::softmax;
                 return true;
             });
         }},
        {"bias of the choice ignored",
         [](model::Program& program) {
             return each<model::MoeAdd>(program, [](auto& op) { return take(op.selection_bias.values, {}); });
         }},
        {"experts of all groups",
         [](model::Program& program) {
             return each<model::MoeAdd>(
                 program, [](auto& op) { return take(op.rule.top_groups, op.rule.n_groups) && op.rule.n_groups > 1; });
         }},
        {"experts in the wrong order",
         [](model::Program& program) {
             return each<model::MoeAdd>(program,
                                        [](auto& op) { return std::swap(op.experts[0], op.experts[1]), true; });
         }},
        {"shared experts read the residual",
         [](model::Program& program) {
             bool shared = false;
             for (std::size_t i = 1; i < program.ops.size(); ++i) {
                 auto* ffn = std::get_if<model::FfnAdd>(&program.ops[i]);
                 if (ffn == nullptr || !std::holds_alternative<model::MoeAdd>(program.ops[i - 1])) continue;
                 ffn->in = ffn->out;
                 shared = true;
             }
             return shared;
         }},
        {"values expanded by the rows of keys",
         [](model::Program& program) {
             return each<model::HeadProject>(program, [](auto& op) {
                 op.weight.data -= op.weight.group_rows * op.weight.row_bytes;  // which lie before them
                 return op.weight.group_rows != 0;
             });
         }},
    };
    std::vector<int> caught(mistakes.size());
    double smallest = INFINITY;
    for (const Case& one : testdata_cases()) {
        const auto right = load(one.model);
        const Golden golden(one.golden);
        for (std::size_t i = 0; i < mistakes.size(); ++i) {
            auto wrong = std::make_shared<model::Model>(*right);
            if (!mistakes[i].make(wrong->program)) continue;
            CAPTURE(one.model);
            CAPTURE(mistakes[i].name);
            double error = 0;
            for (const int length : {33, 129}) error = std::max(error, prompt_error(wrong, golden, length));
            CHECK(error > 2 * logit_tolerance);
            smallest = std::min(smallest, error);
            ++caught[i];
        }
    }
    for (std::size_t i = 0; i < mistakes.size(); ++i) {
        CAPTURE(mistakes[i].name);
        CHECK(caught[i] > 0);  // a mistake that no model can make is not tested
    }
    MESSAGE("smallest effect of a mistake: ", smallest);
}
