// Plans of states with layers of each kind, and of mixtures. Two sequences: one beyond the window of 4, one within.
#pragma once
#include <map>

#include "states.h"

namespace hetero::test {

inline std::map<std::string, Plan> kind_plans() {
    const kv::LayerShape gqa{}, swa{kv::LayerKind::swa, 4}, mla{kv::LayerKind::mla, 0};
    std::map<std::string, Plan> plans;
    const auto add = [&](const char* name, std::uint32_t n_kv_heads, std::vector<kv::LayerShape> shapes) {
        Plan& plan = plans[name];
        plan.n_layers = static_cast<std::uint32_t>(shapes.size());
        plan.n_kv_heads = n_kv_heads;
        plan.head_dim_k = 12;
        plan.head_dim_v = 6;
        plan.lengths = {11, 3};
        plan.shapes = std::move(shapes);
    };
    add("gqa", 2, {gqa, gqa});
    add("swa", 2, {swa, swa});
    add("mla", 1, {mla, mla});
    add("swa and gqa", 2, {swa, swa, gqa});
    add("mla and swa", 1, {mla, swa});
    return plans;
}
// As small as one with a window that forgets and a latent can be; of a shard.
inline kv::State small_kinds() {
    Plan plan;
    plan.n_kv_heads = 1;
    plan.head_dim_k = 4;
    plan.head_dim_v = 2;
    plan.lengths = {3};
    plan.vocab_size = 20;
    plan.logits = false;
    plan.shapes = {{kv::LayerKind::swa, 2}, {kv::LayerKind::mla, 0}};
    plan.shard = {2, 1, 0, 1};
    plan.v = int8_scheme(quant::Axis::channel, 2, true);
    plan.tokens_per_chunk = 2;
    return make_state(plan);
}

inline Plan kind_plan(const std::string& name) { return kind_plans().at(name); }

}  // namespace hetero::test
