#include "kv/file_attributes.h"

#include <limits>
#include <optional>

#include "base/hash.h"
#include "kv/file_layout.h"
#include "quant/spec.h"

namespace hetero::kv::layout {
namespace {

namespace h5 = io::h5;

Result<DType> require_dtype(const h5::Node& node, const std::string& name) {
    HETERO_TRY(const std::string text, require<std::string>(node, name));
    const std::optional<DType> dtype = kernels::dtype_from_name(text);
    if (!dtype) return fail(Errc::bad_input, "attribute {} of {}: dtype \"{}\" is not known", name, node.path(), text);
    return *dtype;
}

// Number of tokens that are kept; absent: none.
Result<std::uint32_t> read_kept(const h5::Node& node, const std::string& name) {
    HETERO_TRY(const std::optional<std::int64_t> tokens, node.get<std::int64_t>(name));
    return tokens ? require_u32(node, name) : std::uint32_t{0};
}

}  // namespace

Result<std::uint32_t> require_u32(const h5::Node& node, const std::string& name) {
    HETERO_TRY(const std::int64_t value, require<std::int64_t>(node, name));
    if (value < 0 || value > std::numeric_limits<std::int32_t>::max())
        return fail(Errc::bad_input, "attribute {} of {} is {}; 0 to 2147483647 is expected", name, node.path(), value);
    return static_cast<std::uint32_t>(value);
}

Status require_text(const h5::Node& node, const std::string& name, std::string_view expected) {
    return require_equal(node, name, std::string(expected));
}

Result<Digest> require_digest(const h5::Node& node, const std::string& name) {
    HETERO_TRY(const std::string hex, require<std::string>(node, name));
    Digest digest{};
    if (!from_hex(hex, digest))
        return fail(Errc::bad_input, "attribute {} of {} is no SHA-256 of 64 hex digits", name, node.path());
    return digest;
}

Result<Identity> read_identity(const h5::Node& root) {
    Identity identity;
    HETERO_TRY(identity.model_id, require<std::string>(root, "model_id"));
    HETERO_TRY(identity.arch, require<std::string>(root, "arch"));
    HETERO_TRY(identity.n_layers, require_u32(root, "n_layers"));
    HETERO_TRY(identity.n_heads, require_u32(root, "n_heads"));
    HETERO_TRY(identity.n_kv_heads, require_u32(root, "n_kv_heads"));
    HETERO_TRY(identity.head_dim_k, require_u32(root, "head_dim_k"));
    HETERO_TRY(identity.head_dim_v, require_u32(root, "head_dim_v"));
    HETERO_TRY(identity.vocab_size, require_u32(root, "vocab_size"));
    HETERO_TRY(identity.context_length, require_u32(root, "context_length"));
    HETERO_CHECK(require_text(root, "rope_convention", rope_convention));
    HETERO_TRY(identity.rope_theta, require<double>(root, "rope_theta"));
    HETERO_TRY(identity.rope_scaling, require<std::string>(root, "rope_scaling"));
    HETERO_TRY(identity.rope_applied, require<bool>(root, "rope_applied"));
    HETERO_TRY(identity.arch_digest, require_digest(root, "arch_digest"));
    HETERO_TRY(identity.tokenizer_digest, require_digest(root, "tokenizer_digest"));
    HETERO_TRY(identity.lineage, require_digest(root, "lineage"));
    HETERO_TRY(identity.weights_digest, require_digest(root, "weights_digest"));
    HETERO_CHECK(require_text(root, "compat_hash", to_hex(compat_hash(identity))));
    return identity;
}

Result<Scheme> read_scheme(const h5::Node& node) {
    Scheme scheme;
    HETERO_TRY(scheme.codec, require<std::string>(node, "scheme"));
    const bool rotated = scheme.codec.starts_with(rotated_prefix);
    if (rotated) scheme.codec.erase(0, rotated_prefix.size());
    HETERO_TRY(scheme.source_dtype, require_dtype(node, "source_dtype"));
    const quant::Codec* codec = quant::find_codec(scheme.codec);
    if (codec == nullptr || (rotated && !codec->has_scale()))
        return fail(Errc::bad_input, "{}: scheme \"{}{}\" is not known; there are {}", node.path(),
                    rotated ? rotated_prefix : "", scheme.codec, quant::codec_names());
    HETERO_TRY(scheme.sinks, read_kept(node, "sinks"));
    HETERO_TRY(scheme.window, read_kept(node, "window"));
    if (!codec->has_scale()) return scheme;
    HETERO_TRY(const std::string axis, require<std::string>(node, "axis"));
    const auto known = quant::axis_from_name(axis);
    if (!known) return fail(Errc::bad_input, "attribute axis of {}: {}", node.path(), known.error().message);
    scheme.params.axis = *known;
    HETERO_TRY(scheme.params.group, require_u32(node, "group"));
    HETERO_TRY(scheme.params.symmetric, require<bool>(node, "symmetric"));
    HETERO_TRY(scheme.params.scale_dtype, require_dtype(node, "scale_dtype"));
    scheme.params.hadamard = rotated;
    return scheme;
}

}  // namespace hetero::kv::layout
