#include "kv/state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <set>
#include <string_view>

#include "base/huge_pages.h"
#include "base/printable.h"
#include "kv/canonical.h"

namespace hetero::kv {
namespace {

// Bounds that keep every product of sizes below 2^63; far beyond any model there is.
constexpr std::uint32_t max_layers = 1U << 14;
constexpr std::uint32_t max_heads = 1U << 16;
constexpr std::uint32_t max_row_elements = 1U << 24;  // kv heads x head dim
constexpr std::uint32_t max_vocab = 1U << 28;
constexpr std::uint32_t max_context = 1U << 30;
constexpr std::size_t max_sequences = 1U << 20;
constexpr std::uint32_t max_kept = 4096;          // tokens; they are one chunk
constexpr std::size_t max_name_bytes = 4096;      // arch, model_id, sequence ids
constexpr std::size_t max_text_bytes = 1U << 16;  // rope_scaling, provenance fields

std::uint64_t product(const std::vector<std::uint64_t>& shape) {
    std::uint64_t n = shape.empty() ? 0 : 1;
    for (const std::uint64_t extent : shape) n *= extent;
    return n;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
    return text + "]";
}

Status check_text(std::string_view what, std::string_view text, std::size_t max_bytes) {
    if (text.size() > max_bytes)
        return fail(Errc::bad_input, "{} has {} bytes; at most {} are allowed", what, text.size(), max_bytes);
    if (text.find('\0') != std::string_view::npos)
        return fail(Errc::bad_input, "{} has a NUL byte, which HDF5 strings cannot hold", what);
    return {};
}

Status check_range(std::string_view what, std::uint64_t value, std::uint64_t min, std::uint64_t max) {
    if (value < min || value > max)
        return fail(Errc::bad_input, "{} is {}; {} to {} is expected", what, value, min, max);
    return {};
}

Status check_sequence(const Identity& identity, const Sequence& sequence) {
    const std::size_t n = sequence.tokens.size();
    if (n == 0) return fail(Errc::bad_input, "it has no tokens");
    if (n > identity.context_length)
        return fail(Errc::bad_input, "{} tokens are more than the context of {}", n, identity.context_length);
    const auto known = [&](std::int32_t id) { return id >= 0 && static_cast<std::uint32_t>(id) < identity.vocab_size; };
    for (std::size_t i = 0; i < n; ++i) {
        if (!known(sequence.tokens[i]))
            return fail(Errc::bad_input, "tokens[{}] is {}, outside the vocabulary of {}", i, sequence.tokens[i],
                        identity.vocab_size);
    }
    if (sequence.pending_token != -1 && !known(sequence.pending_token))
        return fail(Errc::bad_input, "pending_token is {}, outside the vocabulary of {}", sequence.pending_token,
                    identity.vocab_size);
    if (!sequence.logits.empty() && sequence.logits.size() != identity.vocab_size)
        return fail(Errc::bad_input, "{} logits for a vocabulary of {}", sequence.logits.size(), identity.vocab_size);
    const auto odd =
        std::find_if_not(sequence.logits.begin(), sequence.logits.end(), [](float x) { return std::isfinite(x); });
    if (odd != sequence.logits.end())
        return fail(Errc::bad_input, "logits[{}] is {}, not a finite number", odd - sequence.logits.begin(), *odd);
    return {};
}

Status check_scheme(const Header& header, const Scheme& scheme, PartId part) {
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    if (codec == nullptr)
        return fail(Errc::bad_input, "scheme \"{}\" is not known; there are {}", scheme.codec, quant::codec_names());
    if (auto status = codec->check(scheme.params, header.identity.head_dim(part)); !status)
        return fail(Errc::bad_input, "{}", status.error().message);
    if (scheme.source_dtype != DType::f32 && scheme.source_dtype != DType::f16 && scheme.source_dtype != DType::bf16)
        return fail(Errc::bad_input, "source dtype {}; f32, f16 or bf16 is expected",
                    kernels::dtype_info(scheme.source_dtype).name);
    if (header.is_shard() && codec->has_scale() && scheme.params.axis == quant::Axis::tensor)
        return fail(Errc::bad_input, "a scale that all heads share, in a shard that has some of them");
    if (scheme.sinks > max_kept || scheme.window > max_kept)
        return fail(Errc::bad_input, "{} sinks and a window of {}; at most {} tokens are kept", scheme.sinks,
                    scheme.window, max_kept);
    if (!codec->quantized() && scheme.keeps_rows())
        return fail(Errc::bad_input, "sinks or a window of {}, which keeps all tokens as they are", scheme.codec);
    if (!codec->quantized() && scheme.source_dtype != codec->value_dtype(scheme.params))
        return fail(Errc::bad_input, "source dtype {} of values stored as {}",
                    kernels::dtype_info(scheme.source_dtype).name, scheme.codec);
    if (const std::uint64_t step = codec->token_step(scheme.params);
        header.tokens_per_chunk != 0 && step != 0 && header.tokens_per_chunk % step != 0)
        return fail(Errc::bad_input, "tokens_per_chunk {} is not a multiple of the group of {} tokens",
                    header.tokens_per_chunk, step);
    return {};
}

Status check_layer_shape(const Identity& identity, const LayerShape& shape) {
    switch (shape.kind) {
        case LayerKind::swa:
            return check_range("window of kind swa", shape.window, 1, max_context);
        case LayerKind::mla:
            if (identity.n_kv_heads != 1)
                return fail(Errc::bad_input, "kind mla has no heads, and n_kv_heads is {}; 1 is expected",
                            identity.n_kv_heads);
            [[fallthrough]];
        case LayerKind::gqa:
            if (shape.window != 0)
                return fail(Errc::bad_input, "window is {}; 0 is expected of kind {}", shape.window,
                            kind_name(shape.kind));
            return {};
    }
    return fail(Errc::bad_input, "kind {} is not known", static_cast<int>(shape.kind));
}

Status check_shard(const Identity& identity, const Shard& shard) {
    HETERO_CHECK(check_range("tp_size", shard.tp_size, 1, max_ranks));
    HETERO_CHECK(check_range("tp_rank", shard.tp_rank, 0, shard.tp_size - 1));
    if (shard.tp_size == 1) {
        const bool whole = shard.head_first == 0 && (shard.head_count == 0 || shard.head_count == identity.n_kv_heads);
        if (whole) return {};
        return fail(Errc::bad_input, "{} heads from head {} on are here, and tp_size is 1: all {} are expected",
                    shard.head_count, shard.head_first, identity.n_kv_heads);
    }
    HETERO_CHECK(check_range("head_first", shard.head_first, 0, identity.n_kv_heads - 1));
    return check_range("head_count", shard.head_count, 1, identity.n_kv_heads - shard.head_first);
}

Status check_tensor(std::string_view name, const Tensor& tensor, DType dtype, const std::vector<std::uint64_t>& shape) {
    if (tensor.shape != shape)
        return fail(Errc::bad_input, "{} has shape {}, {} is expected", name, shape_text(tensor.shape),
                    shape_text(shape));
    if (shape.empty()) return {};
    if (tensor.dtype != dtype)
        return fail(Errc::bad_input, "{} has dtype {}, {} is expected", name, kernels::dtype_info(tensor.dtype).name,
                    kernels::dtype_info(dtype).name);
    if (const std::size_t bytes = kernels::dtype_bytes(dtype, product(shape)); tensor.bytes.size() != bytes)
        return fail(Errc::bad_input, "{} has {} bytes, {} are expected", name, tensor.bytes.size(), bytes);
    return {};
}

}  // namespace

Status check_identity(const Identity& identity) {
    HETERO_CHECK(check_text("model_id", identity.model_id, max_name_bytes));
    HETERO_CHECK(check_text("arch", identity.arch, max_name_bytes));
    HETERO_CHECK(check_text("rope_scaling", identity.rope_scaling, max_text_bytes));
    if (identity.arch.empty()) return fail(Errc::bad_input, "arch is empty");
    HETERO_CHECK(check_range("n_layers", identity.n_layers, 1, max_layers));
    HETERO_CHECK(check_range("n_heads", identity.n_heads, 1, max_heads));
    HETERO_CHECK(check_range("n_kv_heads", identity.n_kv_heads, 1, identity.n_heads));
    if (identity.n_heads % identity.n_kv_heads != 0)
        return fail(Errc::bad_input, "n_heads {} is not a multiple of n_kv_heads {}", identity.n_heads,
                    identity.n_kv_heads);
    HETERO_CHECK(check_range("head_dim_k", identity.head_dim_k, 1, max_row_elements / identity.n_kv_heads));
    HETERO_CHECK(check_range("head_dim_v", identity.head_dim_v, 1, max_row_elements / identity.n_kv_heads));
    HETERO_CHECK(check_range("vocab_size", identity.vocab_size, 1, max_vocab));
    HETERO_CHECK(check_range("context_length", identity.context_length, 1, max_context));
    if (!std::isfinite(identity.rope_theta) || identity.rope_theta < 0)
        return fail(Errc::bad_input, "rope_theta is {}; a finite number from 0 is expected", identity.rope_theta);
    return {};
}

std::vector<Mismatch> compare(const Identity& left, const Identity& right) {
    std::vector<Mismatch> mismatches;
    const auto add = [&](std::string_view field, const auto& a, const auto& b) {
        if (a == b) return;
        if constexpr (std::is_same_v<std::decay_t<decltype(a)>, Digest>)
            mismatches.push_back({std::string(field), to_hex(a), to_hex(b)});
        else
            mismatches.push_back({std::string(field), fmt::format("{}", a), fmt::format("{}", b)});
    };
    add("arch", left.arch, right.arch);
    add("n_layers", left.n_layers, right.n_layers);
    add("n_heads", left.n_heads, right.n_heads);
    add("n_kv_heads", left.n_kv_heads, right.n_kv_heads);
    add("head_dim_k", left.head_dim_k, right.head_dim_k);
    add("head_dim_v", left.head_dim_v, right.head_dim_v);
    add("vocab_size", left.vocab_size, right.vocab_size);
    add("context_length", left.context_length, right.context_length);
    // By bits, as compat_hash has it: NaN never equals itself otherwise.
    if (std::bit_cast<std::uint64_t>(left.rope_theta) != std::bit_cast<std::uint64_t>(right.rope_theta))
        mismatches.push_back({"rope_theta", fmt::format("{}", left.rope_theta), fmt::format("{}", right.rope_theta)});
    add("rope_scaling", left.rope_scaling, right.rope_scaling);
    add("rope_applied", left.rope_applied, right.rope_applied);
    add("arch_digest", left.arch_digest, right.arch_digest);
    add("tokenizer_digest", left.tokenizer_digest, right.tokenizer_digest);
    add("lineage", left.lineage, right.lineage);
    return mismatches;
}

std::string to_text(const std::vector<Mismatch>& mismatches, std::string_view left, std::string_view right) {
    std::string out;
    for (const Mismatch& one : mismatches)
        out += fmt::format("{}{}: {} has {}, {} {}", out.empty() ? "" : "; ", one.field, left, printable(one.left),
                           right, printable(one.right));
    return out;
}

std::uint64_t Tensor::elements() const noexcept { return product(shape); }

const char* kind_name(LayerKind kind) noexcept {
    return kind == LayerKind::gqa ? "gqa" : kind == LayerKind::swa ? "swa" : "mla";
}

std::optional<LayerKind> kind_from_name(std::string_view name) noexcept {
    for (const LayerKind kind : {LayerKind::gqa, LayerKind::swa, LayerKind::mla})
        if (name == kind_name(kind)) return kind;
    return std::nullopt;
}

const char* part_name(PartId part, LayerKind kind) noexcept {
    if (kind == LayerKind::mla) return part == PartId::k ? "latent" : "RoPE key";
    return part == PartId::k ? "K" : "V";
}

std::string to_text(const LayerShape& shape) {
    if (shape.window == 0) return kind_name(shape.kind);
    return fmt::format("{} (window {})", kind_name(shape.kind), shape.window);
}

std::vector<Mismatch> compare(const std::vector<LayerShape>& left, const std::vector<LayerShape>& right) {
    const auto at = [](const std::vector<LayerShape>& shapes, std::size_t i) {
        return i < shapes.size() ? shapes[i] : LayerShape{};
    };
    std::vector<Mismatch> first;
    std::size_t more = 0;
    for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
        const LayerShape a = at(left, i), b = at(right, i);
        if (a == b) continue;
        if (first.empty())
            first.push_back({fmt::format("layer {}", i), to_text(a), to_text(b)});
        else
            ++more;
    }
    if (more > 0) first.front().field += fmt::format(" (and {} more)", more);
    return first;
}

