#include "kv/shards.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/printable.h"
#include "base/redact.h"

namespace hetero::kv {
namespace {

std::string text(const Shard& shard) { return fmt::format("shard {} of {}", shard.tp_rank, shard.tp_size); }

Shard normal(const Shard& shard) { return shard.tp_size == 1 ? Shard{} : shard; }

// Whether `want` is less than all of an array that has the heads `have`: what has no heads (a latent) is not cut.
bool is_cut(const Tensor& tensor, HeadRange have, HeadRange want) {
    return !tensor.empty() && have.count != want.count && tensor.shape[1] == have.count;
}

// Heads `want` of an array that has the heads `have`.
Tensor cut(const Tensor& tensor, HeadRange have, HeadRange want) {
    if (!is_cut(tensor, have, want)) return tensor;
    Tensor out{tensor.dtype, tensor.shape, {}};
    out.shape[1] = want.count;
    if (tensor.bytes.empty()) return out;
    const auto rows = static_cast<std::size_t>(tensor.shape[0]);
    const std::size_t one = tensor.bytes.size() / (rows * have.count), from = have.count * one, to = want.count * one;
    out.bytes.resize(rows * to);
    const std::byte* source = tensor.bytes.data() + (want.first - have.first) * one;
    for (std::size_t row = 0; row < rows; ++row) std::memcpy(out.bytes.data() + row * to, source + row * from, to);
    return out;
}

// Bytes of one head in one row of an array [row][head][...].
std::size_t head_bytes(const Tensor& tensor) {
    return tensor.bytes.size() /
           (static_cast<std::size_t>(tensor.shape[0]) * static_cast<std::size_t>(tensor.shape[1]));
}

class SlicedSource final : public Source {
public:
    SlicedSource(std::unique_ptr<Source> inner, const Shard& shard)
        : inner_(std::move(inner)), header_(inner_->header()) {
        header_.shard = normal(shard);
        header_.tokens_per_chunk = 0;
        have_ = heads_of(inner_->header());
        want_ = heads_of(header_);
    }
    [[nodiscard]] const Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }
    Status finish() override {
        HETERO_CHECK(inner_->finish());
        if (header_.late_logits) header_.take_logits_of(inner_->header());
        return {};
    }

