// A sink for the tests of this folder.
#pragma once
#include <limits>
#include <string>

#include "unit/kv/states.h"

namespace hetero::test {

// Keeps in `state` what it is given, of layers that fit the header.
class KeepingSink : public kv::Sink {
public:
    explicit KeepingSink(kv::State& kept, std::size_t fails_at = std::numeric_limits<std::size_t>::max())
        : fail_at(fails_at), state_(kept) {}
    Status begin(const kv::Header& header) override {
        state_.header = header;
        state_.layers.resize(header.sequences.size());
        return {};
    }
    Status write_layer(const kv::Layer& layer) override {
        if (fail_at == layers) return fail(Errc::resource, "no room");
        const std::size_t n_layers = state_.header.identity.n_layers, sequence = layers / n_layers;
        HETERO_CHECK(kv::check_layer(state_.header, sequence, layers++ % n_layers, layer));
        state_.layers[sequence].push_back(layer);
        return {};
    }
    Status commit() override {
        committed = true;
        return {};
    }
    void abort(const Error& reason) noexcept override { aborted = reason.message; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    std::size_t layers = 0, fail_at;
    bool committed = false;
    std::string aborted;

private:
    kv::State& state_;
    std::string name_ = "a test";
};

}  // namespace hetero::test
