// The table of faults that diagnose.h looks for.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/compare.h"
#include "kv/stream.h"
#include "model/rope.h"
#include "verify/diagnose.h"

namespace hetero::verify {

[[nodiscard]] LayerRope rope_of(const model::RopeConfig& config);

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

// Takes what the candidate would be without the fault, [token][head][dim]; empty: it has none.
using Repair = std::function<void(const std::vector<float>& values, std::string detail)>;
inline constexpr float unknown = std::numeric_limits<float>::quiet_NaN();  // a value that cannot be known
struct KnownFault {
    std::string_view name;
    // A fault may have several forms: `repair` is called with each.
    void (*undo)(const Case&, const Repair& repair);
};
// Special ones first: of two that explain an error alike the first is named.
[[nodiscard]] std::span<const KnownFault> known_faults() noexcept;

// By what they undo.
void undo_parts_swapped(const Case&, const Repair&);  // faults_layout.cpp
void undo_heads_swapped(const Case&, const Repair&);
void undo_tokens_shifted(const Case&, const Repair&);
void undo_transposed(const Case&, const Repair&);
void undo_rope_pairing(const Case&, const Repair&);  // faults_rope.cpp
void undo_rope_missing(const Case&, const Repair&);
void undo_rope_twice(const Case&, const Repair&);
void undo_rope_backwards(const Case&, const Repair&);
void undo_rope_position(const Case&, const Repair&);
void undo_rope_base(const Case&, const Repair&);
void undo_nibbles_swapped(const Case&, const Repair&);  // faults_codes.cpp
void undo_code_sign(const Case&, const Repair&);
void undo_f16_as_bf16(const Case&, const Repair&);
void undo_bf16_as_f16(const Case&, const Repair&);
void undo_byte_order(const Case&, const Repair&);
void undo_rotation_left(const Case&, const Repair&);
void undo_scales_swapped(const Case&, const Repair&);  // faults_scales.cpp
void undo_scales_merged(const Case&, const Repair&);
void undo_scales_shifted(const Case&, const Repair&);
void undo_scales_ignored(const Case&, const Repair&);
void undo_zero_sign(const Case&, const Repair&);
void undo_zero_integer(const Case&, const Repair&);
void undo_zero_offset(const Case&, const Repair&);
void undo_scale_factor(const Case&, const Repair&);

}  // namespace hetero::verify