    Result<Layer> read_layer() override try {
        HETERO_TRY(Layer layer, inner_->read_layer());
        layer.verified.reset();
        for (const PartId id : {PartId::k, PartId::v})
            for (const auto array : part_arrays) {
                Tensor& tensor = layer.part(id).*array;
                if (is_cut(tensor, have_, want_)) tensor = cut(tensor, have_, want_);
            }
        return layer;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory to cut heads out of a layer", name());
    }

private:
    std::unique_ptr<Source> inner_;
    Header header_;
    HeadRange have_, want_;
};

std::string named(const Source& shard) {
    return fmt::format("{} (rank {})", shard.name(), shard.header().shard.tp_rank);
}

// What has to be the same in all shards of a state.
Status check_belongs(const Source& first, const Source& other) {
    const Header &a = first.header(), &b = other.header();
    std::vector<Mismatch> mismatches = compare(a.identity, b.identity);
    if (a.identity.weights_digest != b.identity.weights_digest)
        mismatches.push_back({"weights_digest", to_hex(a.identity.weights_digest), to_hex(b.identity.weights_digest)});
    for (Mismatch& one : compare(a.layer_shapes, b.layer_shapes)) mismatches.push_back(std::move(one));
    const auto differs = [&](std::string field, const auto& left, const auto& right) {
        if (left != right) mismatches.push_back({std::move(field), fmt::format("{}", left), fmt::format("{}", right)});
    };
    const auto differs_privately = [&](std::string field, std::int32_t left, std::int32_t right) {
        if (left != right) mismatches.push_back({std::move(field), private_token(left), private_token(right)});
    };
    const auto same_entry = [](const ProvenanceEntry& x, const ProvenanceEntry& y) {
        return x.tool == y.tool && x.version == y.version && x.what == y.what;
    };
    if (!std::equal(a.provenance.begin(), a.provenance.end(), b.provenance.begin(), b.provenance.end(), same_entry)) {
        const auto last = [](const Header& header) {
            return header.provenance.empty() ? std::string("nothing") : printable(header.provenance.back().what);
        };
        mismatches.push_back({"history (they are of different runs)", last(a), last(b)});
    }
    differs("tp_size", a.shard.tp_size, b.shard.tp_size);
    differs("number of sequences", a.sequences.size(), b.sequences.size());
    for (std::size_t s = 0; s < std::min(a.sequences.size(), b.sequences.size()); ++s) {
        const Sequence &x = a.sequences[s], &y = b.sequences[s];
        const auto field = [&](std::string_view what) { return fmt::format("{} of sequence {}", what, s); };
        differs(field("id"), x.id, y.id);
        differs(field("number of tokens"), x.tokens.size(), y.tokens.size());
        differs_privately(field("pending_token"), x.pending_token, y.pending_token);
        differs(field("special_parsed"), x.special_parsed, y.special_parsed);
        if (x.tokens.size() != y.tokens.size()) continue;
        const auto [l, r] = std::mismatch(x.tokens.begin(), x.tokens.end(), y.tokens.begin());
        if (l != x.tokens.end()) differs_privately(field(fmt::format("tokens[{}]", l - x.tokens.begin())), *l, *r);
    }
    if (mismatches.empty()) {  // as many layers on both sides
        for (const PartId id : {PartId::k, PartId::v})
            for (std::size_t layer = 0; layer < a.schemes(id).size(); ++layer)
                if (a.scheme(layer, id) != b.scheme(layer, id) && mismatches.empty())
                    mismatches.push_back({fmt::format("scheme of layer {}, {}", layer, a.part_name(layer, id)),
                                          a.scheme(layer, id).codec, b.scheme(layer, id).codec});
    }
    if (mismatches.empty()) return {};
    return fail(Errc::bad_input, "{} and {} are not shards of one state: {}", named(first), named(other),
                to_text(mismatches, "the first", "the other"));
}

// The heads of `target`, out of shards that together have them.
class MergedSource final : public Source {
public:
    MergedSource(std::vector<std::unique_ptr<Source>> shards, const Shard& target, std::string name)
        : shards_(std::move(shards)), target_(normal(target)), name_(std::move(name)) {}

    [[nodiscard]] const Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    Status open() {
        std::sort(shards_.begin(), shards_.end(),
                  [](const auto& a, const auto& b) { return a->header().shard.tp_rank < b->header().shard.tp_rank; });
        const Source& first = *shards_.front();
        for (std::size_t i = 1; i < shards_.size(); ++i) {
            HETERO_CHECK(check_belongs(first, *shards_[i]));
            if (const Source& last = *shards_[i - 1]; last.header().shard.tp_rank == shards_[i]->header().shard.tp_rank)
                return fail(Errc::bad_input, "{} and {} are both {}", last.name(), shards_[i]->name(),
                            text(last.header().shard));
        }
        header_ = first.header();
        header_.shard = target_;
        header_.tokens_per_chunk = 0;
        if (const Status checked = check_header(header_); !checked) return fail_with(checked.error(), name_);
        HETERO_CHECK(take_logits());
        HETERO_CHECK(find_owners());
        leave_out_idle();
        return {};
    }

