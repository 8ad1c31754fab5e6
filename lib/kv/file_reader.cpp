#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <optional>
#include <set>

#include "base/huge_pages.h"
#include "base/stack_memory.h"
#include "kv/canonical.h"
#include "kv/file_attributes.h"
#include "kv/file_layout.h"

namespace hetero::kv {
namespace {

namespace h5 = io::h5;
using namespace layout;

constexpr std::size_t stream_bytes = std::size_t{64} << 10;  // of a piece, unless a row is longer

std::string hex32(std::int64_t value) { return fmt::format("{:08x}", value); }

class FileSource final : public Source {
public:
    FileSource(std::unique_ptr<h5::File> file, std::string name, Verify verify)
        : file_(std::move(file)), name_(std::move(name)), verify_(verify), budget_(file_->size()) {}

    [[nodiscard]] const Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    Status open() {
        HETERO_TRY(const h5::Node root, file_->root());
        HETERO_CHECK(check_format(root));
        HETERO_TRY(header_.identity, read_identity(root));
        HETERO_CHECK(check_identity(header_.identity));  // its layers stay open: read_layers()
        HETERO_TRY(header_.tokens_per_chunk, require_u32(root, "tokens_per_chunk"));
        if (header_.tokens_per_chunk == 0) return fail(Errc::bad_input, "attribute tokens_per_chunk of / is 0");
        HETERO_TRY(const std::string provenance, require<std::string>(root, "provenance"));
        HETERO_TRY(header_.provenance, parse_provenance(provenance));
        HETERO_CHECK(require_text(root, "layout", array_layout));
        HETERO_CHECK(read_shard(root));
        HETERO_TRY(sequences_, root.open_group("sequences"));
        HETERO_CHECK(read_sequences(root, *sequences_));
        HETERO_CHECK(read_layers(*sequences_));
        HETERO_CHECK(check_header(header_));
        HETERO_CHECK(charge_layers());
        if (verify_ == Verify::checksums) HETERO_CHECK(read_integrity(root));
        return {};
    }

    Result<Layer> read_layer() override {
        Layer layer;
        HETERO_CHECK(read_into(layer));
        return layer;
    }

    Status read_into(Layer& layer) override {
        try {
            if (auto status = read_next(layer); !status) return fail_with(status.error(), name_);
            return {};
        } catch (const std::bad_alloc&) {
            return fail(Errc::resource, "{}: not enough memory for a layer", name_);
        }
    }

    Result<std::unique_ptr<LayerStream>> read_stream() override {
        const auto index = static_cast<std::uint32_t>(next_ % header_.identity.n_layers);
        const auto plain = [&](PartId id) {
            const Scheme& scheme = header_.scheme(index, id);
            return !scheme.keeps_rows() && !quant::find_codec(scheme.codec)->has_scale();
        };
        if (verify_ != Verify::checksums || next_ == layer_count() || !plain(PartId::k) || !plain(PartId::v))
            return nullptr;
        try {
            auto stream = std::make_unique<FileStream>(*this, next_ / header_.identity.n_layers, index);
            if (auto status = stream->open(); !status) return fail_with(status.error(), name_);
            ++next_;
            return stream;
        } catch (const std::bad_alloc&) {
            return fail(Errc::resource, "{}: not enough memory for a layer", name_);
        }
    }

    // Header and tables have been checked against the root; a layer that is not handed out need not be right.
    Status skip_layer() override {
        if (next_ == layer_count()) return fail(Errc::internal, "{}: no layer is left to skip", name_);
        ++next_;
        return {};
    }

    Status finish() override {
        if (next_ != layer_count())
            return fail(Errc::internal, "{}: finished after {} of {} layers", name_, next_, layer_count());
        return {};  // the root was checked against header and tables by open(), the layers against the tables
    }

private:
    struct OpenLayer {
        std::optional<h5::Node> group;
        std::array<std::optional<h5::Node>, 2> values;  // [PartId]
    };

    class FileStream final : public LayerStream {
    public:
        FileStream(FileSource& source, std::size_t sequence, std::uint32_t index)
            : source_(source), sequence_(sequence), index_(index) {}
        ~FileStream() override {
            const h5::Turn turn;
            arrays_.clear();
        }
        FileStream(const FileStream&) = delete;
        FileStream& operator=(const FileStream&) = delete;

        Status open() { return source_.open_arrays(sequence_, index_, layer_, arrays_); }

