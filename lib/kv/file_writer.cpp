#include <deque>
#include <new>
#include <optional>

#include "kv/file_layout.h"
#include "quant/spec.h"

namespace hetero::kv {
namespace {

namespace h5 = io::h5;
using namespace layout;

struct Attribute {
    const char* name;
    h5::Value value;
};

Status set_all(h5::Node& node, const std::vector<Attribute>& attributes) {
    for (const Attribute& attribute : attributes) HETERO_CHECK(node.set(attribute.name, attribute.value));
    return {};
}

h5::Value text(std::string_view value) { return std::string(value); }
h5::Value integer(std::uint64_t value) { return static_cast<std::int64_t>(value); }

std::vector<Attribute> root_attributes(const Header& header, std::string provenance) {
    const Identity& identity = header.identity;
    return {
        {"format", text(format_name)},
        {"schema_major", schema_major},
        {"schema_minor", schema_minor_of(header)},
        {"state", text(state_partial)},
        {"writer", text("hetero " HETERO_VERSION)},
        {"model_id", identity.model_id},
        {"arch", identity.arch},
        {"n_layers", integer(identity.n_layers)},
        {"n_heads", integer(identity.n_heads)},
        {"n_kv_heads", integer(identity.n_kv_heads)},
        {"head_dim_k", integer(identity.head_dim_k)},
        {"head_dim_v", integer(identity.head_dim_v)},
        {"vocab_size", integer(identity.vocab_size)},
        {"context_length", integer(identity.context_length)},
        {"rope_convention", text(rope_convention)},
        {"rope_theta", identity.rope_theta},
        {"rope_scaling", identity.rope_scaling},
        {"rope_applied", identity.rope_applied},
        {"arch_digest", to_hex(identity.arch_digest)},
        {"tokenizer_digest", to_hex(identity.tokenizer_digest)},
        {"lineage", to_hex(identity.lineage)},
        {"weights_digest", to_hex(identity.weights_digest)},
        {"compat_hash", to_hex(compat_hash(identity))},
        {"layout", text(array_layout)},
        {"n_sequences", integer(header.sequences.size())},
        {"tokens_per_chunk", integer(header.tokens_per_chunk)},
        {"tp_size", integer(header.shard.tp_size)},
        {"tp_rank", integer(header.shard.tp_rank)},
        {"head_first", integer(header.shard.head_first)},
        {"head_count", integer(header.stored_heads())},
        {"layer_first", integer(0)},
        {"layer_count", integer(identity.n_layers)},
        {"provenance", std::move(provenance)},
    };
}

std::vector<Attribute> scheme_attributes(const Scheme& scheme, DType value_dtype) {
    std::vector<Attribute> attributes = {
        {"scheme", scheme.params.hadamard ? std::string(rotated_prefix) + scheme.codec : scheme.codec},
        {"dtype", text(kernels::dtype_info(value_dtype).name)},
        {"source_dtype", text(kernels::dtype_info(scheme.source_dtype).name)},
    };
    const quant::Codec& codec = *quant::find_codec(scheme.codec);
    if (scheme.sinks != 0) attributes.push_back({"sinks", integer(scheme.sinks)});
    if (scheme.window != 0) attributes.push_back({"window", integer(scheme.window)});
    if (!codec.has_scale()) {
        attributes.push_back({"formula", codec.formula(scheme.params)});
        return attributes;
    }
    const quant::Params& params = scheme.params;
    const bool half = params.scale_dtype == DType::f16;
    attributes.push_back({"axis", text(quant::axis_name(params.axis))});
    attributes.push_back({"group", integer(params.group)});
    attributes.push_back({"symmetric", params.symmetric});
    attributes.push_back({"scale_dtype", text(kernels::dtype_info(params.scale_dtype).name)});
    if (codec.has_options()) {
        attributes.push_back(
            {"rounding", text(half ? "codes to nearest even, scale up, zero down" : "to nearest even")});
    }
    attributes.push_back({"formula", codec.formula(params)});
    return attributes;
}

Result<h5::Node> write_array(h5::Node& parent, const std::string& name, h5::Element element,
                             std::vector<std::uint64_t> shape, std::span<const std::byte> bytes) {
    HETERO_TRY(h5::Node node, parent.create_dataset(name, {element, std::move(shape)}));
    HETERO_CHECK(node.write(bytes));
    return node;
}

// A small array with its own CRC as attribute.
Status write_guarded(h5::Node& parent, const std::string& name, h5::Element element, std::vector<std::uint64_t> shape,
                     std::span<const std::byte> bytes) {
    HETERO_TRY(h5::Node node, write_array(parent, name, element, std::move(shape), bytes));
    return node.set("crc32c", integer(crc32c(bytes)));
}

class FileSink final : public Sink {
public:
    using Publish = std::function<Status(io::ByteStore&)>;

