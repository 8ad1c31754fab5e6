#include "engine/plan.h"

#include <algorithm>
#include <numeric>

#include "engine/aligned.h"

namespace hetero::engine {
namespace {

template <class... Cases>
struct Match : Cases... {
    using Cases::operator()...;
};

// What an op does with registers. Where it writes a part only, what was there is still needed.
struct Uses {
    std::optional<model::Register> reads, writes;
    bool whole = false;  // what was in `writes` before is not needed
};

Uses uses_of(const model::Op& any, const model::Program& program) {
    const auto fills = [&](model::Register out, std::uint64_t elements) {
        return elements == program.registers[out].width;
    };
    return std::visit(
        Match{[&](const model::Embed& op) {
                  return Uses{{}, op.out, fills(op.out, op.table.cols)};
              },
              [&](const model::Normalize& op) {
                  return Uses{op.in, op.out, op.in != op.out};
              },
              [&](const model::Qkv& op) {
                  return Uses{op.in, op.q_out, fills(op.q_out, op.q.rows)};
              },
              [&](const model::LatentKv& op) {
                  return Uses{op.in, op.in, false};
              },
              [&](const model::LatentQuery& op) {
                  return Uses{op.in, op.out, fills(op.out, op.n_heads * program.kv[op.layer].query_dim())};
              },
              [&](const model::Attention& op) {
                  return Uses{op.q, op.out, fills(op.out, op.n_heads * program.kv[op.layer].output_dim())};
              },
              [&](const model::Project& op) {
                  return Uses{op.in, op.out, fills(op.out, op.weight.rows)};
              },
              [&](const model::HeadProject& op) {
                  return Uses{op.in, op.out, fills(op.out, op.weight.rows)};
              },
              [&](const model::ProjectAdd& op) {
                  return Uses{op.in, op.out, false};
              },
              [&](const model::FfnAdd& op) {
                  return Uses{op.in, op.out, false};
              },
              [&](const model::MoeAdd& op) {
                  return Uses{op.in, op.out, false};
              },
              [&](const model::Head& op) {
                  return Uses{op.in, {}, false};
              }},
        any);
}

bool meet(const std::vector<Range>& a, const std::vector<Range>& b) {
    for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
        if (i->begin < j->end && j->begin < i->end) return true;
        if (i->end < j->end) {
            ++i;
        } else {
            ++j;
        }
    }
    return false;
}

}  // namespace

std::optional<model::Register> written_by(const model::Op& op) {
    return std::visit(Match{[](const model::Head&) { return std::optional<model::Register>(); },
                            [](const model::Qkv& one) { return std::optional(one.q_out); },
                            [](const model::LatentKv& one) { return std::optional(one.in); },
                            [](const auto& one) { return std::optional(one.out); }},
                      op);
}

const char* op_name(const model::Op& op) {
    static constexpr const char* names[] = {"embed",        "normalize",    "qkv",     "latent kv",
                                            "latent query", "attention",    "project", "head project",
                                            "project, add", "feed forward", "experts", "head"};
    static_assert(std::size(names) == std::variant_size_v<model::Op>);
    return names[op.index()];
}

std::vector<std::vector<Range>> lives_of(const model::Program& program) {
    std::vector<std::vector<Range>> lives(program.registers.size());
    const auto extend = [&](model::Register index, std::size_t op) {
        std::vector<Range>& ranges = lives[index];
        if (ranges.empty()) ranges.push_back({0, 0});  // read before it is written: needed from the start
        ranges.back().end = op + 1;
    };
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        const Uses uses = uses_of(program.ops[i], program);
        if (uses.reads) extend(*uses.reads, i);
        if (!uses.writes) continue;
        if (uses.whole) {
            lives[*uses.writes].push_back({i, i + 1});
        } else {
            extend(*uses.writes, i);
        }
    }
    return lives;
}

std::vector<Range> lives_of_k(const model::Program& program) {
    std::vector<Range> lives;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        if (!std::holds_alternative<model::Qkv>(program.ops[i])) continue;
        std::size_t reader = i;
        while (reader + 1 < program.ops.size() && !std::holds_alternative<model::Attention>(program.ops[reader])) {
            ++reader;
        }
        lives.push_back({i, reader + 1});
    }
    return lives;
}