        [[nodiscard]] const Layer& layer() const noexcept override { return layer_; }
        [[nodiscard]] std::size_t chunks(PartId part) const override {
            return chunk_count(layer_.part(part).values.shape[0], source_.header_.tokens_per_chunk);
        }
        Status read(PartId part, std::size_t chunk, TakeFn take) const override {
            try {
                return read_rows(part, chunk, take);
            } catch (const std::bad_alloc&) {
                return fail(Errc::resource, "{}: not enough memory for a piece of a layer", source_.name_);
            }
        }

    private:
        Status read_rows(PartId part, std::size_t chunk, TakeFn take) const {
            const auto& [node, column] = arrays_[static_cast<std::size_t>(part)];
            const std::uint64_t rows = layer_.part(part).values.shape[0], row_bytes = node.bytes() / rows;
            const std::uint64_t unit = source_.header_.tokens_per_chunk, first = chunk * unit,
                                end = std::min(first + unit, rows);
            const std::uint64_t at_once = std::clamp<std::uint64_t>(stream_bytes / row_bytes, 1, end - first);
            StackMemory<stream_bytes> memory;
            std::pmr::vector<std::byte> rows_read(at_once * row_bytes, memory.get());
            std::uint32_t crc = 0;
            Status taken;
            for (std::uint64_t row = first; row < end;) {
                const std::uint64_t stop = std::min(row + at_once, end);
                const std::span<std::byte> piece = std::span(rows_read).first((stop - row) * row_bytes);
                HETERO_CHECK(node.read_at(row * row_bytes, piece));
                crc = crc32c(piece, crc);
                if (taken) taken = take(row, stop, piece);
                row = stop;
            }
            HETERO_CHECK(
                source_.check_crc(node, sequence_, index_, column, chunk, crc));  // what is damaged is no value
            return taken;
        }

        FileSource& source_;
        std::size_t sequence_;
        std::uint32_t index_;
        Layer layer_;
        std::vector<std::pair<h5::Node, Column>> arrays_;  // K and V
    };

    [[nodiscard]] std::size_t layer_count() const { return header_.sequences.size() * header_.identity.n_layers; }

    Status check_format(const h5::Node& root) {
        HETERO_TRY(const std::optional<std::string> format, root.get<std::string>("format"));
        if (!format || *format != format_name)
            return fail(Errc::bad_input,
                        "an HDF5 file, but not a KV state: attribute format of / is {}; {} is expected",
                        format ? '"' + *format + '"' : "missing", format_name);
        HETERO_TRY(const std::int64_t major, require<std::int64_t>(root, "schema_major"));
        HETERO_TRY(const std::int64_t minor, require<std::int64_t>(root, "schema_minor"));
        if (major > schema_major)
            return fail(Errc::bad_input, "hetero-kv {}.{}: this program reads version {}; use a newer hetero", major,
                        minor, schema_major);
        if (major != schema_major || minor < 0)
            return fail(Errc::bad_input, "hetero-kv {}.{}: there is no such version", major, minor);
        HETERO_TRY(const std::string state, require<std::string>(root, "state"));
        if (state != state_complete)
            return fail(Errc::bad_input, "not complete: attribute state of / is \"{}\"; {} is expected", state,
                        state_complete);
        return {};
    }

    // Whether the heads are within those of the model: check_header.
    Status read_shard(const h5::Node& root) {
        const Identity& identity = header_.identity;
        HETERO_CHECK(require_equal(root, "layer_first", std::int64_t{0}));
        HETERO_CHECK(require_equal(root, "layer_count", std::int64_t{identity.n_layers}));
        Shard& shard = header_.shard;
        HETERO_TRY(shard.tp_size, require_u32(root, "tp_size"));
        HETERO_TRY(shard.tp_rank, require_u32(root, "tp_rank"));
        HETERO_TRY(shard.head_first, require_u32(root, "head_first"));
        HETERO_TRY(shard.head_count, require_u32(root, "head_count"));
        if (shard.tp_size != 1) return {};
        HETERO_CHECK(require_equal(root, "tp_rank", std::int64_t{0}));
        HETERO_CHECK(require_equal(root, "head_first", std::int64_t{0}));
        HETERO_CHECK(require_equal(root, "head_count", std::int64_t{identity.n_kv_heads}));
        shard.head_count = 0;  // all
        return {};
    }

    // Several names may stand for one dataset, so the file's size bounds the sum of what is held, not just each.
    Status charge(const h5::Node& node) {
        if (node.bytes() > budget_)
            return fail(Errc::bad_input, "{}: arrays overlap, they have more bytes than the file", node.path());
        budget_ -= node.bytes();
        return {};
    }