    // `store` is empty; `publish` gets it back when it holds the finished file.
    FileSink(std::unique_ptr<io::ByteStore> store, std::string name, Publish publish,
             std::function<void(WrittenLayer)> written = {})
        : store_(std::move(store)),
          name_(std::move(name)),
          publish_(std::move(publish)),
          written_(std::move(written)) {}

    [[nodiscard]] const std::string& name() const noexcept override { return name_; }
    Status begin(const Header& header) override { return named(begin_(header)); }
    Status write_layer(const Layer& layer) override { return named(write_layer_(layer, nullptr)); }
    Status write_shared(std::shared_ptr<const Layer> layer) override { return named(write_layer_(*layer, layer)); }
    Status complete(const Header& header) override { return named(complete_(header)); }
    Status commit() override {
        const auto written = finish();
        if (!written) return named(tl::unexpected(written.error()));
        Status published = publish_(*store_view_);  // whose errors name the output themselves
        if (!published) {
            discard();
            return published;
        }
        done_ = true;
        publish_ = nullptr;
        return {};
    }
    void abort(const Error& /*reason*/) noexcept override { discard(); }
    ~FileSink() override { discard(); }
    FileSink(const FileSink&) = delete;
    FileSink& operator=(const FileSink&) = delete;

private:
    // A sink that has failed stays failed.
    Status named(Status status) {
        if (status) return status;
        discard();
        return fail_with(status.error(), name_);
    }

    // A transfer that broke off can go on from what is in the file.
    void tell_last() noexcept try {
        if (!written_ || !file_) return;
        static_cast<void>(store_view_->settle());
        tell_written();
    } catch (const std::bad_alloc&) {  // less is known of it
    }

    void discard() noexcept {
        tell_last();
        layers_.reset();
        integrity_.reset();
        file_.reset();
        store_.reset();
        publish_ = nullptr;  // its temporary goes with it
        done_ = true;
    }

    Status begin_(const Header& header) try {
        if (done_ || file_) return fail(Errc::internal, "begin() twice, or after the end");
        header_ = header;
        if (header_.tokens_per_chunk == 0) header_.tokens_per_chunk = choose_tokens_per_chunk(header_);
        HETERO_CHECK(check_header(header_));
        if (header_.tokens_per_chunk == 0)
            return fail(Errc::bad_input, "the channel groups have no common multiple below 2^32");
        HETERO_TRY(std::string provenance, provenance_text(header_.provenance));
        io::ByteStore* store = store_.get();
        store->expect(header_.payload_bytes() + header_.payload_bytes() / 64 + (1U << 20));
        HETERO_TRY(file_, h5::File::create(std::move(store_)));
        store_view_ = store;
        HETERO_TRY(h5::Node root, file_->root());
        HETERO_CHECK(set_all(root, root_attributes(header_, std::move(provenance))));
        const std::uint64_t n_sequences = header_.sequences.size();
        HETERO_TRY(h5::Node sequences, root.create_group("sequences", n_sequences));
        for (std::size_t i = 0; i < header_.sequences.size(); ++i)
            HETERO_CHECK(write_sequence(sequences, sequence_name(i), header_.sequences[i], header_.late_logits));
        HETERO_TRY(integrity_, root.create_group("integrity", n_sequences));
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "not enough memory");
    }

    static Status write_sequence(h5::Node& parent, const std::string& name, const Sequence& sequence, bool late) {
        HETERO_TRY(h5::Node group, parent.create_group(name));
        HETERO_CHECK(set_all(group, {{"id", sequence.id},
                                     {"n_tokens", integer(sequence.tokens.size())},
                                     {"next_position", integer(sequence.next_position())}}));
        if (!late) HETERO_CHECK(group.set("pending_token", std::int64_t{sequence.pending_token}));
        HETERO_CHECK(group.set("special_parsed", sequence.special_parsed));
        HETERO_CHECK(write_guarded(group, "tokens", h5::Element::i32, {sequence.tokens.size()},
                                   std::as_bytes(std::span(sequence.tokens))));
        if (!late) HETERO_CHECK(write_logits(group, sequence));
        HETERO_TRY(h5::Node layers, group.create_group("layers"));
        return {};
    }

