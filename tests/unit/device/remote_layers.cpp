// Layers that are sent from the memory of the device that made them, over a link that can, as a CUDA-aware MPI does,
// and over one that cannot.
#include "kv/convert.h"
#include "kv/precision_plan.h"
#include "support.h"
#include "transport/wire_stream.h"
#include "unit/transport/wire.h"

using namespace hetero;
using namespace hetero::test;
using kv::PartId;

namespace {

struct Made {
    kv::Header header;
    std::vector<engine::CodedLayer> layers;
};

engine::LayerSchemes schemes_for(const model::Model& model, const char* k, const char* v, std::uint32_t sinks = 0) {
    const auto scheme = [&](const char* spec) {
        return kv::scheme_from_spec(must(quant::parse_spec(spec)), sinks, 0, DType::f16);
    };
    return {std::vector(model.config.n_layers, scheme(k)), std::vector(model.config.n_layers, scheme(v))};
}

kv::Header header_for(const Session& session, const engine::LayerSchemes& schemes, const std::vector<TokenId>& tokens) {
    kv::Header header = header_of(session);
    kv::Sequence sequence;
    sequence.tokens = tokens;
    header.sequences = {sequence};
    header.k_schemes = schemes.k;
    header.v_schemes = schemes.v;
    return header;
}

Made make(Session& session, const engine::LayerSchemes& schemes, const std::vector<TokenId>& tokens) {
    Made made{header_for(session, schemes, tokens), {}};
    session.observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
        made.layers.push_back(must(session.export_coded(layer, end)));
        return {};
    });
    must(session.truncate(0));
    prefill(session, tokens);
    return made;
}

bool same_arrays(const kv::Layer& a, const kv::Layer& b) {
    for (const PartId part : {PartId::k, PartId::v})
        for (const auto array : kv::part_arrays) {
            const kv::Tensor &one = a.part(part).*array, &other = b.part(part).*array;
            if (one.shape != other.shape || one.bytes != other.bytes) return false;
        }
    return true;
}

// What comes out of the other end.
Result<kv::State> transfer(Wire& wire, const Made& made, Status& sent) {
    Result<kv::State> got = fail(Errc::internal, "nothing yet");
    std::thread reader([&] {
        auto source = transport::wire_source(wire.gate, wire.receiver, {});
        got = source ? kv::read_all(**source) : Result<kv::State>(tl::unexpected<Error>(source.error()));
    });
    const auto sink = transport::wire_sink(wire.gate, wire.sender);
    const auto send = [&]() -> Status {
        HETERO_CHECK(sink->begin(made.header));
        for (const engine::CodedLayer& layer : made.layers)
            HETERO_CHECK(layer.remote != nullptr ? sink->write_remote(layer.remote) : sink->write_layer(layer.layer));
        return sink->commit();
    };
    sent = send();
    if (!sent) sink->abort(sent.error());
    reader.join();
    return got;
}

// Fails at one of the calls.
class Failing final : public kv::RemoteLayer {
public:
    explicit Failing(std::shared_ptr<const kv::RemoteLayer> inner) : inner_(std::move(inner)) {}
    [[nodiscard]] std::span<const std::byte> bytes(PartId part, std::size_t array) const override {
        return inner_->bytes(part, array);
    }
    Status checksums(std::span<const std::span<const std::byte>>, std::span<std::uint32_t>) const override {
        return fail(Errc::resource, "cuda:0: crc32c: unspecified launch failure (719)");
    }
    Status read(std::span<const std::byte> there, std::span<std::byte> here) const override {
        return inner_->read(there, here);
    }
    Result<kv::Layer> fetch() const override { return fail(Errc::resource, "cuda:0: cudaMemcpyAsync: lost (719)"); }

private:
    std::shared_ptr<const kv::RemoteLayer> inner_;
};

}  // namespace