    Status charge_layers() {
        for (std::size_t s = 0; s < header_.sequences.size(); ++s) {
            for (std::uint32_t layer = 0; layer < header_.identity.n_layers; ++layer) {
                for (const PartId id : {PartId::k, PartId::v}) {
                    const std::uint64_t bytes =
                        part_bytes(header_, header_.scheme(layer, id), header_.stored_tokens(s, layer), id);
                    if (bytes > budget_)
                        return fail(Errc::bad_input,
                                    "sequence {}, layer {}, {}: arrays overlap, they have more bytes than the file",
                                    header_.sequences[s].id, layer, header_.part_name(layer, id));
                    budget_ -= bytes;
                }
            }
        }
        return {};
    }

    template <class T>
    Result<std::vector<T>> read_array(const h5::Node& parent, const std::string& name, h5::Element element,
                                      const std::vector<std::uint64_t>& shape) {
        HETERO_TRY(const h5::Node node, parent.open_dataset(name));
        if (node.extent().element != element || node.extent().shape != shape)
            return fail(Errc::bad_input, "{}: {} of {} expected, found {} of {}", node.path(),
                        h5::element_name(element), fmt::format("[{}]", fmt::join(shape, ", ")),
                        h5::element_name(node.extent().element),
                        fmt::format("[{}]", fmt::join(node.extent().shape, ", ")));
        HETERO_CHECK(charge(node));
        std::vector<T> values(node.bytes() / sizeof(T));
        const auto bytes = std::as_writable_bytes(std::span(values));
        HETERO_CHECK(node.read(bytes));
        if (verify_ == Verify::checksums) {
            HETERO_TRY(const std::int64_t expected, require<std::int64_t>(node, "crc32c"));
            if (const std::int64_t found = crc32c(bytes); expected != found)
                return fail(Errc::bad_input, "{} is damaged: CRC-32C expected {}, found {}", node.path(),
                            hex32(expected), hex32(found));
        }
        return values;
    }

    Status read_sequences(const h5::Node& root, const h5::Node& sequences) {
        HETERO_TRY(const std::uint32_t n_sequences, require_u32(root, "n_sequences"));
        HETERO_TRY(const std::uint64_t links, sequences.link_count());
        if (n_sequences == 0 || links < n_sequences)
            return fail(Errc::bad_input, "attribute n_sequences of / is {}, {} has {} groups", n_sequences,
                        sequences.path(), links);
        std::set<std::string> ids;
        for (std::uint32_t i = 0; i < n_sequences; ++i) {
            HETERO_TRY(const h5::Node group, sequences.open_group(sequence_name(i)));
            Sequence sequence;
            HETERO_TRY(sequence.id, require<std::string>(group, "id"));
            if (!ids.insert(sequence.id).second)
                return fail(Errc::bad_input, "{}: a second sequence has the id \"{}\"", group.path(), sequence.id);
            HETERO_TRY(const std::uint32_t n_tokens, require_u32(group, "n_tokens"));
            HETERO_CHECK(require_equal(group, "next_position", std::int64_t{n_tokens}));
            if (group.has("positions"))
                return fail(Errc::bad_input,
                            "{}/positions: positions other than 0, 1, 2 ... cannot be read by this "
                            "program",
                            group.path());
            HETERO_TRY(const std::int64_t pending, require<std::int64_t>(group, "pending_token"));
            if (pending < -1 || pending > std::numeric_limits<std::int32_t>::max())
                return fail(Errc::bad_input, "attribute pending_token of {} is {}; -1 or a token id is expected",
                            group.path(), pending);
            sequence.pending_token = static_cast<std::int32_t>(pending);
            HETERO_TRY(sequence.special_parsed, require<bool>(group, "special_parsed"));
            HETERO_TRY(sequence.tokens, read_array<std::int32_t>(group, "tokens", h5::Element::i32, {n_tokens}));
            if (group.has("logits")) {
                HETERO_TRY(sequence.logits,
                           read_array<float>(group, "logits", h5::Element::f32, {header_.identity.vocab_size}));
            }
            header_.sequences.push_back(std::move(sequence));
        }
        return {};
    }

    static Result<h5::Node> open_layers(const h5::Node& sequences, std::size_t sequence) {
        HETERO_TRY(const h5::Node group, sequences.open_group(sequence_name(sequence)));
        return group.open_group("layers");
    }

