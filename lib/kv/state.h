// The KV state: what a model has computed of a prompt, in a form that can cross to another machine.
// It says what it belongs to (identity), whose tokens it stands for (sequences), and how its numbers are stored
// (representation, per layer and part).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "kernels/api/dtype.h"
#include "quant/codec.h"

namespace hetero::kv {

using kernels::DType;

enum class PartId : std::uint8_t { k = 0, v = 1 };

// What a layer keeps of a sequence.
enum class LayerKind : std::uint8_t {
    gqa,  // K and V of every token; MHA and MQA are its ends
    swa,  // the same, of the last `window` tokens only
    mla   // no heads: K is the compressed latent [token][1][head_dim_k], V the RoPE key [token][1][head_dim_v]
};
[[nodiscard]] const char* kind_name(LayerKind kind) noexcept;  // "gqa", "swa", "mla"
[[nodiscard]] std::optional<LayerKind> kind_from_name(std::string_view name) noexcept;
// For messages: "K", "V"; of mla layers "latent", "RoPE key".
[[nodiscard]] const char* part_name(PartId part, LayerKind kind = LayerKind::gqa) noexcept;

// Hard invariants: two sides that differ in any of these must not exchange KV. Compared field by field, so that a
// refusal can name the field and both values.
struct Identity {
    std::string model_id;  // for people; not compared
    std::string arch;      // "llama"
    std::uint32_t n_layers = 0, n_heads = 0, n_kv_heads = 0;
    std::uint32_t head_dim_k = 0, head_dim_v = 0;
    std::uint32_t vocab_size = 0;
    std::uint32_t context_length = 0;
    double rope_theta = 0;
    std::string rope_scaling = "none";  // canonical JSON of the scaling, or "none"
    bool rope_applied = true;           // K is stored after RoPE, half-split pairs
    Digest arch_digest{};  // SHA-256 over the canonical text of every config value that changes the arithmetic
    Digest tokenizer_digest{};
    Digest lineage{};         // names the source weights; the same for every precision made from them
    Digest weights_digest{};  // names these very weights; recorded and reported, may differ
    [[nodiscard]] std::uint32_t head_dim(PartId part) const noexcept {
        return part == PartId::k ? head_dim_k : head_dim_v;
    }
};

// One difference of two identities: "rope_theta: 100000 here, 10000 there".
struct Mismatch {
    std::string field, left, right;
};
// Hard differences only. Empty: the two belong together.
[[nodiscard]] std::vector<Mismatch> compare(const Identity& left, const Identity& right);
// "rope_theta: LEFT has 100000, RIGHT 10000; arch: ...", fit for a terminal.
[[nodiscard]] std::string to_text(const std::vector<Mismatch>& mismatches, std::string_view left,
                                  std::string_view right);
// SHA-256 over the canonical text of all hard fields; the text is defined in hetero-kv(5).
[[nodiscard]] Digest compat_hash(const Identity& identity);

// How the numbers of one part are stored.
struct Scheme {
    std::string codec = "f16";        // name in the codec registry (quant/codec.h): "f16", "int8", ...
    quant::Params params;             // of quantized codecs; default-constructed for others
    DType source_dtype = DType::f16;  // what was quantized; equals the value dtype for unquantized codecs
    // Of quantized codecs: the first and the last stored tokens that are kept as they were, in source_dtype. Groups
    // count from the first token after the sinks.
    std::uint32_t sinks = 0, window = 0;
    [[nodiscard]] bool keeps_rows() const noexcept { return sinks != 0 || window != 0; }
    friend bool operator==(const Scheme&, const Scheme&) = default;
};

// How the stored tokens of a part divide.
struct KeptRows {
    std::uint64_t sinks = 0, middle = 0, tail = 0;
};
[[nodiscard]] KeptRows kept_rows(const Scheme& scheme, std::uint64_t n_tokens) noexcept;

// A typed array, row-major. The bytes are little-endian.
struct Tensor {
    DType dtype = DType::f16;
    std::vector<std::uint64_t> shape;
    std::vector<std::byte> bytes;
    [[nodiscard]] bool empty() const noexcept { return shape.empty(); }
    [[nodiscard]] std::uint64_t elements() const noexcept;
};

// K or V of one layer and sequence.
struct Part {
    Scheme scheme;
    Tensor values;      // [token][stored kv_head][head_dim, or bytes of packed codes], of the tokens that are not kept
    Tensor scale;       // of codecs that have one: Codec::scale_shape, groups counted from the first of these tokens
    Tensor zero;        // asymmetric: as scale
    Tensor sink, tail;  // [token][stored kv_head][head_dim] of source_dtype: kept as they were; empty where none are
};
inline constexpr Tensor Part::*part_arrays[] = {&Part::values, &Part::scale, &Part::zero, &Part::sink, &Part::tail};

struct LayerShape {
    LayerKind kind = LayerKind::gqa;
    std::uint32_t window = 0;  // of swa: tokens that a query sees, its own included; else 0
    // The first token whose K and V are stored, of a sequence of n_tokens; one more than the next query sees, so that
    // the last position can be computed anew.
    [[nodiscard]] std::uint64_t first_token(std::uint64_t n_tokens) const noexcept {
        return kind == LayerKind::swa && n_tokens > window ? n_tokens - window : 0;
    }
    // Whether a cache that holds tokens from `first` on can go back to `n_tokens`: what the next query sees is there.
    [[nodiscard]] bool can_go_back(std::uint64_t first, std::uint64_t n_tokens) const noexcept {
        return first == 0 || n_tokens + 1 >= first + window;
    }
    [[nodiscard]] std::uint64_t stored_tokens(std::uint64_t n_tokens) const noexcept {
        return n_tokens - first_token(n_tokens);
    }
    // Whether a cache of this shape can be filled from a layer that is stored as `stored`: a window sees of all tokens
    // what it needs.
    [[nodiscard]] bool takes(const LayerShape& stored) const noexcept {
        return stored == *this || (kind == LayerKind::swa && stored == LayerShape{});
    }
    friend bool operator==(const LayerShape&, const LayerShape&) = default;
};
[[nodiscard]] std::string to_text(const LayerShape& shape);  // "gqa", "swa (window 512)": for messages
// The layers that differ, as one mismatch that names the first of them; empty lists stand for gqa in every layer.
[[nodiscard]] std::vector<Mismatch> compare(const std::vector<LayerShape>& left, const std::vector<LayerShape>& right);

inline constexpr std::uint32_t max_ranks = 1U << 16;  // of tensor parallelism

// Which KV heads of a whole state this one holds: those of one rank under tensor parallelism. Ranges of different ranks
// overlap where there are more ranks than KV heads. Layers without heads (mla) are whole in every shard.
struct Shard {
    std::uint32_t tp_size = 1, tp_rank = 0;
    std::uint32_t head_first = 0, head_count = 0;  // head_count 0: all heads (tp_size is 1 then)
    friend bool operator==(const Shard&, const Shard&) = default;
};

struct VerifiedPieces;  // kv/integrity.h

struct Layer {
    Part k, v;
    // The checksums of these bytes, of whoever has compared them: the next one that needs them does not compute them
    // again. Null: not known; whoever changes the bytes says so.
    std::shared_ptr<const VerifiedPieces> verified;
    [[nodiscard]] Part& part(PartId id) noexcept { return id == PartId::k ? k : v; }
    [[nodiscard]] const Part& part(PartId id) const noexcept { return id == PartId::k ? k : v; }
};

struct Sequence {
    std::string id = "0";
    std::vector<std::int32_t> tokens;  // whose KV is stored: position i holds tokens[i]
    std::int32_t pending_token = -1;   // chosen by the sampler, KV not computed yet; -1: none
    bool special_parsed = false;       // special-token text in the prompt was parsed
    std::vector<float> logits;         // at the last position [vocab_size]; empty: not stored
    [[nodiscard]] std::uint64_t next_position() const noexcept { return tokens.size(); }
};

// One line of the state's history. Never holds prompt text.
struct ProvenanceEntry {
    std::string tool, version, what;  // what: "prefill kv_dtype=f16", "quantize int8 axis=token group=64"
};

// All that is known before the first layer comes.
struct Header {
    Identity identity;
    std::vector<Sequence> sequences;
    // scheme[part] of every layer and sequence: a state has one scheme for K and one for V in each layer
    std::vector<Scheme> k_schemes, v_schemes;  // [n_layers]
    std::vector<LayerShape> layer_shapes;      // [n_layers]; empty: all gqa
    Shard shard;
    std::vector<ProvenanceEntry> provenance;
    std::uint32_t tokens_per_chunk =
        0;  // chunk = checksum unit; 0: the writer chooses (1..4 MiB, multiple of the channel groups)
    // The state is read or written while it is computed: logits and pending tokens come after the last layer, from
    // Source::finish() and to Sink::complete(). Until then no sequence has any.
    bool late_logits = false;
    void take_logits_of(const Header& complete);  // and pending tokens, of the sequences with the same ids
    [[nodiscard]] const std::vector<Scheme>& schemes(PartId part) const noexcept {
        return part == PartId::k ? k_schemes : v_schemes;
    }
    [[nodiscard]] std::vector<Scheme>& schemes(PartId part) noexcept {
        return part == PartId::k ? k_schemes : v_schemes;
    }
    [[nodiscard]] const Scheme& scheme(std::size_t layer, PartId part) const { return schemes(part)[layer]; }
    [[nodiscard]] LayerShape layer_shape(std::size_t layer) const {
        return layer_shapes.empty() ? LayerShape{} : layer_shapes[layer];
    }
    [[nodiscard]] std::uint32_t stored_heads() const noexcept {  // of identity.n_kv_heads
        return shard.head_count == 0 ? identity.n_kv_heads : shard.head_count;
    }
    [[nodiscard]] bool is_shard() const noexcept { return shard.tp_size > 1; }
    [[nodiscard]] bool keeps_rows() const noexcept;  // some scheme has sinks or a window
    [[nodiscard]] bool all_gqa() const noexcept;
    // Rows of the layer's arrays, and the token of the first of them.
    [[nodiscard]] std::uint64_t stored_tokens(std::size_t sequence, std::size_t layer) const {
        return layer_shape(layer).stored_tokens(sequences[sequence].tokens.size());
    }
    [[nodiscard]] std::uint64_t first_token(std::size_t sequence, std::size_t layer) const {
        return layer_shape(layer).first_token(sequences[sequence].tokens.size());
    }
    [[nodiscard]] const char* part_name(std::size_t layer, PartId part) const {  // for messages
        return kv::part_name(part, layer_shape(layer).kind);
    }
    [[nodiscard]] std::uint64_t payload_bytes() const;  // of all layers: values, scales, zeros
};

// What the numbers of a state came from: a float type that holds all of them exactly; f16 where there are no layers.
[[nodiscard]] DType source_dtype(const Header& header);

// Shapes that a part of `header` must have; readers check every layer against it. `n_tokens` counts those that the
// layer stores: Header::stored_tokens.
[[nodiscard]] std::vector<std::uint64_t> values_shape(const Header& header, const Scheme& scheme,
                                                      std::uint64_t n_tokens, PartId part);
[[nodiscard]] std::vector<std::uint64_t> scale_shape(const Header& header, const Scheme& scheme, std::uint64_t n_tokens,
                                                     PartId part);
// Of sink or tail, which has `rows` tokens; {} where the scheme keeps none (`kept` is 0).
[[nodiscard]] std::vector<std::uint64_t> kept_shape(const Header& header, std::uint32_t kept, std::uint64_t rows,
                                                    PartId part);
// Values, scales, zeros and kept tokens of a part in bytes. 0 where the codec is not known.
[[nodiscard]] std::uint64_t part_bytes(const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId part);
// A part of these shapes, zeroed. The codec refuses the scheme: its error; no memory: resource.
Result<Part> allocate_part(const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId id);
// The same out of a part whose memory is used again: what its bytes are is not said.
Status reshape_part(Part& part, const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId id);
// Ranges of names and counts; a part of check_header().
[[nodiscard]] Status check_identity(const Identity& identity);
// Consistency of the header with itself: ranges, counts, ids, positions within the context, layer shapes, heads of the
// shard, chunk against groups.
[[nodiscard]] Status check_header(const Header& header);
// Shape, dtype and byte counts of a layer against the header.
[[nodiscard]] Status check_layer(const Header& header, std::size_t sequence, std::size_t layer, const Layer& value);

}  // namespace hetero::kv