TEST_CASE("layers go from the device's memory where the link reads it, and over the host where not") {
    emulation::Settings settings = emulation::settings();
    settings.strict_host = true;  // a read here of what lies there would end the test
    const emulation::Configured configured(settings);
    const auto model = tiny_model();
    const auto prompt = some_tokens(75);
    for (const auto& [k, v] : {std::pair("int8", "had:int8:token"), {"int4:channel:g32:asym", "f16"}, {"f16", "f16"}}) {
        const auto schemes = schemes_for(*model, k, v, std::string(v) == "f16" ? 0 : 4);
        const auto plain = session_of(model, {.kv_dtype = DType::f16, .hand_out = schemes});
        const auto session = session_of(model, {.kv_dtype = DType::f16, .hand_out = schemes, .layers_stay = true});
        const Made expected = make(*plain, schemes, prompt), made = make(*session, schemes, prompt);
        for (const bool device_memory : {true, false}) {
            CAPTURE(k);
            CAPTURE(device_memory);
            Wire wire;
            wire.pair.device_memory = device_memory;
            Status sent;
            const auto got = transfer(wire, made, sent);
            REQUIRE_MESSAGE(sent.has_value(), sent.error().message);
            REQUIRE_MESSAGE(got.has_value(), got.error().message);
            CHECK((wire.pair.from_device != 0) == device_memory);
            REQUIRE(got->layers.front().size() == made.layers.size());
            for (std::size_t i = 0; i < made.layers.size(); ++i) {
                CHECK(expected.layers[i].remote == nullptr);
                CHECK(made.layers[i].max_abs_error == expected.layers[i].max_abs_error);
                CHECK(same_arrays(got->layers.front()[i], expected.layers[i].layer));
                if (made.layers[i].remote != nullptr)
                    CHECK(same_arrays(must(made.layers[i].remote->fetch()), expected.layers[i].layer));
            }
        }
    }
}

TEST_CASE("a piece that arrives damaged is sent again from the device") {
    const auto model = tiny_model();
    const auto schemes = schemes_for(*model, "int8", "int8");
    const auto session = session_of(model, {.kv_dtype = DType::f16, .hand_out = schemes, .layers_stay = true});
    const Made made = make(*session, schemes, some_tokens(75));
    Wire wire;
    {
        const auto lock = wire.gate.enter();
        wire.pair.device_memory = true;
        wire.pair.tamper = [damaged = false](int, transport::HeaderBytes& head,
                                             std::vector<std::byte>& payload) mutable {
            const auto header = transport::decode_frame(head);
            if (damaged || !header || header->kind != transport::FrameKind::chunk) return;
            payload.front() ^= std::byte{1};
            damaged = true;
        };
    }
    Status sent;
    const auto got = transfer(wire, made, sent);
    REQUIRE_MESSAGE(sent.has_value(), sent.error().message);
    REQUIRE(got.has_value());
    for (std::size_t i = 0; i < made.layers.size(); ++i)
        if (made.layers[i].remote != nullptr)
            CHECK(same_arrays(got->layers.front()[i], must(made.layers[i].remote->fetch())));
}

TEST_CASE("a device that fails in the middle of a transfer ends it on both sides, with its words") {
    const auto model = tiny_model();
    const auto schemes = schemes_for(*model, "int8", "int8");
    const auto session = session_of(model, {.kv_dtype = DType::f16, .hand_out = schemes, .layers_stay = true});
    for (const bool device_memory : {true, false}) {
        Made made = make(*session, schemes, some_tokens(75));
        REQUIRE(made.layers.size() > 1);
        REQUIRE(made.layers[1].remote != nullptr);
        made.layers[1].remote = std::make_shared<Failing>(made.layers[1].remote);
        Wire wire;
        wire.pair.device_memory = device_memory;
        Status sent;
        const auto got = transfer(wire, made, sent);
        REQUIRE_FALSE(sent.has_value());
        CHECK(sent.error().code == Errc::resource);
        CHECK(has(sent.error(), "cuda:0"));
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().code == Errc::peer);
        CHECK(has(got.error(), "719"));
    }
}

TEST_CASE("where all buffers of the device are held, layers come over the host") {
    const auto model = tiny_model();
    const auto schemes = schemes_for(*model, "int8", "int8");
    const auto session = session_of(model, {.kv_dtype = DType::f16, .hand_out = schemes, .layers_stay = true});
    const auto tokens = some_tokens(40);
    std::vector<Made> all;
    std::size_t remote = 0, staged = 0;
    while (staged == 0 && all.size() < 10) {
        all.push_back(make(*session, schemes, tokens));
        for (const auto& layer : all.back().layers) ++(layer.remote != nullptr ? remote : staged);
    }
    CHECK(remote == 4);
    CHECK(staged != 0);
    const auto here = [](const engine::CodedLayer& layer) {
        return layer.remote != nullptr ? must(layer.remote->fetch()) : layer.layer;
    };
    std::vector<kv::Layer> first;
    for (const auto& layer : all.front().layers) first.push_back(here(layer));
    for (const Made& made : all)
        for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_arrays(here(made.layers[i]), first[i]));
    all.clear();
    CHECK(make(*session, schemes, tokens).layers.front().remote != nullptr);
}
