#include "transport/messages.h"

#include <algorithm>

#include "base/printable.h"
#include "kv/canonical.h"
#include "kv/file_layout.h"
#include "transport/wire_bytes.h"

namespace hetero::transport {
namespace {

constexpr std::size_t max_reason_bytes = 4096;
constexpr unsigned symmetric_bit = 1, hadamard_bit = 2, kept_bit = 4;  // of a scheme
constexpr unsigned scheme_bits = symmetric_bit | hadamard_bit | kept_bit;
constexpr unsigned most_axis = static_cast<unsigned>(quant::Axis::tensor);
constexpr unsigned most_kind = static_cast<unsigned>(kv::LayerKind::mla);
constexpr unsigned late_logits_bit = 1;  // of OFFER

tl::unexpected<Error> malformed(const char* what) { return fail(Errc::peer, "{} is malformed", what); }

std::vector<std::byte> encode_number(std::uint64_t value) {
    ByteWriter out;
    out.number(value);
    return out.take();
}

// A payload of nothing else.
std::optional<std::uint64_t> decode_number(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    const auto value = in.number<std::uint64_t>();
    return in.complete() ? std::optional(value) : std::nullopt;
}

bool known_code(std::uint8_t code) { return (code >= 1 && code <= 5) || code == 70; }

void put_scheme(ByteWriter& out, const kv::Scheme& scheme) {
    out.text(scheme.codec);
    out.number(static_cast<std::uint8_t>(scheme.params.axis));
    out.number(static_cast<std::uint8_t>((scheme.params.symmetric ? symmetric_bit : 0) |
                                         (scheme.params.hadamard ? hadamard_bit : 0) |
                                         (scheme.keeps_rows() ? kept_bit : 0)));
    out.number(scheme.params.group);
    out.text(kernels::dtype_info(scheme.params.scale_dtype).name);
    out.text(kernels::dtype_info(scheme.source_dtype).name);
    if (!scheme.keeps_rows()) return;
    out.number(scheme.sinks);
    out.number(scheme.window);
}

// What a newer sender may name, and this side cannot store.
template <class Value, class Known>
tl::unexpected<Error> unknown(std::string_view what, const Value& offered, const Known& known) {
    return fail(Errc::bad_input, "{} {} is offered, known here: {}", what, offered, known);
}

Result<kv::DType> take_dtype(ByteReader& in) {
    const std::string name = in.text(64);
    if (!in.ok()) return malformed("OFFER");
    if (const auto type = kernels::dtype_from_name(name)) return *type;
    return unknown("element type", printable(name), "f32, f16, bf16");
}

Result<kv::Scheme> take_scheme(ByteReader& in) {
    kv::Scheme scheme;
    scheme.codec = in.text(64);
    const auto axis = in.number<std::uint8_t>();
    const auto bits = in.number<std::uint8_t>();
    scheme.params.symmetric = (bits & symmetric_bit) != 0;
    scheme.params.hadamard = (bits & hadamard_bit) != 0;
    scheme.params.group = in.number<std::uint32_t>();
    if (!in.ok()) return malformed("OFFER");
    if (quant::find_codec(scheme.codec) == nullptr)
        return unknown("codec", printable(scheme.codec), quant::codec_names());
    if (axis > most_axis) return unknown("scheme axis", axis, fmt::format("0 to {}", most_axis));
    if ((bits & ~scheme_bits) != 0) return unknown("scheme bits", bits, fmt::format("those of {}", scheme_bits));
    scheme.params.axis = static_cast<quant::Axis>(axis);
    HETERO_TRY(scheme.params.scale_dtype, take_dtype(in));
    HETERO_TRY(scheme.source_dtype, take_dtype(in));
    if ((bits & kept_bit) != 0) {
        scheme.sinks = in.number<std::uint32_t>();
        scheme.window = in.number<std::uint32_t>();
    }
    return scheme;
}

void put_identity(ByteWriter& out, const kv::Identity& id) {
    out.text(id.model_id);
    out.text(id.arch);
    for (const std::uint32_t value :
         {id.n_layers, id.n_heads, id.n_kv_heads, id.head_dim_k, id.head_dim_v, id.vocab_size, id.context_length})
        out.number(value);
    out.f64(id.rope_theta);
    out.text(id.rope_scaling);
    out.number(static_cast<std::uint8_t>(id.rope_applied));
    for (const Digest* digest : {&id.arch_digest, &id.tokenizer_digest, &id.lineage, &id.weights_digest})
        out.digest(*digest);
}

kv::Identity take_identity(ByteReader& in) {
    kv::Identity id;
    id.model_id = in.text();
    id.arch = in.text();
    for (std::uint32_t* value : {&id.n_layers, &id.n_heads, &id.n_kv_heads, &id.head_dim_k, &id.head_dim_v,
                                 &id.vocab_size, &id.context_length})
        *value = in.number<std::uint32_t>();
    id.rope_theta = in.f64();
    id.rope_scaling = in.text();
    id.rope_applied = in.flag();
    for (Digest* digest : {&id.arch_digest, &id.tokenizer_digest, &id.lineage, &id.weights_digest})
        *digest = in.digest();
    return id;
}

void put_shapes(ByteWriter& out, const kv::Header& header) {
    out.number(static_cast<std::uint32_t>(header.layer_shapes.size()));
    for (const kv::LayerShape& shape : header.layer_shapes) {
        out.number(static_cast<std::uint8_t>(shape.kind));
        out.number(shape.window);
    }
    for (const std::uint32_t value :
         {header.shard.tp_size, header.shard.tp_rank, header.shard.head_first, header.shard.head_count})
        out.number(value);
}

Status take_shapes(ByteReader& in, kv::Header& header) {
    const auto count = in.number<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
        kv::LayerShape& shape = header.layer_shapes.emplace_back();
        const auto kind = in.number<std::uint8_t>();
        if (kind > most_kind) return unknown("layer kind", kind, fmt::format("0 to {}", most_kind));
        shape.kind = static_cast<kv::LayerKind>(kind);
        shape.window = in.number<std::uint32_t>();
    }
    for (std::uint32_t* value :
         {&header.shard.tp_size, &header.shard.tp_rank, &header.shard.head_first, &header.shard.head_count})
        *value = in.number<std::uint32_t>();
    return {};
}

Result<kv::Header> take_header(ByteReader& in, std::uint16_t version) {
    kv::Header header;
    header.identity = take_identity(in);
    header.tokens_per_chunk = in.number<std::uint32_t>();

    const auto n_sequences = in.number<std::uint32_t>();
    for (std::uint32_t i = 0; i < n_sequences && in.ok(); ++i) {
        kv::Sequence& sequence = header.sequences.emplace_back();
        sequence.id = in.text();
        sequence.pending_token = std::bit_cast<std::int32_t>(in.number<std::uint32_t>());
        sequence.special_parsed = in.flag();
        sequence.tokens = in.array<std::int32_t>(in.number<std::uint64_t>());
        sequence.logits = in.array<float>(in.number<std::uint64_t>());
    }
    for (auto* schemes : {&header.k_schemes, &header.v_schemes}) {
        const auto count = in.number<std::uint32_t>();
        for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
            HETERO_TRY(kv::Scheme scheme, take_scheme(in));
            schemes->push_back(std::move(scheme));
        }
    }
    const auto n_entries = in.number<std::uint32_t>();
    for (std::uint32_t i = 0; i < n_entries && in.ok(); ++i) {
        kv::ProvenanceEntry& entry = header.provenance.emplace_back();
        entry.tool = in.text();
        entry.version = in.text();
        entry.what = in.text();
    }
    if (version >= 2) HETERO_CHECK(take_shapes(in, header));
    return header;
}

}  // namespace