DType source_dtype(const Header& header) {
    const DType first = header.k_schemes.empty() ? DType::f16 : header.k_schemes.front().source_dtype;
    const auto same = [&](const Scheme& scheme) { return scheme.source_dtype == first; };
    const bool uniform = std::all_of(header.k_schemes.begin(), header.k_schemes.end(), same) &&
                         std::all_of(header.v_schemes.begin(), header.v_schemes.end(), same);
    return uniform ? first : DType::f32;  // holds every other type exactly
}

std::vector<std::uint64_t> values_shape(const Header& header, const Scheme& scheme, std::uint64_t n_tokens,
                                        PartId part) {
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    const std::uint32_t dim = header.identity.head_dim(part);
    return {kept_rows(scheme, n_tokens).middle, header.stored_heads(),
            codec == nullptr ? dim : codec->row_elements(scheme.params, dim)};
}

std::vector<std::uint64_t> scale_shape(const Header& header, const Scheme& scheme, std::uint64_t n_tokens,
                                       PartId part) {
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    if (codec == nullptr || !codec->has_scale()) return {};
    const auto extents = codec->scale_shape(
        scheme.params, {kept_rows(scheme, n_tokens).middle, header.stored_heads(), header.identity.head_dim(part)});
    return {extents.begin(), extents.end()};
}

