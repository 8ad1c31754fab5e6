#include "verify/faults.h"

#include <array>

#include "kv/convert.h"

namespace hetero::verify {
namespace {

constexpr std::array<KnownFault, 24> table{{
    {"K and V swapped", undo_parts_swapped},
    {"heads swapped", undo_heads_swapped},
    {"tokens shifted", undo_tokens_shifted},
    {"layout transposed", undo_transposed},
    {"wrong RoPE convention: interleaved pairs against half-split ones", undo_rope_pairing},
    {"RoPE not applied", undo_rope_missing},
    {"RoPE applied twice", undo_rope_twice},
    {"RoPE applied backwards", undo_rope_backwards},
    {"RoPE positions shifted", undo_rope_position},
    {"RoPE with another base", undo_rope_base},
    {"nibbles swapped", undo_nibbles_swapped},
    {"signed codes read as unsigned, or the reverse", undo_code_sign},
    {"f16 read as bf16", undo_f16_as_bf16},
    {"bf16 read as f16", undo_bf16_as_f16},
    {"bytes of 16-bit words swapped", undo_byte_order},
    {"Hadamard rotation not undone", undo_rotation_left},
    {"K and V scales swapped", undo_scales_swapped},
    {"K and V scales merged", undo_scales_merged},
    {"scales shifted by one group", undo_scales_shifted},
    {"scales ignored", undo_scales_ignored},
    {"zero point with the wrong sign", undo_zero_sign},
    {"zero point taken for an integer code", undo_zero_integer},
    {"wrong zero point", undo_zero_offset},
    {"wrong scale", undo_scale_factor},
}};

}  // namespace

std::span<const KnownFault> known_faults() noexcept { return table; }

std::vector<float> Case::decode(const kv::Part& part) const {
    auto values = kv::decode_part(candidate, part, n_tokens, id, first_token);
    return values && values->size() == a.size() ? std::move(*values) : std::vector<float>{};
}

}  // namespace hetero::verify