std::uint16_t protocol_version_of(const kv::Header& header) noexcept {
    if (header.late_logits) return 3;
    return kv::layout::schema_minor_of(header) == 0 ? 1 : 2;
}

Digest state_key(const kv::Header& header) {
    kv::Header without = header;
    without.tokens_per_chunk = 0;
    for (kv::Sequence& sequence : without.sequences) sequence.logits.clear();
    return sha256("hetero-wire-state 1\n" + kv::header_text(without));
}

std::vector<std::byte> encode(const Hello& hello) {
    ByteWriter out;
    out.number(hello.min_version);
    out.number(hello.max_version);
    out.number(static_cast<std::uint8_t>(hello.role));
    out.digest(hello.compat_hash);
    out.text(hello.program);
    return out.take();
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    Hello hello;
    hello.min_version = in.number<std::uint16_t>();
    hello.max_version = in.number<std::uint16_t>();
    const auto role = in.number<std::uint8_t>();
    hello.compat_hash = in.digest();
    hello.program = printable(in.text(256), 256);
    if (!in.ok() || hello.min_version > hello.max_version || role > 1) return malformed("HELLO");
    hello.role = static_cast<WireRole>(role);
    return hello;
}

std::vector<std::byte> encode(const Error& reason) {
    ByteWriter out;
    out.number(static_cast<std::uint8_t>(reason.code));
    out.text(printable(std::string_view(reason.message).substr(0, max_reason_bytes), max_reason_bytes));
    return out.take();
}