KeptRows kept_rows(const Scheme& scheme, std::uint64_t n_tokens) noexcept {
    KeptRows rows;
    rows.sinks = std::min<std::uint64_t>(scheme.sinks, n_tokens);
    rows.tail = std::min<std::uint64_t>(scheme.window, n_tokens - rows.sinks);
    rows.middle = n_tokens - rows.sinks - rows.tail;
    return rows;
}

std::vector<std::uint64_t> kept_shape(const Header& header, std::uint32_t kept, std::uint64_t rows, PartId part) {
    if (kept == 0) return {};
    return {rows, header.stored_heads(), header.identity.head_dim(part)};
}

std::uint64_t part_bytes(const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId part) {
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    if (codec == nullptr) return 0;
    const std::uint64_t values =
        kernels::dtype_bytes(codec->value_dtype(scheme.params), product(values_shape(header, scheme, n_tokens, part)));
    const std::uint64_t scale =
        kernels::dtype_bytes(scheme.params.scale_dtype, product(scale_shape(header, scheme, n_tokens, part)));
    const KeptRows rows = kept_rows(scheme, n_tokens);
    const std::uint64_t kept =
        kernels::dtype_bytes(scheme.source_dtype, product(kept_shape(header, scheme.sinks, rows.sinks, part)) +
                                                      product(kept_shape(header, scheme.window, rows.tail, part)));
    return values + (scheme.params.symmetric ? scale : 2 * scale) + kept;
}

