#include "kv/pages_file.h"

#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/hash.h"
#include "base/printable.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "io/safetensors_file.h"
#include "kv/json_fields.h"
#include "quant/codec.h"

namespace hetero::kv {
namespace {

using Json = nlohmann::json;

constexpr const char* format_name = "hetero-kv-pages";
constexpr int format_version = 1;
constexpr const char* state_tensor = "state";

std::string tokens_name(std::size_t s) { return fmt::format("sequences.{}.tokens", s); }
std::string logits_name(std::size_t s) { return fmt::format("sequences.{}.logits", s); }
std::string part_tensor(std::size_t s, std::size_t layer, PartId id) {
    return fmt::format("sequences.{}.layers.{}.{}", s, layer, id == PartId::k ? "k" : "v");
}

PageShape page_shape_of(const Header& header, std::size_t s, std::size_t layer, PartId id) {
    const quant::Codec* codec = quant::find_codec(header.scheme(layer, id).codec);
    const DType dtype = codec->value_dtype({});
    return {header.stored_tokens(s, layer), header.stored_heads(), header.identity.head_dim(id),
            static_cast<std::size_t>(kernels::dtype_bytes(dtype, 1))};
}

// Of arrays as they are stored: float parts have [token][head][dim] alone.
Status check_parts(const Header& header, const PageLayout& layout) {
    HETERO_CHECK(check_layout(layout, header.identity.head_dim_k));
    for (std::size_t layer = 0; layer < header.identity.n_layers; ++layer) {
        if (layout.interleaved && header.layer_shape(layer).kind == LayerKind::mla)
            return fail(Errc::usage, "layer {}: the RoPE key of a latent has pairs of its own; leave RoPE as it is",
                        layer);
        for (const PartId id : {PartId::k, PartId::v}) {
            const quant::Codec* codec = quant::find_codec(header.scheme(layer, id).codec);
            if (codec == nullptr || codec->quantized() || codec->has_scale())
                return fail(Errc::bad_input,
                            "layer {}, {}: {} has no other layout; convert it to f16, bf16 or f32 (--dtype)", layer,
                            header.part_name(layer, id), header.scheme(layer, id).codec);
        }
    }
    return {};
}

std::vector<io::TensorSpec> tensors_of(const Header& header, const PageLayout& layout, std::uint64_t state_bytes) {
    std::vector<io::TensorSpec> specs;
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        specs.push_back({tokens_name(s), DType::i32, {header.sequences[s].tokens.size()}});
        if (!header.sequences[s].logits.empty())
            specs.push_back({logits_name(s), DType::f32, {header.sequences[s].logits.size()}});
    }
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        for (std::size_t layer = 0; layer < header.identity.n_layers; ++layer) {
            for (const PartId id : {PartId::k, PartId::v}) {
                const DType dtype = quant::find_codec(header.scheme(layer, id).codec)->value_dtype({});
                specs.push_back(
                    {part_tensor(s, layer, id), dtype, page_shape(layout, page_shape_of(header, s, layer, id))});
            }
        }
    }
    specs.push_back({state_tensor, DType::u8, {state_bytes}});
    return specs;
}