Result<Error> decode_reason(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    const auto code = in.number<std::uint8_t>();
    const std::string text = printable(in.text(max_reason_bytes), max_reason_bytes);
    if (!in.ok() || !known_code(code)) return malformed("the peer's reason for giving up");
    return Error{static_cast<Errc>(code), text};
}

std::vector<std::byte> encode(const Offer& offer) { return encode(offer, protocol_version_of(offer.header)); }

std::vector<std::byte> encode(const Offer& offer, std::uint16_t version) {
    const kv::Header& header = offer.header;
    ByteWriter out;
    out.number(offer.payload_bytes);
    put_identity(out, header.identity);
    out.number(header.tokens_per_chunk);
    out.number(static_cast<std::uint32_t>(header.sequences.size()));
    for (const kv::Sequence& sequence : header.sequences) {
        out.text(sequence.id);
        out.number(std::bit_cast<std::uint32_t>(sequence.pending_token));
        out.number(static_cast<std::uint8_t>(sequence.special_parsed));
        out.number(static_cast<std::uint64_t>(sequence.tokens.size()));
        out.array(sequence.tokens);
        out.number(static_cast<std::uint64_t>(sequence.logits.size()));
        out.array(sequence.logits);
    }
    for (const auto* schemes : {&header.k_schemes, &header.v_schemes}) {
        out.number(static_cast<std::uint32_t>(schemes->size()));
        for (const kv::Scheme& scheme : *schemes) put_scheme(out, scheme);
    }
    out.number(static_cast<std::uint32_t>(header.provenance.size()));
    for (const kv::ProvenanceEntry& entry : header.provenance) {
        out.text(entry.tool);
        out.text(entry.version);
        out.text(entry.what);
    }
    if (version >= 2) put_shapes(out, header);
    if (version >= 3) {
        out.number(static_cast<std::uint8_t>(header.late_logits ? late_logits_bit : 0));
        out.digest(offer.state_key);
    }
    return out.take();
}

Result<Offer> decode_offer(std::span<const std::byte> bytes, std::uint16_t version) {
    ByteReader in(bytes);
    Offer offer;
    offer.payload_bytes = in.number<std::uint64_t>();
    HETERO_TRY(offer.header, take_header(in, version));
    if (version >= 3) {
        const auto flags = in.number<std::uint8_t>();
        if ((flags & ~late_logits_bit) != 0) return malformed("OFFER");
        offer.header.late_logits = (flags & late_logits_bit) != 0;
        offer.state_key = in.digest();
    }
    if (!in.complete()) return malformed("OFFER");
    if (offer.header.late_logits && std::any_of(offer.header.sequences.begin(), offer.header.sequences.end(),
                                                [](const kv::Sequence& one) { return !one.logits.empty(); }))
        return fail(Errc::peer, "OFFER has logits, and says that they come with COMMIT");
    if (offer.header.tokens_per_chunk == 0) return fail(Errc::peer, "OFFER does not say the chunk length");
    if (const Status checked = kv::check_header(offer.header); !checked) {
        return fail(Errc::peer, "OFFER: {}", checked.error().message);
    }
    if (const std::uint64_t expected = offer.header.payload_bytes(); expected != offer.payload_bytes)
        return fail(Errc::peer, "OFFER announces {} bytes, its header makes {}", offer.payload_bytes, expected);
    return offer;
}

std::vector<std::byte> encode(const Accept& accept, std::uint16_t version) {
    ByteWriter out;
    out.number(accept.layers);
    if (version < 3) return out.take();
    out.number(static_cast<std::uint32_t>(accept.held.size()));
    for (const HeldPieces& range : accept.held) {
        out.number(range.first);
        out.number(static_cast<std::uint64_t>(range.crcs.size()));
        out.array(range.crcs);
    }
    return out.take();
}