Status reshape_part(Part& part, const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId id) {
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    if (codec == nullptr)
        return fail(Errc::bad_input, "unknown codec '{}': known are {}", printable(scheme.codec), quant::codec_names());
    HETERO_CHECK(codec->check(scheme.params, header.identity.head_dim(id)));
    part.scheme = scheme;
    const auto reshape = [](Tensor& tensor, DType dtype, std::vector<std::uint64_t> shape) {
        tensor.dtype = dtype;
        tensor.shape = std::move(shape);
        resize_in_huge_pages(tensor.bytes, tensor.empty() ? 0 : kernels::dtype_bytes(dtype, tensor.elements()));
    };
    try {
        const auto scales = scale_shape(header, scheme, n_tokens, id);
        reshape(part.values, codec->value_dtype(scheme.params), values_shape(header, scheme, n_tokens, id));
        reshape(part.scale, scheme.params.scale_dtype, scales);
        reshape(part.zero, scheme.params.scale_dtype, scheme.params.symmetric ? std::vector<std::uint64_t>{} : scales);
        const KeptRows rows = kept_rows(scheme, n_tokens);
        reshape(part.sink, scheme.source_dtype, kept_shape(header, scheme.sinks, rows.sinks, id));
        reshape(part.tail, scheme.source_dtype, kept_shape(header, scheme.window, rows.tail, id));
    } catch (const std::exception& e) {  // bad_alloc, length_error
        return fail(Errc::resource, "no memory for {} of {} tokens, {} bytes", part_name(id), n_tokens,
                    part_bytes(header, scheme, n_tokens, id));
    }
    return {};
}

Result<Part> allocate_part(const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId id) {
    Part part;
    HETERO_CHECK(reshape_part(part, header, scheme, n_tokens, id));
    return part;
}

bool Header::all_gqa() const noexcept {
    return std::all_of(layer_shapes.begin(), layer_shapes.end(),
                       [](const LayerShape& shape) { return shape == LayerShape{}; });
}

bool Header::keeps_rows() const noexcept {
    const auto keeps = [](const Scheme& scheme) { return scheme.keeps_rows(); };
    return std::any_of(k_schemes.begin(), k_schemes.end(), keeps) ||
           std::any_of(v_schemes.begin(), v_schemes.end(), keeps);
}

std::uint64_t Header::payload_bytes() const {
    std::uint64_t total = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s)
        for (const PartId id : {PartId::k, PartId::v})
            for (std::size_t layer = 0; layer < schemes(id).size(); ++layer)
                total += part_bytes(*this, scheme(layer, id), stored_tokens(s, layer), id);
    return total;
}

