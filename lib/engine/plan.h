// Where the values of a forward pass lie. Two ways to run one list of ops, with the same bits: eager gives every
// register memory of its own and looks at it after each op; graph plans once which values are never needed together,
// and gives these the same memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/share.h"
#include "model/program.h"

namespace hetero::engine {

enum class Exec : std::uint8_t { graph, eager };

// The register that an op writes; none where it writes none.
[[nodiscard]] std::optional<model::Register> written_by(const model::Op& op);
[[nodiscard]] const char* op_name(const model::Op& op);  // "qkv"

// From where to where in the list of ops each register holds a value that is still needed: [register], ascending ranges
// [first op, last op + 1).
[[nodiscard]] std::vector<std::vector<Range>> lives_of(const model::Program& program);

// Of K alone, from where it is computed to where attention has read it: some codecs store it only when attention has
// seen what was there before.
[[nodiscard]] std::vector<Range> lives_of_k(const model::Program& program);

// The widest of what ops work on beside registers: elements per token.
struct Widths {
    std::size_t k = 0, v = 0, ffn = 0, product = 0, vocab = 0, hidden = 0;  // hidden: of the head's input
};
[[nodiscard]] Widths widths_of(const model::Program& program);

inline constexpr std::size_t head_block_tokens = 32;  // logits computed together: bounds the [tokens][vocab] buffer

// Ops after so many only serve logits.
[[nodiscard]] std::size_t ops_for_kv(const model::Program& program);

// Where the ops are divided so that many tokens pass a layer, chunk by chunk, before the next one begins, and the
// registers that hold a value there.
struct Segments {
    std::vector<std::size_t> ends;  // one past the last op of each
    std::vector<model::Register> carried;
};
[[nodiscard]] Segments segments_of(const model::Program& program);
// What a token takes that is carried so.
[[nodiscard]] std::uint64_t bytes_per_block_token(const model::Program& program);

struct Value {
    std::size_t bytes = 0;
    std::vector<Range> lives;
};
struct Arena {
    std::vector<std::size_t> offsets;  // [value], bytes; multiples of 64
    std::size_t bytes = 0;
};
// Values whose lives meet do not overlap; with Exec::eager, none do.
[[nodiscard]] Arena arrange(std::span<const Value> values, Exec exec);

}  // namespace hetero::engine
