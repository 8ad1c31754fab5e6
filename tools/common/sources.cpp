#include "common/sources.h"

#include <algorithm>
#include <optional>

#include "common/progress.h"

namespace hetero::tool {
namespace {

class ProgressSource final : public kv::Source {
public:
    ProgressSource(const Tool& tool, std::string label, std::unique_ptr<kv::Source> inner) : inner_(std::move(inner)) {
        const kv::Header& header = inner_->header();
        progress_.emplace(tool, std::move(label), header.sequences.size() * header.identity.n_layers, "layers");
    }
    [[nodiscard]] const kv::Header& header() const noexcept override { return inner_->header(); }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }
    Result<kv::Layer> read_layer() override {
        auto layer = inner_->read_layer();
        if (layer && progress_) progress_->update(++done_);
        return layer;
    }
    Status read_into(kv::Layer& layer) override {
        HETERO_CHECK(inner_->read_into(layer));
        if (progress_) progress_->update(++done_);
        return {};
    }
    Result<std::unique_ptr<kv::LayerStream>> read_stream() override {
        auto stream = inner_->read_stream();
        if (stream && *stream != nullptr && progress_) progress_->update(++done_);
        return stream;
    }
    Status skip_layer() override {
        HETERO_CHECK(inner_->skip_layer());
        if (progress_) progress_->update(++done_);
        return {};
    }
    Status finish() override {
        progress_.reset();
        return inner_->finish();
    }

private:
    std::unique_ptr<kv::Source> inner_;
    std::optional<Progress> progress_;
    std::uint64_t done_ = 0;
};

class SelectedSource final : public kv::Source {
public:
    SelectedSource(std::unique_ptr<kv::Source> inner, const std::vector<std::string>& ids)
        : inner_(std::move(inner)), header_(inner_->header()) {
        header_.sequences.clear();
        for (const kv::Sequence& one : inner_->header().sequences) {
            const bool wanted = std::find(ids.begin(), ids.end(), one.id) != ids.end();
            wanted_.push_back(wanted);
            if (wanted) header_.sequences.push_back(one);
        }
    }
    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }
    Result<kv::Layer> read_layer() override {
        HETERO_CHECK(skip_until_wanted());
        auto layer = inner_->read_layer();
        if (layer) ++next_layer_;
        return layer;
    }
    Status read_into(kv::Layer& layer) override {
        HETERO_CHECK(skip_until_wanted());
        HETERO_CHECK(inner_->read_into(layer));
        ++next_layer_;
        return {};
    }
    Result<std::unique_ptr<kv::LayerStream>> read_stream() override {
        HETERO_CHECK(skip_until_wanted());
        auto stream = inner_->read_stream();
        if (stream && *stream != nullptr) ++next_layer_;
        return stream;
    }
    Status finish() override {
        HETERO_CHECK(skip_until_wanted());
        HETERO_CHECK(inner_->finish());
        if (header_.late_logits) header_.take_logits_of(inner_->header());
        return {};
    }

private:
    Status skip_until_wanted() {
        const std::uint64_t n_layers = header_.identity.n_layers;
        while (next_layer_ < wanted_.size() * n_layers && !wanted_[next_layer_ / n_layers]) {
            HETERO_CHECK(inner_->skip_layer());
            ++next_layer_;
        }
        return {};
    }

    std::unique_ptr<kv::Source> inner_;
    kv::Header header_;
    std::vector<bool> wanted_;      // [sequence of inner_]
    std::uint64_t next_layer_ = 0;  // of inner_, sequences counted through
};

class DiscardingSink final : public kv::Sink {
public:
    Status begin(const kv::Header&) override { return {}; }
    Status write_layer(const kv::Layer&) override { return {}; }
    Status complete(const kv::Header&) override { return {}; }
    Status commit() override { return {}; }
    void abort(const Error&) noexcept override {}
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    std::string name_ = "nowhere";
};

}  // namespace

std::unique_ptr<kv::Sink> discarding_sink() { return std::make_unique<DiscardingSink>(); }

std::unique_ptr<kv::Source> with_progress(const Tool& tool, std::string label, std::unique_ptr<kv::Source> source) {
    return std::make_unique<ProgressSource>(tool, std::move(label), std::move(source));
}

Result<std::unique_ptr<kv::Source>> select_sequences(std::unique_ptr<kv::Source> source,
                                                     const std::vector<std::string>& ids) {
    if (ids.empty()) return source;
    const std::vector<kv::Sequence>& held = source->header().sequences;
    for (const std::string& id : ids) {
        if (std::any_of(held.begin(), held.end(), [&](const kv::Sequence& one) { return one.id == id; })) continue;
        std::vector<std::string> there;
        for (const kv::Sequence& one : held) there.push_back(one.id);
        if (there.size() > 8) there.resize(8);
        return fail(Errc::bad_input, "{}: holds no sequence '{}' (it has {}: {})", source->name(), id, held.size(),
                    fmt::join(there, ", "));
    }
    return std::make_unique<SelectedSource>(std::move(source), ids);
}

void add_sequence_option(OptionTable& table, std::vector<std::string>& ids, std::string_view what) {
    table.texts("--sequence", "ID", &ids, fmt::format("{} this sequence only; may be repeated", what));
}

}  // namespace hetero::tool