    // Kinds and schemes, from the first sequence; those of the others are compared as they are read. What is opened for
    // that stays so until the layer is read, as the library takes longer to open things than to read them.
    Status read_layers(const h5::Node& sequences) {
        HETERO_TRY(const h5::Node layers, open_layers(sequences, 0));
        HETERO_TRY(const std::uint64_t links, layers.link_count());
        if (links < header_.identity.n_layers)
            return fail(Errc::bad_input, "{}: {} layers, {} are expected", layers.path(), links,
                        header_.identity.n_layers);
        std::vector<LayerShape> shapes;
        for (std::uint32_t i = 0; i < header_.identity.n_layers; ++i) {
            HETERO_TRY(h5::Node layer, layers.open_group(layer_name(i)));
            HETERO_TRY(const LayerShape shape, read_shape(layer));
            shapes.push_back(shape);
            OpenLayer& open = open_layers_.emplace_back();
            for (const PartId id : {PartId::k, PartId::v}) {
                HETERO_TRY(h5::Node node, layer.open_dataset(column_name(shape.kind, static_cast<Column>(id))));
                HETERO_TRY(Scheme scheme, read_scheme(node));
                header_.schemes(id).push_back(std::move(scheme));
                open.values[static_cast<std::size_t>(id)].emplace(std::move(node));
            }
            open.group.emplace(std::move(layer));
        }
        header_.layer_shapes = std::move(shapes);
        if (header_.all_gqa()) header_.layer_shapes.clear();
        return {};
    }

    static Result<LayerShape> read_shape(const h5::Node& layer) {
        LayerShape shape;
        HETERO_TRY(const std::string kind, require<std::string>(layer, "kind"));
        const std::optional<LayerKind> known = kind_from_name(kind);
        if (!known)
            return fail(Errc::bad_input, "attribute kind of {} is \"{}\"; gqa, swa or mla is expected", layer.path(),
                        kind);
        shape.kind = *known;
        HETERO_TRY(shape.window, require_u32(layer, "window"));
        if ((shape.kind == LayerKind::swa) != (shape.window != 0))
            return fail(Errc::bad_input, "attribute window of {} is {}; {} is expected of kind {}", layer.path(),
                        shape.window, shape.kind == LayerKind::swa ? "1 or more" : "0", kind);
        return shape;
    }

    Status read_integrity(const h5::Node& root) {
        HETERO_TRY(const h5::Node group, root.open_group("integrity"));
        HETERO_CHECK(require_text(group, "algorithm", "crc32c"));
        HETERO_CHECK(require_text(group, "columns", columns_text(header_)));
        const std::uint32_t n_layers = header_.identity.n_layers;
        for (std::size_t s = 0; s < header_.sequences.size(); ++s) {
            const std::uint64_t chunks = table_chunks(header_, s);
            const std::size_t n_columns = column_count(header_);
            HETERO_TRY(
                const std::vector<std::uint32_t> table,
                read_array<std::uint32_t>(group, sequence_name(s), h5::Element::u32, {n_layers, n_columns, chunks}));
            auto& layers = tables_.emplace_back(n_layers);
            for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
                for (std::size_t c = 0; c < n_columns; ++c) {
                    const auto column = static_cast<Column>(c);
                    if (!has_column(layer, column)) continue;
                    const auto begin = table.begin() + static_cast<std::ptrdiff_t>((layer * n_columns + c) * chunks);
                    const auto own = static_cast<std::ptrdiff_t>(column_chunks(header_, s, layer, column));
                    crcs_of(layers[layer], column).assign(begin, begin + own);
                }
            }
        }
        HETERO_TRY(const Digest expected, require_digest(group, "root"));
        if (const Digest found = root_digest(header_, tables_); expected != found)
            return fail(Errc::bad_input,
                        "damaged: attributes and checksum tables do not give the root of /integrity: expected {}, "
                        "found {}",
                        to_hex(expected), to_hex(found));
        return {};
    }

    [[nodiscard]] const Scheme& scheme_of(std::uint32_t layer, Column column) const {
        return header_.scheme(layer, part_of(column));
    }
    [[nodiscard]] bool has_column(std::uint32_t layer, Column column) const {
        if (column < Column::k_scale) return true;
        const Scheme& scheme = scheme_of(layer, column);
        if (column >= Column::k_sink) return (column < Column::k_tail ? scheme.sinks : scheme.window) != 0;
        return quant::find_codec(scheme.codec)->has_scale() && (column < Column::k_zero || !scheme.params.symmetric);
    }