Widths widths_of(const model::Program& program) {
    Widths widths;
    const auto widen = [](std::size_t& width, std::size_t to) { width = std::max(width, to); };
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            widen(widths.k, qkv->k.rows);
            widen(widths.v, qkv->v.rows);
        } else if (const auto* project = std::get_if<model::ProjectAdd>(&any)) {
            widen(widths.product, project->weight.rows);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            widen(widths.ffn, ffn->up.rows);
            widen(widths.product, ffn->down.rows);
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            widen(widths.vocab, head->weight.rows);
            widen(widths.hidden, head->weight.cols);
        }
    }
    return widths;
}

std::size_t ops_for_kv(const model::Program& program) {
    std::size_t ops = 0;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        if (std::holds_alternative<model::Attention>(program.ops[i])) ops = i + 1;
    }
    return ops;
}

// Layers are divided where the fewest values are carried from one to the next, as late as possible: after the FFN.
Segments segments_of(const model::Program& program) {
    const std::vector<std::vector<Range>> lives = lives_of(program);
    const auto is_live = [&](std::size_t index, std::size_t before_op) {
        return std::any_of(lives[index].begin(), lives[index].end(),
                           [&](const Range& life) { return life.begin < before_op && before_op < life.end; });
    };
    const auto carried_width = [&](std::size_t before_op) {
        std::size_t width = 0;
        for (std::size_t i = 0; i < lives.size(); ++i) width += is_live(i, before_op) ? program.registers[i].width : 0;
        return width;
    };
    Segments segments;
    std::optional<std::size_t> attended;  // the op after the last attention
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        const bool writes_kv = std::holds_alternative<model::Qkv>(program.ops[i]) ||
                               std::holds_alternative<model::LatentKv>(program.ops[i]);
        if (writes_kv && attended) {
            std::size_t best = *attended;
            for (std::size_t at = best; at <= i; ++at)
                if (carried_width(at) <= carried_width(best)) best = at;
            segments.ends.push_back(best);
            attended.reset();
        }
        if (std::holds_alternative<model::Attention>(program.ops[i])) attended = i + 1;
    }
    for (std::size_t i = 0; i < lives.size(); ++i) {
        if (std::any_of(segments.ends.begin(), segments.ends.end(), [&](std::size_t at) { return is_live(i, at); }))
            segments.carried.push_back(static_cast<model::Register>(i));
    }
    segments.ends.push_back(program.ops.size());
    return segments;
}

std::uint64_t bytes_per_block_token(const model::Program& program) {
    std::uint64_t elements = 0;
    for (const model::Register index : segments_of(program).carried) elements += program.registers[index].width;
    for (const model::RopeConfig& rope : program.ropes) elements += rope.rotary_dim;
    return elements * sizeof(float);
}

Arena arrange(std::span<const Value> values, Exec exec) {
    Arena arena;
    arena.offsets.resize(values.size());
    // The largest first; each at the lowest place where no neighbour in time is.
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values[a].bytes > values[b].bytes; });
    std::vector<std::size_t> placed, taken;
    for (const std::size_t index : order) {
        taken.clear();
        for (const std::size_t other : placed) {
            if (exec == Exec::eager || meet(values[index].lives, values[other].lives)) taken.push_back(other);
        }
        std::sort(taken.begin(), taken.end(),
                  [&](std::size_t a, std::size_t b) { return arena.offsets[a] < arena.offsets[b]; });
        std::size_t offset = 0;
        for (const std::size_t other : taken) {
            if (offset + values[index].bytes <= arena.offsets[other]) break;
            offset = std::max(offset, arena.offsets[other] + round_up(values[other].bytes, 64));
        }
        arena.offsets[index] = offset;
        arena.bytes = std::max(arena.bytes, offset + round_up(values[index].bytes, 64));
        placed.push_back(index);
    }
    return arena;
}

}  // namespace hetero::engine
