#include "kv/stream.h"

#include <new>

namespace hetero::kv {
namespace {

class MemorySource final : public Source {
public:
    MemorySource(std::shared_ptr<const State> state, std::string name)
        : state_(std::move(state)), name_(std::move(name)) {}

    [[nodiscard]] const Header& header() const noexcept override { return state_->header; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    Result<Layer> read_layer() override {
        const std::size_t n_layers = state_->header.identity.n_layers;
        const std::size_t sequence = next_ / n_layers;
        const std::size_t layer = next_ % n_layers;
        if (sequence >= state_->layers.size()) return fail(Errc::internal, "{}: no layer is left to read", name_);
        if (layer >= state_->layers[sequence].size())
            return fail(Errc::bad_input, "{}: sequence {} has {} layers, {} are expected", name_, sequence,
                        state_->layers[sequence].size(), n_layers);
        const Layer& value = state_->layers[sequence][layer];
        if (auto status = check_layer(state_->header, sequence, layer, value); !status)
            return fail_with(status.error(), name_);
        ++next_;
        return value;
    }

    Status finish() override {
        const std::size_t expected = state_->header.sequences.size() * state_->header.identity.n_layers;
        if (next_ != expected)
            return fail(Errc::internal, "{}: finished after {} of {} layers", name_, next_, expected);
        return {};
    }

private:
    std::shared_ptr<const State> state_;
    std::string name_;
    std::size_t next_ = 0;
};

}  // namespace

Status Source::read_into(Layer& layer) {
    layer = {};  // not beside the next one
    HETERO_TRY(layer, read_layer());
    return {};
}

Status Source::skip_layer() {
    HETERO_CHECK(read_layer());
    return {};
}

Status Sink::write_remote(std::shared_ptr<const RemoteLayer> layer) {
    HETERO_TRY(const Layer here, layer->fetch());
    return write_layer(here);
}

Status Sink::complete(const Header& /*header*/) {
    return fail(Errc::internal, "{}: it takes no logits after the layers", name());
}

Result<State> read_all(Source& source) try {
    State state;
    state.header = source.header();
    for (std::size_t sequence = 0; sequence < state.header.sequences.size(); ++sequence) {
        auto& layers = state.layers.emplace_back();
        for (std::uint32_t layer = 0; layer < state.header.identity.n_layers; ++layer) {
            HETERO_TRY(Layer value, source.read_layer());
            value.verified.reset();  // what is in memory may be changed
            layers.push_back(std::move(value));
        }
    }
    HETERO_CHECK(source.finish());
    if (state.header.late_logits) state.header.take_logits_of(source.header());
    return state;
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "{}: not enough memory for a state of {} bytes", source.name(),
                source.header().payload_bytes());
}

Status write_all(const State& state, Sink& sink) {
    const auto write = [&]() -> Status {
        HETERO_CHECK(sink.begin(state.header));
        for (const auto& sequence : state.layers) {
            for (const Layer& layer : sequence) HETERO_CHECK(sink.write_layer(layer));
        }
        return sink.commit();
    };
    auto status = write();
    if (!status) sink.abort(status.error());
    return status;
}

std::unique_ptr<Source> memory_source(std::shared_ptr<const State> state, std::string name) {
    return std::make_unique<MemorySource>(std::move(state), std::move(name));
}

}  // namespace hetero::kv
