// The table of faults that diagnose.h looks for.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/compare.h"
#include "kv/stream.h"
#include "verify/diagnose.h"

namespace hetero::verify {

// A part with a large error.
struct Case {
    const kv::Header &reference, &candidate;
    const kv::ComparedLayer& layer;
    kv::PartId id;
    std::uint64_t n_tokens, first_token;  // stored
    std::uint32_t heads, dim;
    std::span<const float> a, b;  // [token][head][dim] of the reference and of the candidate, decoded
    const LayerRope* rope;        // null: the part is not rotated, or it is not known how

    [[nodiscard]] const kv::Part& part() const { return layer.b.part(id); }  // of the candidate
    [[nodiscard]] const kv::Part& other() const {
        return layer.b.part(id == kv::PartId::k ? kv::PartId::v : kv::PartId::k);
    }
    // The candidate's values if they were stored as `part` has them; empty where it cannot be decoded.
    [[nodiscard]] std::vector<float> decode(const kv::Part& part) const;
};

// What the candidate would be without the fault. NaN: cannot be known.
struct Repair {
    std::vector<float> values;  // [token][head][dim]; empty: no candidate
    std::string detail;
};

// Repairs come one after the other: a fault may have several forms.
using Repairs = std::vector<Repair>;
struct KnownFault {
    std::string_view name;
    Repairs (*repairs)(const Case&);
};
// Special ones first: of two that explain an error alike the first is named.
[[nodiscard]] std::span<const KnownFault> known_faults() noexcept;

// The repairs, by what they undo.
Repairs undo_parts_swapped(const Case&);  // faults_layout.cpp
Repairs undo_heads_swapped(const Case&);
Repairs undo_tokens_shifted(const Case&);
Repairs undo_transposed(const Case&);
Repairs undo_rope_pairing(const Case&);  // faults_rope.cpp
Repairs undo_rope_missing(const Case&);
Repairs undo_rope_twice(const Case&);
Repairs undo_rope_backwards(const Case&);
Repairs undo_rope_position(const Case&);
Repairs undo_rope_base(const Case&);
Repairs undo_nibbles_swapped(const Case&);  // faults_codes.cpp
Repairs undo_code_sign(const Case&);
Repairs undo_f16_as_bf16(const Case&);
Repairs undo_bf16_as_f16(const Case&);
Repairs undo_byte_order(const Case&);
Repairs undo_rotation_left(const Case&);
Repairs undo_scales_swapped(const Case&);  // faults_scales.cpp
Repairs undo_scales_merged(const Case&);
Repairs undo_scales_shifted(const Case&);
Repairs undo_scales_ignored(const Case&);
Repairs undo_zero_sign(const Case&);
Repairs undo_zero_integer(const Case&);
Repairs undo_zero_offset(const Case&);
Repairs undo_scale_factor(const Case&);

}  // namespace hetero::verify