    Result<Layer> read_layer() override try {
        const std::size_t n_layers = header_.identity.n_layers;
        const std::size_t sequence = next_ / n_layers, layer = next_ % n_layers;
        if (sequence >= header_.sequences.size()) return fail(Errc::internal, "{}: no layer is left to read", name_);
        Layer merged;
        for (const PartId id : {PartId::k, PartId::v}) {
            HETERO_TRY(merged.part(id),
                       allocate_part(header_, header_.scheme(layer, id), header_.stored_tokens(sequence, layer), id));
        }
        for (std::size_t i = 0; i < shards_.size(); ++i) {
            HETERO_TRY(const Layer part, shards_[i]->read_layer());
            HETERO_CHECK(add(i, sequence, layer, part, merged));
        }
        ++next_;
        return merged;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory to put a layer together", name_);
    }

    Status finish() override {
        for (const auto& shard : shards_) HETERO_CHECK(shard->finish());
        if (header_.late_logits) header_.take_logits_of(shards_.front()->header());
        return {};
    }

private:
    Status take_logits() {
        for (std::size_t s = 0; s < header_.sequences.size(); ++s) {
            std::vector<float>& logits = header_.sequences[s].logits;
            const Source* from = logits.empty() ? nullptr : shards_.front().get();
            for (const auto& shard : shards_) {
                const std::vector<float>& own = shard->header().sequences[s].logits;
                if (own.empty()) continue;
                if (from == nullptr) {
                    from = shard.get();
                    logits = own;
                } else if (std::memcmp(own.data(), logits.data(), own.size() * sizeof(float)) != 0) {
                    return fail(Errc::bad_input,
                                "{} and {} are not shards of one state: the logits of sequence {} differ", named(*from),
                                named(*shard), header_.sequences[s].id);
                }
            }
        }
        return {};
    }

    Status find_owners() {
        wanted_ = heads_of(header_);
        for (std::uint32_t head = wanted_.first; head < wanted_.end(); ++head) {
            const auto holds = [&](const auto& shard) { return heads_of(shard->header()).holds(head); };
            const auto found = std::find_if(shards_.begin(), shards_.end(), holds);
            if (found == shards_.end()) {
                std::string there;
                for (const auto& shard : shards_)
                    there += fmt::format("{}{} has {}", there.empty() ? "" : ", ", named(*shard),
                                         to_text(heads_of(shard->header())));
                return fail(Errc::bad_input, "{}: no shard has head {} of {}: {}", name_, head,
                            header_.identity.n_kv_heads, there);
            }
            owner_.push_back(static_cast<std::size_t>(found - shards_.begin()));
        }
        return {};
    }

    // Of a whole state every shard is read, and what several hold is compared; of some heads only shards that own one.
    void leave_out_idle() {
        if (!header_.is_shard()) return;
        std::vector<std::unique_ptr<Source>> read;
        for (std::size_t i = 0; i < shards_.size(); ++i) {
            if (std::find(owner_.begin(), owner_.end(), i) == owner_.end()) continue;
            std::replace(owner_.begin(), owner_.end(), i, read.size());  // none of a later shard is as small
            read.push_back(std::move(shards_[i]));
        }
        shards_ = std::move(read);
    }

    [[nodiscard]] std::size_t owner_of(std::uint32_t head) const { return owner_[head - wanted_.first]; }

    // Copies the heads that shard `i` owns, and compares the others with what their owners gave.
    Status add(std::size_t i, std::size_t sequence, std::size_t layer, const Layer& value, Layer& merged) const {
        const HeadRange own = heads_of(shards_[i]->header()), both = common(own, wanted_);
        HETERO_CHECK(named_check(i, check_layer(shards_[i]->header(), sequence, layer, value)));
        for (const PartId id : {PartId::k, PartId::v}) {
            for (const auto array : part_arrays) {
                const Tensor& from = value.part(id).*array;
                Tensor& to = merged.part(id).*array;
                if (from.empty() || from.bytes.empty()) continue;
                const std::size_t one = head_bytes(from);
                for (std::uint32_t head = both.first; head < both.end();) {
                    std::uint32_t end = head + 1;  // of a run of heads with one owner
                    while (end < both.end() && owner_of(end) == owner_of(head)) ++end;
                    for (std::size_t row = 0; row < from.shape[0]; ++row) {
                        const std::byte* source = from.bytes.data() + (row * own.count + head - own.first) * one;
                        std::byte* target = to.bytes.data() + (row * wanted_.count + head - wanted_.first) * one;
                        if (owner_of(head) == i) {
                            std::memcpy(target, source, (end - head) * one);
                        } else if (std::memcmp(target, source, (end - head) * one) != 0) {
                            const auto at = static_cast<std::size_t>(
                                std::mismatch(target, target + (end - head) * one, source).first - target);
                            return fail_different(owner_of(head), i, sequence, layer, id,
                                                  head + static_cast<std::uint32_t>(at / one));
                        }
                    }
                    head = end;
                }
            }
        }
        return {};
    }