    Status read_next(Layer& layer) {
        const std::uint32_t n_layers = header_.identity.n_layers;
        const std::size_t s = next_ / n_layers;
        const auto index = static_cast<std::uint32_t>(next_ % n_layers);
        if (s >= header_.sequences.size()) return fail(Errc::internal, "no layer is left to read");
        layer.verified.reset();
        std::vector<std::pair<h5::Node, Column>> arrays;
        HETERO_CHECK(open_arrays(s, index, layer, arrays));
        for (const auto& [node, column] : arrays) resize_in_huge_pages(tensor_of(layer, column).bytes, node.bytes());
        HETERO_CHECK(check_layer(header_, s, index, layer));
        for (const auto& [node, column] : arrays) HETERO_CHECK(read_checked(node, s, index, column, layer));
        {
            const h5::Turn turn;
            arrays.clear();
        }
        if (verify_ == Verify::checksums)
            layer.verified =
                std::make_shared<const VerifiedPieces>(VerifiedPieces{header_.tokens_per_chunk, tables_[s][index]});
        ++next_;
        return {};
    }

    // The layer's datasets, and their types and shapes in `layer`.
    Status open_arrays(std::size_t s, std::uint32_t index, Layer& layer,
                       std::vector<std::pair<h5::Node, Column>>& arrays) {
        const h5::Turn turn;
        OpenLayer open;
        if (s == 0) {
            open = std::move(open_layers_[index]);
        } else {
            if (!layers_ || layers_of_ != s) {
                HETERO_TRY(layers_, open_layers(*sequences_, s));
                layers_of_ = s;
            }
            HETERO_TRY(open.group, layers_->open_group(layer_name(index)));
        }
        const h5::Node& group = *open.group;
        const LayerShape shape = header_.layer_shape(index);
        if (s != 0) {  // those of the first sequence are in the header
            HETERO_CHECK(require_text(group, "kind", kind_name(shape.kind)));
            HETERO_CHECK(require_equal(group, "window", std::int64_t{shape.window}));
        }
        HETERO_CHECK(require_equal(group, "first_token", static_cast<std::int64_t>(header_.first_token(s, index))));
        for (std::size_t c = 0; c < max_columns; ++c) {
            const auto column = static_cast<Column>(c);
            if (c < column_count(header_) && has_column(index, column)) {
                HETERO_TRY(h5::Node node, open_tensor(open, s, index, column, layer));
                arrays.emplace_back(std::move(node), column);
            } else {
                tensor_of(layer, column) = {};
            }
        }
        return {};
    }

    Result<h5::Node> open_tensor(OpenLayer& open, std::size_t s, std::uint32_t index, Column column,
                                 Layer& layer) const {
        const LayerKind kind = header_.layer_shape(index).kind;
        const PartId id = part_of(column);
        const Scheme& scheme = scheme_of(index, column);
        std::optional<h5::Node> opened;
        if (column < Column::k_scale) opened = std::move(open.values[static_cast<std::size_t>(id)]);
        if (!opened) {
            HETERO_TRY(opened, open.group->open_dataset(column_name(kind, column)));
        }
        h5::Node& node = *opened;
        if (column < Column::k_scale) {
            layer.part(id).scheme = scheme;
            HETERO_TRY(const Scheme stored, s == 0 ? Result<Scheme>(scheme) : read_scheme(node));
            if (stored != scheme)
                return fail(Errc::bad_input, "{}: scheme {} differs from {} of the first sequence", node.path(),
                            describe(stored), describe(scheme));
        }
        // Compared before memory is taken.
        const std::uint64_t n_tokens = header_.stored_tokens(s, index);
        const KeptRows rows = kept_rows(scheme, n_tokens);
        auto shape = column < Column::k_scale  ? values_shape(header_, scheme, n_tokens, id)
                     : column < Column::k_sink ? scale_shape(header_, scheme, n_tokens, id)
                     : column < Column::k_tail ? kept_shape(header_, scheme.sinks, rows.sinks, id)
                                               : kept_shape(header_, scheme.window, rows.tail, id);
        const auto expected = file_shape(kind, shape);
        const std::optional<DType> dtype = dtype_of(node.extent().element);
        if (!dtype || node.extent().shape != expected)
            return fail(Errc::bad_input, "{}: {} of [{}] found, [{}] is expected", node.path(),
                        h5::element_name(node.extent().element), fmt::join(node.extent().shape, ", "),
                        fmt::join(expected, ", "));
        if (column < Column::k_scale) HETERO_CHECK(require_text(node, "dtype", kernels::dtype_info(*dtype).name));
        Tensor& tensor = tensor_of(layer, column);
        tensor.dtype = *dtype;
        tensor.shape = std::move(shape);
        return std::move(node);
    }

