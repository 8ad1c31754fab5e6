#include "kv/canonical.h"

#include <bit>
#include <string_view>

#include "quant/spec.h"

namespace hetero::kv {
namespace {

// Backslash, DEL and control characters as \xNN, so that a text never ends its line.
std::string escape(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f || c == '\\')
            out += fmt::format("\\x{:02x}", byte);
        else
            out += c;
    }
    return out;
}

std::string_view dtype_name(DType dtype) { return kernels::dtype_info(dtype).name; }

template <class T>
std::string array_digest(const std::vector<T>& values) {
    return to_hex(Sha256().update(std::as_bytes(std::span(values))).finish());
}

}  // namespace

std::string compat_text(const Identity& identity) {
    return fmt::format(
        "hetero-kv-compat 1\n"
        "arch={}\n"
        "n_layers={}\nn_heads={}\nn_kv_heads={}\nhead_dim_k={}\nhead_dim_v={}\nvocab_size={}\ncontext_length={}\n"
        "rope_convention=half-split\nrope_theta={:016x}\nrope_scaling={}\nrope_applied={:d}\n"
        "arch_digest={}\ntokenizer_digest={}\nlineage={}\n",
        escape(identity.arch), identity.n_layers, identity.n_heads, identity.n_kv_heads, identity.head_dim_k,
        identity.head_dim_v, identity.vocab_size, identity.context_length,
        std::bit_cast<std::uint64_t>(identity.rope_theta), escape(identity.rope_scaling), identity.rope_applied,
        to_hex(identity.arch_digest), to_hex(identity.tokenizer_digest), to_hex(identity.lineage));
}

Digest compat_hash(const Identity& identity) { return sha256(compat_text(identity)); }

std::string describe(const Scheme& scheme) {
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    const std::string kept =
        !scheme.keeps_rows() ? std::string() : fmt::format(" sinks={} window={}", scheme.sinks, scheme.window);
    if (codec == nullptr || !codec->has_scale())
        return fmt::format("codec={} source_dtype={}", escape(scheme.codec), dtype_name(scheme.source_dtype)) + kept;
    const quant::Params& params = scheme.params;
    return fmt::format("codec={} axis={} group={} symmetric={:d} scale_dtype={}{} source_dtype={}",
                       escape(scheme.codec), quant::axis_name(params.axis), params.group, params.symmetric,
                       dtype_name(params.scale_dtype), params.hadamard ? " rotation=hadamard" : "",
                       dtype_name(scheme.source_dtype)) +
           kept;
}

std::string header_text(const Header& header) {
    std::string text = fmt::format(
        "hetero-kv-root 1\ncompat_hash={}\nmodel_id={}\nweights_digest={}\ntokens_per_chunk={}\nsequences={}\n",
        to_hex(compat_hash(header.identity)), escape(header.identity.model_id), to_hex(header.identity.weights_digest),
        header.tokens_per_chunk, header.sequences.size());
    for (const Sequence& sequence : header.sequences) {
        text += fmt::format("sequence={}\ntokens={} {}\npending_token={}\nspecial_parsed={:d}\n", escape(sequence.id),
                            sequence.tokens.size(), array_digest(sequence.tokens), sequence.pending_token,
                            sequence.special_parsed);
        text += sequence.logits.empty()
                    ? "logits=0\n"
                    : fmt::format("logits={} {}\n", sequence.logits.size(), array_digest(sequence.logits));
    }
    for (const auto* schemes : {&header.k_schemes, &header.v_schemes}) {
        for (std::size_t layer = 0; layer < schemes->size(); ++layer)
            text +=
                fmt::format("{} {} {}\n", schemes == &header.k_schemes ? 'k' : 'v', layer, describe((*schemes)[layer]));
    }
    // What a whole state of gqa layers does not have leaves no line, so that its text is that of version 1.0.
    for (std::size_t layer = 0; layer < header.layer_shapes.size(); ++layer) {
        const LayerShape& shape = header.layer_shapes[layer];
        if (shape.kind != LayerKind::gqa)
            text += fmt::format("layer {} kind={} window={}\n", layer, kind_name(shape.kind), shape.window);
    }
    if (header.is_shard())
        text += fmt::format("shard tp_size={} tp_rank={} head_first={} head_count={}\n", header.shard.tp_size,
                            header.shard.tp_rank, header.shard.head_first, header.shard.head_count);
    for (const ProvenanceEntry& entry : header.provenance)
        text += fmt::format("provenance={}\t{}\t{}\n", escape(entry.tool), escape(entry.version), escape(entry.what));
    return text;
}

}  // namespace hetero::kv