    [[nodiscard]] tl::unexpected<Error> fail_different(std::size_t a, std::size_t b, std::size_t sequence,
                                                       std::size_t layer, PartId id, std::uint32_t head) const {
        const bool has_heads = header_.layer_shape(layer).kind != LayerKind::mla;
        return fail(Errc::bad_input, "{} and {} hold different numbers: sequence {}, layer {}, {}{}",
                    named(*shards_[a]), named(*shards_[b]), header_.sequences[sequence].id, layer,
                    header_.part_name(layer, id), has_heads ? fmt::format(", head {}", head) : "");
    }

    [[nodiscard]] Status named_check(std::size_t i, Status status) const {
        if (status) return status;
        return fail_with(status.error(), shards_[i]->name());
    }

    std::vector<std::unique_ptr<Source>> shards_;  // by rank
    Shard target_;
    std::string name_;
    Header header_;
    HeadRange wanted_;
    std::vector<std::size_t> owner_;  // [head of wanted_]: the first shard that holds it
    std::size_t next_ = 0;
};

// Hands every sink its heads of each layer.
class SplitSink final : public Sink {
public:
    SplitSink(std::vector<std::unique_ptr<Sink>> sinks, CutPlan plan, std::string name)
        : sinks_(std::move(sinks)), plan_(std::move(plan)), name_(std::move(name)) {}