    // For messages: the tokens of a chunk, the first and one past the last.
    [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> tokens_of_chunk(std::size_t s, std::uint32_t layer,
                                                                          Column column, std::uint64_t chunk) const {
        const std::uint64_t first = header_.first_token(s, layer), end = header_.sequences[s].tokens.size();
        const KeptRows rows = kept_rows(scheme_of(layer, column), header_.stored_tokens(s, layer));
        if (column >= Column::k_tail) return {end - rows.tail, end};
        if (column >= Column::k_sink) return {first, first + rows.sinks};
        const std::uint64_t begin = first + rows.sinks + chunk * header_.tokens_per_chunk;
        return {begin, std::min(begin + header_.tokens_per_chunk, end - rows.tail)};
    }

    // Bytes are compared with their checksums while they are in a core's cache.
    Status read_checked(const h5::Node& node, std::size_t s, std::uint32_t index, Column column, Layer& layer) const {
        constexpr std::size_t piece_bytes = std::size_t{256} << 10;
        const std::span<std::byte> all(tensor_of(layer, column).bytes);
        if (verify_ != Verify::checksums) return node.read(all);
        const std::uint64_t size = chunk_bytes(header_, layer.part(part_of(column)))[array_of(column)];
        for (std::size_t chunk = 0, at = 0; at < all.size(); ++chunk) {
            const std::size_t end = std::min<std::uint64_t>(all.size(), at + size);
            std::uint32_t crc = 0;
            while (at < end) {
                const std::span<std::byte> piece = all.subspan(at, std::min(piece_bytes, end - at));
                HETERO_CHECK(node.read_at(at, piece));
                crc = crc32c(piece, crc);
                at += piece.size();
            }
            HETERO_CHECK(check_crc(node, s, index, column, chunk, crc));
        }
        return {};
    }

    Status check_crc(const h5::Node& node, std::size_t s, std::uint32_t index, Column column, std::size_t chunk,
                     std::uint32_t crc) const {
        const std::vector<std::uint32_t>& expected = crcs_of(tables_[s][index], column);
        if (chunk < expected.size() && crc == expected[chunk]) return {};
        const auto [first, stop] = tokens_of_chunk(s, index, column, chunk);
        return fail(Errc::bad_input,
                    "{} is damaged: sequence {}, layer {}, chunk {} (tokens {} to {}): CRC-32C expected {}, found {}",
                    node.path(), header_.sequences[s].id, index, chunk, first, stop - 1,
                    chunk < expected.size() ? hex32(expected[chunk]) : "none", hex32(crc));
    }

    std::unique_ptr<h5::File> file_;
    // Closed before file_. To open a group is to check the links of all it holds: of the sequences once.
    std::optional<h5::Node> sequences_, layers_;  // layers_: of the sequence layers_of_
    std::vector<OpenLayer> open_layers_;          // of the first sequence, those that are not read yet
    std::size_t layers_of_ = 0;
    std::string name_;
    Verify verify_;
    std::uint64_t budget_;
    Header header_;
    std::vector<std::vector<LayerChecksums>> tables_;
    std::size_t next_ = 0;
};

}  // namespace

Result<std::unique_ptr<Source>> layout::open_store(std::unique_ptr<io::ByteStore> store, std::string name,
                                                   Verify verify) {
    try {
        auto file = h5::File::open(std::move(store));
        if (!file) return fail_with(file.error(), name);
        auto source = std::make_unique<FileSource>(std::move(*file), name, verify);
        if (auto status = source->open(); !status) return fail_with(status.error(), name);
        return source;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory", name);
    }
}

Result<std::unique_ptr<Source>> open_file(const std::string& path, Verify verify) {
    auto store = io::open_file_store(path);
    if (!store) return fail_with(store.error(), path);
    return layout::open_store(std::move(*store), path, verify);
}

Result<std::unique_ptr<Source>> open_image(std::vector<std::byte> image, std::string name) {
    return layout::open_store(std::make_unique<io::MemoryStore>(std::move(image)), std::move(name), Verify::checksums);
}

}  // namespace hetero::kv