void Header::take_logits_of(const Header& complete) {
    for (Sequence& own : sequences) {
        const auto from = std::find_if(complete.sequences.begin(), complete.sequences.end(),
                                       [&](const Sequence& one) { return one.id == own.id; });
        if (from == complete.sequences.end()) continue;
        own.logits = from->logits;
        own.pending_token = from->pending_token;
    }
    late_logits = complete.late_logits;
}

Status check_header(const Header& header) {
    HETERO_CHECK(check_identity(header.identity));
    HETERO_CHECK(check_shard(header.identity, header.shard));
    if (!header.layer_shapes.empty() && header.layer_shapes.size() != header.identity.n_layers)
        return fail(Errc::bad_input, "{} layer shapes for {} layers", header.layer_shapes.size(),
                    header.identity.n_layers);
    for (std::size_t layer = 0; layer < header.layer_shapes.size(); ++layer) {
        if (auto status = check_layer_shape(header.identity, header.layer_shapes[layer]); !status)
            return fail_with(status.error(), fmt::format("layer {}", layer));
    }
    HETERO_CHECK(check_range("number of sequences", header.sequences.size(), 1, max_sequences));
    std::set<std::string_view> ids;
    for (const Sequence& sequence : header.sequences) {
        HETERO_CHECK(check_text("sequence id", sequence.id, max_name_bytes));
        if (sequence.id.empty()) return fail(Errc::bad_input, "a sequence has an empty id");
        if (!ids.insert(sequence.id).second)
            return fail(Errc::bad_input, "two sequences have the id \"{}\"", sequence.id);
        if (auto status = check_sequence(header.identity, sequence); !status)
            return fail_with(status.error(), fmt::format("sequence {}", sequence.id));
    }
    for (const PartId part : {PartId::k, PartId::v}) {
        const auto& schemes = header.schemes(part);
        if (schemes.size() != header.identity.n_layers)
            return fail(Errc::bad_input, "{} schemes of {} for {} layers", schemes.size(), part_name(part),
                        header.identity.n_layers);
        for (std::size_t layer = 0; layer < schemes.size(); ++layer) {
            if (auto status = check_scheme(header, schemes[layer], part); !status)
                return fail_with(status.error(), fmt::format("layer {}, {}", layer, header.part_name(layer, part)));
        }
    }
    for (const ProvenanceEntry& entry : header.provenance) {
        for (const std::string* text : {&entry.tool, &entry.version, &entry.what})
            HETERO_CHECK(check_text("provenance", *text, max_text_bytes));
    }
    return {};
}

Status check_layer(const Header& header, std::size_t sequence, std::size_t layer, const Layer& value) {
    if (sequence >= header.sequences.size() || layer >= header.identity.n_layers)
        return fail(Errc::internal, "no layer {} of sequence {}", layer, sequence);
    const std::uint64_t n_tokens = header.stored_tokens(sequence, layer);
    const auto check_part = [&](PartId id) -> Status {
        const Part& part = value.part(id);
        const Scheme& scheme = header.scheme(layer, id);
        if (part.scheme != scheme)
            return fail(Errc::bad_input, "scheme {} of the layer differs from {} of the header", describe(part.scheme),
                        describe(scheme));
        const quant::Codec* codec = quant::find_codec(scheme.codec);
        if (codec == nullptr) return fail(Errc::bad_input, "scheme \"{}\" is not known", scheme.codec);
        const auto scales = scale_shape(header, scheme, n_tokens, id);
        HETERO_CHECK(check_tensor("values", part.values, codec->value_dtype(scheme.params),
                                  values_shape(header, scheme, n_tokens, id)));
        HETERO_CHECK(check_tensor("scale", part.scale, scheme.params.scale_dtype, scales));
        HETERO_CHECK(check_tensor("zero", part.zero, scheme.params.scale_dtype,
                                  scheme.params.symmetric ? std::vector<std::uint64_t>{} : scales));
        const KeptRows rows = kept_rows(scheme, n_tokens);
        HETERO_CHECK(
            check_tensor("sink", part.sink, scheme.source_dtype, kept_shape(header, scheme.sinks, rows.sinks, id)));
        return check_tensor("tail", part.tail, scheme.source_dtype, kept_shape(header, scheme.window, rows.tail, id));
    };
    for (const PartId id : {PartId::k, PartId::v}) {
        if (auto status = check_part(id); !status)
            return fail_with(status.error(), fmt::format("sequence {}, layer {}, {}", header.sequences[sequence].id,
                                                         layer, header.part_name(layer, id)));
    }
    return {};
}

}  // namespace hetero::kv
