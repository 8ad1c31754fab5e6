// Element-wise comparison of two KV states. NaN never passes.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/stream.h"

namespace hetero::kv {

struct Location {
    std::string sequence;
    std::uint32_t layer = 0;
    LayerKind kind = LayerKind::gqa;
    PartId part = PartId::k;
    std::uint64_t token = 0;          // of the sequence, whatever the layer's first stored token is
    std::uint32_t head = 0, dim = 0;  // head: of the whole state, whatever shard is read
};

// Of the value `index` in [stored token][stored kv_head][head_dim].
[[nodiscard]] Location locate(const Header& header, std::size_t sequence, std::uint32_t layer, PartId part,
                              std::uint64_t index);

// One KV head of a part, over all tokens. Errors are b - a.
struct HeadDifference {
    std::uint32_t head = 0;  // of the whole state
    double max_abs = 0;
    std::uint64_t worst_token = 0;  // of the sequence: where max_abs is reached
    std::uint32_t worst_dim = 0;
    double rms = 0;          // root of the mean square of the errors
    double relative_l2 = 0;  // rms over the root of the mean square of a; 0 where both are zero
    double cosine = 1;       // 1 where both are zero
    // The channel (one dim over all tokens) with the largest rms, and the same figures of it.
    std::uint32_t worst_channel = 0;
    double channel_rms = 0, channel_relative_l2 = 0;
};

struct PartDifference {
    std::string sequence;
    std::uint32_t layer = 0;
    LayerKind kind = LayerKind::gqa;
    PartId part = PartId::k;
    std::uint64_t elements = 0;
    double max_abs = 0, mean_abs = 0, rms = 0;
    double relative_l2 = 0;  // |a - b|_2 / |a|_2; 0 where both are zero
    double cosine = 1;       // 1 where both are zero
    bool bit_equal = true;
    std::vector<HeadDifference> heads;  // [stored kv_head]
};

struct Comparison {
    std::vector<Mismatch> mismatches;   // hard differences of the identities, of layer shapes, shards, tokens
                                        // ("tokens[4]") and pending_token
    std::vector<PartDifference> parts;  // in order of sequence, layer, part
    double max_abs = 0;
    double p99_abs = 0;  // nearest rank: one of the differences
    Location worst;
    std::optional<Location>
        first_difference;  // in order of sequence, layer, part (V before K never: K, then V), token, head, dim
    std::optional<Location> first_nonfinite;  // NaN on any side, infinity on one side (on both: equal, unless NaN)
    std::string nonfinite_what;               // "NaN in b", "NaN in both", "infinity in a"
    // Of the stored logits, from which the first token is chosen; 0 where a side has none.
    double logits_max_abs = 0;
    double logits_max_abs_dp = 0;  // of the probabilities that they give
    std::string logits_worst;      // "sequence 0, token 17"; empty where all are equal
};

// One layer of both states, just compared.
struct ComparedLayer {
    std::size_t sequence = 0;  // of a
    std::uint32_t layer = 0;
    const Layer &a, &b;
    std::span<const PartDifference> parts;  // K, V
};

// Reads both to the end, layer by layer. States whose shapes differ are not comparable (bad_input); differing
// identities and kinds of layers are listed and equal shapes compared all the same. Sequences are paired by id.
// NaN and infinities that do not pass count as an infinite difference in max_abs and p99_abs; the other
// figures leave them out. `on_layer` (may be empty) sees the layers as they come; an error from it ends the comparison.
Result<Comparison> compare_states(Source& a, Source& b, bool allow_equal_nan,
                                  const std::function<Status(const ComparedLayer&)>& on_layer = {});

}  // namespace hetero::kv