// Always eight digits: the length of the text is known before the checksums are.
std::string crc_text(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

Json json_of(const Header& header, const PageLayout& layout) {
    const Identity& id = header.identity;
    Json state = {{"format", format_name},
                  {"version", format_version},
                  {"layout", layout.heads_first ? "hnd" : "nhd"},
                  {"block_tokens", layout.block_tokens},
                  {"rope", layout.interleaved ? "interleaved" : "half"},
                  {"rotary_dims", layout.rotary_dims}};
    state["identity"] = {{"model_id", id.model_id},
                         {"arch", id.arch},
                         {"n_layers", id.n_layers},
                         {"n_heads", id.n_heads},
                         {"n_kv_heads", id.n_kv_heads},
                         {"head_dim_k", id.head_dim_k},
                         {"head_dim_v", id.head_dim_v},
                         {"vocab_size", id.vocab_size},
                         {"context_length", id.context_length},
                         {"rope_theta", id.rope_theta},
                         {"rope_scaling", id.rope_scaling},
                         {"rope_applied", id.rope_applied},
                         {"arch_digest", to_hex(id.arch_digest)},
                         {"tokenizer_digest", to_hex(id.tokenizer_digest)},
                         {"lineage", to_hex(id.lineage)},
                         {"weights_digest", to_hex(id.weights_digest)}};
    state["shard"] = {{"tp_size", header.shard.tp_size},
                      {"tp_rank", header.shard.tp_rank},
                      {"head_first", header.shard.head_first},
                      {"head_count", header.shard.head_count}};
    state["sequences"] = Json::array();
    for (const Sequence& one : header.sequences)
        state["sequences"].push_back(
            {{"id", one.id}, {"pending_token", one.pending_token}, {"special_parsed", one.special_parsed}});
    state["layers"] = Json::array();
    for (const LayerShape& shape : header.layer_shapes)
        state["layers"].push_back({{"kind", kind_name(shape.kind)}, {"window", shape.window}});
    state["provenance"] = Json::array();
    for (const ProvenanceEntry& entry : header.provenance)
        state["provenance"].push_back({{"tool", entry.tool}, {"version", entry.version}, {"what", entry.what}});
    return state;
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// SHA-256 of the state's text (keys sorted, no spaces) without the digest itself.
std::string digest_of(Json state) {
    state.erase("digest");
    return to_hex(sha256(text_of(state)));
}

class PagesSink final : public Sink {
public:
    PagesSink(std::string path, const PageLayout& layout, io::Overwrite overwrite)
        : path_(std::move(path)), layout_(layout), overwrite_(overwrite) {}

    Status begin(const Header& header) override try {
        HETERO_CHECK(check_header(header));
        if (header.late_logits)
            return fail(Errc::usage, "{}: a state whose logits come last goes to a hetero-kv file first", path_);
        if (Status parts = check_parts(header, layout_); !parts) return fail_with(parts.error(), path_);
        header_ = header;
        state_ = json_of(header, layout_);
        state_["crc32c"] = Json::object();
        state_["dtypes"] = Json::object();
        state_["digest"] = to_hex(Digest{});
        auto specs = tensors_of(header_, layout_, 0);
        for (const io::TensorSpec& spec : specs) {
            if (spec.name == state_tensor) continue;
            state_["crc32c"][spec.name] = crc_text(0);
            state_["dtypes"][spec.name] = kernels::dtype_info(spec.dtype).name;
        }
        specs.back().shape = {text().size()};
        HETERO_TRY(file_, io::SafetensorsFile::begin(path_, overwrite_, specs));
        for (std::size_t s = 0; s < header_.sequences.size(); ++s) {
            HETERO_CHECK(write(tokens_name(s), std::as_bytes(std::span(header_.sequences[s].tokens))));
            if (!header_.sequences[s].logits.empty())
                HETERO_CHECK(write(logits_name(s), std::as_bytes(std::span(header_.sequences[s].logits))));
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory", path_);
    }

    Status write_layer(const Layer& layer) override try {
        const std::size_t s = written_ / header_.identity.n_layers, number = written_ % header_.identity.n_layers;
        if (!file_ || s >= header_.sequences.size()) return fail(Errc::internal, "{}: a layer too many", path_);
        HETERO_CHECK(check_layer(header_, s, number, layer));
        for (const PartId id : {PartId::k, PartId::v}) {
            const PageShape shape = page_shape_of(header_, s, number, id);
            std::uint64_t bytes = shape.item_bytes;
            for (const std::uint64_t n : page_shape(layout_, shape)) bytes *= n;
            pages_.resize(bytes);
            to_pages(layout_, shape, id == PartId::k, layer.part(id).values.bytes, pages_);
            HETERO_CHECK(write(part_tensor(s, number, id), pages_));
        }
        ++written_;
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory for the pages of a layer", path_);
    }

    Status commit() override try {
        if (!file_) return fail(Errc::internal, "{}: committed before it was begun", path_);
        state_["digest"] = digest_of(state_);
        const std::string state = text();
        HETERO_CHECK(file_->write(std::as_bytes(std::span(state))));
        return file_->publish();
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory", path_);
    }
    void abort(const Error&) noexcept override { file_.reset(); }
    [[nodiscard]] const std::string& name() const noexcept override { return path_; }

private:
    [[nodiscard]] std::string text() const { return text_of(state_); }
    Status write(const std::string& tensor, std::span<const std::byte> bytes) {
        state_["crc32c"][tensor] = crc_text(crc32c(bytes));
        return file_->write(bytes);
    }

    std::string path_;
    PageLayout layout_;
    io::Overwrite overwrite_;
    Header header_;
    Json state_;
    std::optional<io::SafetensorsFile> file_;
    std::vector<std::byte> pages_;
    std::size_t written_ = 0;
};

Result<PageLayout> layout_of(const Fields& state, const std::string& path) {
    PageLayout layout;
    HETERO_TRY(const std::string order, state.text("layout"));
    HETERO_TRY(const std::string rope, state.text("rope"));
    HETERO_TRY(layout.block_tokens, state.integer<std::uint32_t>("block_tokens"));
    HETERO_TRY(layout.rotary_dims, state.integer<std::uint32_t>("rotary_dims"));
    if (order != "nhd" && order != "hnd")
        return fail(Errc::bad_input, "{}: layout is '{}'; nhd and hnd are known", path, printable(order, 30));
    if (rope != "half" && rope != "interleaved")
        return fail(Errc::bad_input, "{}: rope is '{}'; half and interleaved are known", path, printable(rope, 30));
    layout.heads_first = order == "hnd";
    layout.interleaved = rope == "interleaved";
    return layout;
}

Result<Identity> identity_of(const Fields& fields) {
    Identity id;
    HETERO_TRY(id.model_id, fields.text("model_id"));
    HETERO_TRY(id.arch, fields.text("arch"));
    HETERO_TRY(id.n_layers, fields.integer<std::uint32_t>("n_layers"));
    HETERO_TRY(id.n_heads, fields.integer<std::uint32_t>("n_heads"));
    HETERO_TRY(id.n_kv_heads, fields.integer<std::uint32_t>("n_kv_heads"));
    HETERO_TRY(id.head_dim_k, fields.integer<std::uint32_t>("head_dim_k"));
    HETERO_TRY(id.head_dim_v, fields.integer<std::uint32_t>("head_dim_v"));
    HETERO_TRY(id.vocab_size, fields.integer<std::uint32_t>("vocab_size"));
    HETERO_TRY(id.context_length, fields.integer<std::uint32_t>("context_length"));
    HETERO_TRY(id.rope_theta, fields.number("rope_theta"));
    HETERO_TRY(id.rope_scaling, fields.text("rope_scaling"));
    HETERO_TRY(id.rope_applied, fields.flag("rope_applied"));
    HETERO_TRY(id.arch_digest, fields.digest("arch_digest"));
    HETERO_TRY(id.tokenizer_digest, fields.digest("tokenizer_digest"));
    HETERO_TRY(id.lineage, fields.digest("lineage"));
    HETERO_TRY(id.weights_digest, fields.digest("weights_digest"));
    return id;
}

class PagesSource final : public Source {
public:
    explicit PagesSource(std::string path) : path_(std::move(path)) {}

    Status open() {
        HETERO_TRY(tensors_, io::open_safetensors(path_));
        const io::TensorView* text = tensors_->find(state_tensor);
        if (text == nullptr || text->dtype != DType::u8 || text->shape.size() != 1)
            return fail(Errc::bad_input, "{}: holds no tensor 'state' of bytes, which says whose K and V these are",
                        path_);
        const std::string_view json(reinterpret_cast<const char*>(text->bytes.data()), text->bytes.size());
        HETERO_TRY(json_, io::parse_json(json, path_ + ": state"));
        if (!json_.is_object()) return fail(Errc::bad_input, "{}: state is no JSON object", path_);
        const Fields state(json_, path_ + ": state");
        HETERO_TRY(const std::string format, state.text("format"));
        HETERO_TRY(const int version, state.integer<int>("version"));
        if (format != format_name || version != format_version)
            return fail(Errc::bad_input, "{}: state is {} {}; {} {} is read here", path_, printable(format, 30),
                        version, format_name, format_version);
        if (json_.contains("digest") && json_["digest"] != digest_of(json_))
            return fail(Errc::bad_input, "{}: state is damaged: its digest is {}", path_, digest_of(json_));
        HETERO_CHECK(check_all_are_there());
        HETERO_CHECK(check_dtypes());
        HETERO_TRY(layout_, layout_of(state, path_));
        HETERO_TRY(const Fields identity, state.object("identity"));
        HETERO_TRY(header_.identity, identity_of(identity));
        HETERO_CHECK(read_shard_and_history(state));
        HETERO_CHECK(read_sequences(state));
        HETERO_CHECK(read_layers(state));
        if (const Status checked = check_header(header_); !checked) return fail_with(checked.error(), path_);
        if (const Status parts = check_parts(header_, layout_); !parts)
            return fail(Errc::bad_input, "{}: {}", path_, parts.error().message);
        return check_tensors(text->bytes.size());
    }

    [[nodiscard]] const Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return path_; }
    Status finish() override { return {}; }

    Result<Layer> read_layer() override {
        const std::size_t s = next_ / header_.identity.n_layers, number = next_ % header_.identity.n_layers;
        if (s >= header_.sequences.size()) return fail(Errc::internal, "{}: no layer is left to read", path_);
        Layer layer;
        for (const PartId id : {PartId::k, PartId::v}) {
            const std::string tensor = part_tensor(s, number, id);
            const io::TensorView& view = *tensors_->find(tensor);  // check_tensors()
            HETERO_CHECK(check_crc(tensor, view.bytes));
            HETERO_TRY(layer.part(id),
                       allocate_part(header_, header_.scheme(number, id), header_.stored_tokens(s, number), id));
            from_pages(layout_, page_shape_of(header_, s, number, id), id == PartId::k, view.bytes,
                       layer.part(id).values.bytes);
            tensors_->forget(view);
        }
        ++next_;
        return layer;
    }

private:
    Status read_shard_and_history(const Fields& state) {
        HETERO_TRY(const Fields shard, state.object("shard"));
        HETERO_TRY(header_.shard.tp_size, shard.integer<std::uint32_t>("tp_size"));
        HETERO_TRY(header_.shard.tp_rank, shard.integer<std::uint32_t>("tp_rank"));
        HETERO_TRY(header_.shard.head_first, shard.integer<std::uint32_t>("head_first"));
        HETERO_TRY(header_.shard.head_count, shard.integer<std::uint32_t>("head_count"));
        HETERO_TRY(const auto history, state.list("provenance"));
        for (const Fields& one : history) {
            ProvenanceEntry& entry = header_.provenance.emplace_back();
            HETERO_TRY(entry.tool, one.text("tool"));
            HETERO_TRY(entry.version, one.text("version"));
            HETERO_TRY(entry.what, one.text("what"));
        }
        return {};
    }

    Status read_sequences(const Fields& state) {
        HETERO_TRY(const auto sequences, state.list("sequences"));
        for (std::size_t s = 0; s < sequences.size(); ++s) {
            Sequence& one = header_.sequences.emplace_back();
            HETERO_TRY(one.id, sequences[s].text("id"));
            HETERO_TRY(one.pending_token, sequences[s].integer<std::int32_t>("pending_token"));
            HETERO_TRY(one.special_parsed, sequences[s].flag("special_parsed"));
            HETERO_TRY(const io::TensorView* tokens, vector_tensor(tokens_name(s), DType::i32));
            one.tokens.resize(tokens->shape[0]);
            std::memcpy(one.tokens.data(), tokens->bytes.data(), tokens->bytes.size());
            if (tensors_->find(logits_name(s)) == nullptr) continue;
            HETERO_TRY(const io::TensorView* logits, vector_tensor(logits_name(s), DType::f32));
            one.logits.resize(logits->shape[0]);
            std::memcpy(one.logits.data(), logits->bytes.data(), logits->bytes.size());
        }
        return {};
    }

    Status read_layers(const Fields& state) {
        HETERO_TRY(const auto layers, state.list("layers"));
        for (const Fields& one : layers) {
            LayerShape& shape = header_.layer_shapes.emplace_back();
            HETERO_TRY(const std::string kind, one.text("kind"));
            const auto known = kind_from_name(kind);
            if (!known) return fail(Errc::bad_input, "{}: a layer is of kind '{}'", path_, printable(kind, 30));
            shape.kind = *known;
            HETERO_TRY(shape.window, one.integer<std::uint32_t>("window"));
        }
        // The types are those of the first sequence's tensors; check_tensors() holds the others to them.
        for (std::size_t layer = 0; layer < header_.identity.n_layers; ++layer) {
            for (const PartId id : {PartId::k, PartId::v}) {
                const std::string tensor = part_tensor(0, layer, id);
                HETERO_TRY(const io::TensorView* view, need(tensor));
                if (view->dtype != DType::f16 && view->dtype != DType::bf16 && view->dtype != DType::f32)
                    return fail(Errc::bad_input, "{}: tensor '{}' is of type {}; f16, bf16 and f32 are read", path_,
                                tensor, kernels::dtype_info(view->dtype).name);
                Scheme scheme;
                scheme.codec = std::string(kernels::dtype_info(view->dtype).name);
                scheme.source_dtype = view->dtype;
                header_.schemes(id).push_back(scheme);
            }
        }
        return {};
    }

    Result<const io::TensorView*> need(const std::string& tensor) const {
        const io::TensorView* view = tensors_->find(tensor);
        if (view == nullptr) return fail(Errc::bad_input, "{}", tensors_->why(tensor));
        return view;
    }

    Result<const io::TensorView*> vector_tensor(const std::string& tensor, DType dtype) const {
        HETERO_TRY(const io::TensorView* view, need(tensor));
        if (view->dtype != dtype || view->shape.size() != 1)
            return fail(Errc::bad_input, "{}: tensor '{}' is no list of {}", path_, tensor,
                        kernels::dtype_info(dtype).name);
        HETERO_CHECK(check_crc(tensor, view->bytes));
        return view;
    }

    // The tensors are those that a sink writes of such a state. A layer or sequence more than the state says would be
    // lost without a word.
    Status check_tensors(std::uint64_t state_bytes) const {
        std::unordered_set<std::string> known;
        for (const io::TensorSpec& spec : tensors_of(header_, layout_, state_bytes)) {
            known.insert(spec.name);
            HETERO_TRY(const io::TensorView* view, need(spec.name));
            if (view->shape == spec.shape && view->dtype == spec.dtype) continue;
            return fail(Errc::bad_input, "{}: tensor '{}' is [{}] of {}, expected [{}] of {}", path_, spec.name,
                        fmt::join(view->shape, ", "), kernels::dtype_info(view->dtype).name,
                        fmt::join(spec.shape, ", "), kernels::dtype_info(spec.dtype).name);
        }
        for (const std::string& tensor : tensors_->names())
            if (!known.contains(tensor))
                return fail(Errc::bad_input, "{}: tensor '{}' is of no layer or sequence that 'state' has", path_,
                            printable(tensor));
        return {};
    }

    // Logits are optional, but not those that the state has a checksum of.
    Status check_all_are_there() const {
        const auto all = json_.find("crc32c");
        if (all == json_.end() || !all->is_object()) return {};
        for (const auto& [tensor, crc] : all->items()) HETERO_CHECK(need(tensor));
        return {};
    }

    // The digest covers what the state says, not the tensors' own header.
    Status check_dtypes() const {
        const auto all = json_.find("dtypes");
        if (all == json_.end() || !all->is_object()) return {};
        for (const auto& [tensor, dtype] : all->items()) {
            HETERO_TRY(const io::TensorView* view, need(tensor));
            if (const std::string found(kernels::dtype_info(view->dtype).name); dtype != found)
                return fail(Errc::bad_input, "{}: tensor '{}' is damaged: of type {}, expected {}", path_,
                            printable(tensor), found, printable(dtype.dump(), 30));
        }
        return {};
    }

    Status check_crc(const std::string& tensor, std::span<const std::byte> bytes) const {
        const auto all = json_.find("crc32c");
        if (all == json_.end()) return {};
        const auto one = all->is_object() ? all->find(tensor) : all->end();
        if (!all->is_object() || one == all->end() || !one->is_string())
            return fail(Errc::bad_input, "{}: state has checksums, but none of '{}'", path_, tensor);
        if (const std::string found = crc_text(crc32c(bytes)); *one != found)
            return fail(Errc::bad_input, "{}: tensor '{}' is damaged: CRC-32C {}, expected {}", path_, tensor, found,
                        printable(one->get<std::string>(), 30));
        return {};
    }

    std::string path_;
    std::shared_ptr<const io::TensorSource> tensors_;
    Json json_;
    PageLayout layout_;
    Header header_;
    std::size_t next_ = 0;
};

}  // namespace

Result<std::unique_ptr<Sink>> create_pages(const std::string& path, const PageLayout& layout, io::Overwrite overwrite) {
    HETERO_CHECK(io::check_output_path(path, overwrite));
    return std::make_unique<PagesSink>(path, layout, overwrite);
}

Result<std::unique_ptr<Source>> open_pages(const std::string& path) try {
    auto source = std::make_unique<PagesSource>(path);
    HETERO_CHECK(source->open());
    return source;
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "{}: not enough memory to open it", path);
}

}  // namespace hetero::kv