    static Status write_logits(h5::Node& group, const Sequence& sequence) {
        if (sequence.logits.empty()) return {};
        return write_guarded(group, "logits", h5::Element::f32, {sequence.logits.size()},
                             std::as_bytes(std::span(sequence.logits)));
    }

    Status complete_(const Header& header) try {
        if (!file_ || !header_.late_logits) return fail(Errc::internal, "complete() of what is complete");
        header_.take_logits_of(header);
        HETERO_CHECK(check_header(header_));
        HETERO_TRY(h5::Node root, file_->root());
        HETERO_TRY(h5::Node sequences, root.open_group("sequences"));
        for (std::size_t i = 0; i < header_.sequences.size(); ++i) {
            HETERO_TRY(h5::Node group, sequences.open_group(sequence_name(i)));
            HETERO_CHECK(group.set("pending_token", std::int64_t{header_.sequences[i].pending_token}));
            HETERO_CHECK(write_logits(group, header_.sequences[i]));
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "not enough memory");
    }

    // Without an owner the layer's bytes are written before this returns.
    Status write_layer_(const Layer& layer, const std::shared_ptr<const Layer>& owner) try {
        if (!file_) return fail(Errc::internal, "write_layer() before begin() or after the end");
        const std::size_t n_layers = header_.identity.n_layers;
        const std::size_t sequence = next_ / n_layers;
        const std::size_t index = next_ % n_layers;
        HETERO_CHECK(check_layer(header_, sequence, index, layer));
        if (index == 0) tables_.emplace_back();
        WrittenLayer written;
        std::vector<std::pair<h5::Node, const Tensor*>> arrays;
        HETERO_CHECK(create_arrays(sequence, index, layer, arrays, written));
        for (auto& [node, tensor] : arrays) {
            HETERO_CHECK(node.write(tensor->bytes, owner));
            if (owner && !tensor->bytes.empty()) ++writes_;
        }
        {
            const h5::Turn turn;
            arrays.clear();
        }
        const LayerChecksums* verified = owner ? verified_checksums(header_, layer) : nullptr;
        tables_.back().push_back(verified != nullptr ? *verified : checksum_layer(header_, layer));
        ++next_;
        if (index + 1 == n_layers) {
            layers_.reset();
            HETERO_CHECK(write_table(sequence));
        }
        if (written_) {
            written.checksums = tables_.back().back();
            on_their_way_.emplace_back(writes_, std::move(written));
            tell_written();
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "not enough memory");
    }

    Status create_arrays(std::size_t sequence, std::size_t index, const Layer& layer,
                         std::vector<std::pair<h5::Node, const Tensor*>>& arrays, WrittenLayer& written) {
        const h5::Turn turn;
        if (index == 0) {
            HETERO_TRY(h5::Node root, file_->root());
            HETERO_TRY(h5::Node sequences, root.open_group("sequences"));
            HETERO_TRY(h5::Node group, sequences.open_group(sequence_name(sequence)));
            HETERO_TRY(layers_, group.open_group("layers"));
        }
        HETERO_TRY(h5::Node group, layers_->create_group(layer_name(index)));
        const LayerShape shape = header_.layer_shape(index);
        HETERO_CHECK(set_all(group, {{"kind", text(kind_name(shape.kind))},
                                     {"window", integer(shape.window)},
                                     {"first_token", integer(header_.first_token(sequence, index))}}));
        for (std::size_t c = 0; c < column_count(header_); ++c) {
            const auto column = static_cast<Column>(c);
            const Tensor& tensor = tensor_of(layer, column);
            if (tensor.empty()) continue;
            const std::optional<h5::Element> element = element_of(tensor.dtype);
            if (!element) return fail(Errc::internal, "no file type for {}", kernels::dtype_info(tensor.dtype).name);
            HETERO_TRY(h5::Node node, group.create_dataset(column_name(shape.kind, column),
                                                           {*element, file_shape(shape.kind, tensor.shape)}));
            if (column < Column::k_scale)
                HETERO_CHECK(set_all(node, scheme_attributes(layer.part(part_of(column)).scheme, tensor.dtype)));
            written.offsets[static_cast<std::size_t>(part_of(column))][array_of(column)] = node.offset();
            arrays.emplace_back(std::move(node), &tensor);
        }
        return {};
    }

