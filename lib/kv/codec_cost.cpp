#include "kv/codec_cost.h"

#include <algorithm>
#include <memory>

#include "kv/convert.h"

namespace hetero::kv {
namespace {

class KeepingSink final : public Sink {
public:
    explicit KeepingSink(State& state) : state_(state) {}
    Status begin(const Header& header) override {
        state_.header = header;
        state_.layers.assign(1, {});
        return {};
    }
    Status write_layer(const Layer& layer) override {
        state_.layers.front().push_back(layer);
        return {};
    }
    Status commit() override { return {}; }
    void abort(const Error&) noexcept override {}
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

private:
    State& state_;
    std::string name_ = "memory";
};

// Returns the seconds.
Result<double> convert(const std::shared_ptr<const State>& from, const Scheme& k, const Scheme& v, int threads,
                       State& to) {
    const auto source = memory_source(from, "the first layer");
    KeepingSink sink(to);
    HETERO_TRY(const ConvertReport report, convert_state(*source, sink, k, v, false, {}, threads));
    return report.seconds;
}

// A state of the first layer of the first sequence.
Header first_layer_of(const Header& header) {
    Header one = header;
    one.identity.n_layers = 1;
    one.sequences.resize(1);
    one.k_schemes.resize(1);
    one.v_schemes.resize(1);
    if (!one.layer_shapes.empty()) one.layer_shapes.resize(1);
    one.tokens_per_chunk = 0;
    one.late_logits = false;
    return one;
}

}  // namespace

Result<CodecCost> measure_codec_cost(const Header& header, const Layer& layer, const Scheme& k, const Scheme& v,
                                     int threads) {
    const auto plain = std::make_shared<State>();
    plain->header = first_layer_of(header);
    plain->layers = {{layer}};
    CodecCost cost;
    for (int run = 0; run < 2; ++run) {
        const auto coded = std::make_shared<State>();
        State back;
        HETERO_TRY(const double encode_s, convert(plain, k, v, threads, *coded));
        HETERO_TRY(const double decode_s,
                   convert(coded, plain->header.k_schemes.front(), plain->header.v_schemes.front(), threads, back));
        cost.bytes_in = plain->header.payload_bytes();
        cost.bytes_out = coded->header.payload_bytes();
        cost.encode_s = run == 0 ? encode_s : std::min(cost.encode_s, encode_s);
        cost.decode_s = run == 0 ? decode_s : std::min(cost.decode_s, decode_s);
    }
    return cost;
}

}  // namespace hetero::kv