    Status begin(const Header& header) override try {
        have_ = heads_of(header);
        HETERO_TRY(const std::vector<Cut> cuts, plan_(header));
        if (cuts.size() != sinks_.size())
            return fail(Errc::internal, "{}: {} cuts for {} outputs", name_, cuts.size(), sinks_.size());
        for (std::size_t i = 0; i < sinks_.size(); ++i) {
            Header own = header;
            own.shard = normal(cuts[i].shard);
            own.tokens_per_chunk = 0;
            if (!cuts[i].logits)
                for (Sequence& sequence : own.sequences) sequence.logits.clear();
            if (const Status checked = check_header(own); !checked)
                return fail_with(checked.error(), sinks_[i]->name());
            const HeadRange want = heads_of(own);
            if (!have_.holds(want.first) || want.end() > have_.end())
                return fail(Errc::bad_input, "{}: {} are wanted, the state has {}", sinks_[i]->name(), to_text(want),
                            to_text(have_));
            wanted_.push_back(want);
            logits_.push_back(cuts[i].logits);
            HETERO_CHECK(sinks_[i]->begin(own));
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory for the headers of {} outputs", name_, sinks_.size());
    }

    Status write_layer(const Layer& layer) override {
        return write(layer, [&](Sink& sink) { return sink.write_layer(layer); });
    }
    Status write_shared(std::shared_ptr<const Layer> layer) override {
        return write(*layer, [&](Sink& sink) { return sink.write_shared(layer); });
    }

    Status complete(const Header& header) override try {
        for (std::size_t i = 0; i < sinks_.size(); ++i) {
            Header own = header;
            if (!logits_[i])
                for (Sequence& sequence : own.sequences) sequence.logits.clear();
            HETERO_CHECK(sinks_[i]->complete(own));
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory for the logits of {} outputs", name_, sinks_.size());
    }

    Status commit() override {
        for (const auto& sink : sinks_) HETERO_CHECK(sink->commit());
        return {};
    }
    void abort(const Error& reason) noexcept override {
        for (const auto& sink : sinks_) sink->abort(reason);
    }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    // `write_all`: of the layer itself, to a sink that gets all of it.
    template <class WriteAll>
    Status write(const Layer& layer, WriteAll write_all) try {
        for (std::size_t i = 0; i < sinks_.size(); ++i) {
            if (wanted_[i] == have_) {
                HETERO_CHECK(write_all(*sinks_[i]));
                continue;
            }
            const auto own = std::make_shared<Layer>();
            for (const PartId id : {PartId::k, PartId::v}) {
                own->part(id).scheme = layer.part(id).scheme;
                for (const auto array : part_arrays)
                    own->part(id).*array = cut(layer.part(id).*array, have_, wanted_[i]);
            }
            HETERO_CHECK(sinks_[i]->write_shared(own));
        }
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory to cut heads out of a layer", name_);
    }

    std::vector<std::unique_ptr<Sink>> sinks_;
    CutPlan plan_;
    std::string name_;
    HeadRange have_;
    std::vector<HeadRange> wanted_;  // [sink]
    std::vector<bool> logits_;       // [sink], whether it gets them
};

}  // namespace

HeadRange heads_of(const Header& header) noexcept { return {header.shard.head_first, header.stored_heads()}; }

HeadRange common(HeadRange a, HeadRange b) noexcept {
    const std::uint32_t first = std::max(a.first, b.first), end = std::min(a.end(), b.end());
    return end > first ? HeadRange{first, end - first} : HeadRange{first, 0};
}

std::string to_text(HeadRange heads) {
    return heads.count == 1 ? fmt::format("head {}", heads.first)
                            : fmt::format("heads {} to {}", heads.first, heads.end() - 1);
}

Result<std::unique_ptr<Source>> slice_heads(std::unique_ptr<Source> source, const Shard& shard) {
    Header wanted = source->header();
    wanted.shard = shard;
    if (auto status = check_header(wanted); !status) return fail_with(status.error(), source->name());
    const HeadRange have = heads_of(source->header()), want = heads_of(wanted);
    if (!have.holds(want.first) || want.end() > have.end())
        return fail(Errc::bad_input, "{}: has {}, {} are wanted", source->name(), to_text(have), to_text(want));
    return std::make_unique<SlicedSource>(std::move(source), shard);
}

Result<std::unique_ptr<Source>> merge_shards(std::vector<std::unique_ptr<Source>> shards, std::string name) {
    return reshard(std::move(shards), {}, std::move(name));
}

Result<std::unique_ptr<Source>> reshard(std::vector<std::unique_ptr<Source>> shards, const Shard& target,
                                        std::string name) {
    if (shards.empty()) return fail(Errc::internal, "{}: no shards to put together", name);
    // Of one that has them all there is nothing to put together.
    if (shards.size() == 1 && target.tp_size > 1) return slice_heads(std::move(shards.front()), target);
    try {
        auto merged = std::make_unique<MergedSource>(std::move(shards), target, std::move(name));
        HETERO_CHECK(merged->open());
        return merged;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "not enough memory to open the shards");
    }
}

std::unique_ptr<Sink> split_heads(std::vector<std::unique_ptr<Sink>> sinks, CutPlan plan, std::string name) {
    return std::make_unique<SplitSink>(std::move(sinks), std::move(plan), std::move(name));
}

Status check_whole(const Header& header, const std::string& name) {
    if (!header.is_shard()) return {};
    return fail(Errc::bad_input,
                "{}: is {}, with {} of {}; the whole state is needed: name the file of any shard, and all are read",
                name, text(header.shard), to_text(heads_of(header)), header.identity.n_kv_heads);
}

}  // namespace hetero::kv