    void tell_written() {
        const std::uint64_t done = writes_ - store_view_->unsettled();
        for (; !on_their_way_.empty() && on_their_way_.front().first <= done; on_their_way_.pop_front())
            written_(std::move(on_their_way_.front().second));
    }

    // uint32 [layer][column][chunk]; 0 where a layer has no such array or chunk.
    Status write_table(std::size_t sequence) {
        const std::size_t n_layers = header_.identity.n_layers;
        const std::size_t chunks = table_chunks(header_, sequence);
        const std::size_t n_columns = column_count(header_);
        std::vector<std::uint32_t> table(n_layers * n_columns * chunks);
        for (std::size_t layer = 0; layer < n_layers; ++layer) {
            for (std::size_t c = 0; c < n_columns; ++c) {
                const auto& crcs = crcs_of(tables_[sequence][layer], static_cast<Column>(c));
                std::copy(crcs.begin(), crcs.end(),
                          table.begin() + static_cast<std::ptrdiff_t>((layer * n_columns + c) * chunks));
            }
        }
        return write_guarded(*integrity_, sequence_name(sequence), h5::Element::u32, {n_layers, n_columns, chunks},
                             std::as_bytes(std::span(table)));
    }

    // The finished file, which what comes back owns.
    Result<std::unique_ptr<Source>> finish() try {
        if (!file_) return fail(Errc::internal, "commit() before begin() or after the end");
        const std::size_t expected = header_.sequences.size() * header_.identity.n_layers;
        if (next_ != expected) return fail(Errc::internal, "commit() after {} of {} layers", next_, expected);
        if (header_.late_logits) return fail(Errc::internal, "commit() before the logits");
        HETERO_CHECK(set_all(*integrity_, {{"algorithm", text("crc32c")},
                                           {"columns", text(columns_text(header_))},
                                           {"root", to_hex(root_digest(header_, tables_))}}));
        integrity_.reset();
        {
            HETERO_TRY(h5::Node root, file_->root());
            HETERO_CHECK(root.set("state", text(state_complete)));
        }
        HETERO_CHECK(file_->finish());
        if (written_) tell_written();
        store_ = file_->release_store();
        file_.reset();
        // What was closed without an error may still not be there: only what reads back is published.
        return open_store(std::move(store_), "reading it back", {});
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "not enough memory");
    }

    std::unique_ptr<io::ByteStore> store_;
    io::ByteStore* store_view_ = nullptr;  // of whoever owns it at the moment
    std::string name_;
    Publish publish_;
    std::function<void(WrittenLayer)> written_;
    Header header_;
    std::unique_ptr<h5::File> file_;
    std::optional<h5::Node> layers_, integrity_;  // closed before file_
    std::vector<std::vector<LayerChecksums>> tables_;
    std::deque<std::pair<std::uint64_t, WrittenLayer>> on_their_way_;  // with the writes_ that there were after it
    std::uint64_t writes_ = 0;                                         // that the store does at a time of its own
    std::size_t next_ = 0;
    bool done_ = false;
};

}  // namespace

Result<std::unique_ptr<Sink>> create_file(const std::string& path, io::Overwrite overwrite) {
    HETERO_TRY(io::AtomicFile created, io::AtomicFile::create(path, overwrite));
    return create_file(std::make_shared<io::AtomicFile>(std::move(created)), path, {});
}

Result<std::unique_ptr<Sink>> create_file(std::shared_ptr<io::AtomicFile> file, const std::string& path,
                                          std::function<void(WrittenLayer)> written) {
    auto store = io::open_writable_file_store(file->temporary_path());
    if (!store) return fail_with(store.error(), path);
    return std::make_unique<FileSink>(
        std::move(*store), path, [file = std::move(file)](io::ByteStore&) { return file->publish(); },
        std::move(written));
}

std::unique_ptr<Sink> create_image(std::function<Status(std::span<const std::byte>)> take, std::string name) {
    auto store = std::make_unique<io::MemoryStore>();
    const io::MemoryStore* memory = store.get();
    return std::make_unique<FileSink>(
        std::move(store), std::move(name),
        [memory, take = std::move(take)](io::ByteStore&) { return take(memory->bytes()); });
}

}  // namespace hetero::kv