Result<Accept> decode_accept(std::span<const std::byte> bytes, std::uint16_t version, std::uint64_t total_pieces) {
    ByteReader in(bytes);
    Accept accept;
    accept.layers = in.number<std::uint64_t>();
    const std::uint32_t ranges = version < 3 ? 0 : in.number<std::uint32_t>();
    std::uint64_t end = 0;  // of the range before
    for (std::uint32_t i = 0; i < ranges && in.ok(); ++i) {
        HeldPieces& range = accept.held.emplace_back();
        range.first = in.number<std::uint64_t>();
        const auto count = in.number<std::uint64_t>();
        range.crcs = in.array<std::uint32_t>(count);
        if (!in.ok()) break;
        if (count == 0 || range.first < end || range.first > total_pieces || count > total_pieces - range.first)
            return fail(Errc::peer, "ACCEPT holds {} pieces from {} on, after {}, of {}", count, range.first, end,
                        total_pieces);
        end = range.first + count;
    }
    if (!in.complete()) return malformed("ACCEPT");
    return accept;
}

std::vector<std::byte> encode_keep(std::uint64_t pieces) { return encode_number(pieces); }

Result<std::uint64_t> decode_keep(std::span<const std::byte> bytes) {
    const auto pieces = decode_number(bytes);
    if (!pieces || *pieces == 0) return malformed("KEEP");
    return *pieces;
}

std::vector<std::byte> encode(const Commit& commit) {
    ByteWriter out;
    out.digest(commit.root);
    for (std::size_t i = 0; i < commit.logits.size(); ++i) {
        const std::int32_t pending = i < commit.pending_tokens.size() ? commit.pending_tokens[i] : -1;
        out.number(std::bit_cast<std::uint32_t>(pending));
        out.number(static_cast<std::uint64_t>(commit.logits[i].size()));
        out.array(commit.logits[i]);
    }
    return out.take();
}

Commit commit_of(const Digest& root, const kv::Header& header) {
    Commit commit{root, {}, {}};
    for (const kv::Sequence& sequence : header.sequences) {
        commit.logits.push_back(sequence.logits);
        commit.pending_tokens.push_back(sequence.pending_token);
    }
    return commit;
}

void take_late(Commit commit, kv::Header& header) {
    for (std::size_t i = 0; i < commit.logits.size(); ++i) {
        header.sequences[i].logits = std::move(commit.logits[i]);
        if (commit.pending_tokens[i] >= 0) header.sequences[i].pending_token = commit.pending_tokens[i];
    }
    header.late_logits = false;
}

Result<Commit> decode_commit(std::span<const std::byte> bytes, std::size_t sequences) {
    ByteReader in(bytes);
    Commit commit;
    commit.root = in.digest();
    for (std::size_t i = 0; i < sequences && in.ok(); ++i) {
        commit.pending_tokens.push_back(std::bit_cast<std::int32_t>(in.number<std::uint32_t>()));
        commit.logits.push_back(in.array<float>(in.number<std::uint64_t>()));
    }
    if (!in.complete()) return malformed("COMMIT");
    return commit;
}

std::vector<std::byte> encode_time(std::chrono::nanoseconds time) {
    return encode_number(static_cast<std::uint64_t>(time.count()));
}

std::optional<std::chrono::nanoseconds> decode_time(std::span<const std::byte> bytes) {
    const auto number = decode_number(bytes);
    if (!number) return std::nullopt;
    const std::chrono::nanoseconds time(static_cast<std::int64_t>(*number));
    // Differences of two must not overflow: a clock counts less than 146 years.
    constexpr std::chrono::nanoseconds most(std::int64_t{1} << 62);
    if (time > most || time < -most) return std::nullopt;
    return time;
}

std::vector<std::byte> encode_credit(std::uint64_t layers) { return encode_number(layers); }

Result<std::uint64_t> decode_credit(std::span<const std::byte> bytes) {
    const auto layers = decode_number(bytes);
    if (!layers) return malformed("CREDIT");
    return *layers;
}

std::vector<std::byte> encode_root(const Digest& root) {
    ByteWriter out;
    out.digest(root);
    return out.take();
}

Result<Digest> decode_root(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    const Digest root = in.digest();
    if (!in.complete()) return malformed("COMMIT");
    return root;
}

std::vector<std::byte> encode_nack(NackReason reason) { return {static_cast<std::byte>(reason)}; }

Result<NackReason> decode_nack(std::span<const std::byte> bytes) {
    if (bytes.size() != 1 || (bytes[0] != std::byte{1} && bytes[0] != std::byte{2})) return malformed("NACK");
    return static_cast<NackReason>(bytes[0]);
}

}  // namespace hetero::transport
