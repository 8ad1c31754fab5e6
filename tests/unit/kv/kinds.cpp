// States whose layers keep something else than K and V of every token: sliding windows, MLA, and mixtures.
#include "kinds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "h5_edit.h"
#include "kv/canonical.h"
#include "kv/compare.h"
#include "kv/convert.h"

using namespace hetero;
using namespace hetero::test;
using kv::LayerKind;
using kv::PartId;
using quant::Axis;

namespace {

// Converted by way of a file image.
Result<kv::State> converted(const kv::State& state, const kv::Scheme& k, const kv::Scheme& v) {
    const auto source = kv::memory_source(std::make_shared<const kv::State>(state), "in.h5");
    std::vector<std::byte> image;
    const auto sink = kv::create_image(
        [&image](std::span<const std::byte> bytes) -> Status {
            image.assign(bytes.begin(), bytes.end());
            return {};
        },
        "image");
    HETERO_TRY(const auto report, kv::convert_state(*source, *sink, k, v, false, {"kv-quantize", "1", "quantize"}, 2));
    CHECK(report.bytes_in == state.header.payload_bytes());
    return load_image(std::move(image));
}

std::vector<float> values_of(const kv::State& state, std::size_t s, std::size_t l, PartId id) {
    auto values = kv::decode_part(state.header, state.layers[s][l].part(id), state.header.stored_tokens(s, l), id);
    REQUIRE_MESSAGE(values.has_value(), values.error().message);
    return std::move(*values);
}

Result<kv::Comparison> compared(const kv::State& a, const kv::State& b) {
    const auto left = kv::memory_source(std::make_shared<const kv::State>(a), "a");
    const auto right = kv::memory_source(std::make_shared<const kv::State>(b), "b");
    return kv::compare_states(*left, *right, false);
}

void check_contains(const std::string& text, std::initializer_list<std::string_view> parts) {
    for (const auto part : parts) CHECK_MESSAGE(text.find(part) != std::string::npos, part, " is not in: ", text);
}

}  // namespace

TEST_CASE("a window keeps the last tokens, one more than the next position sees") {
    const kv::LayerShape swa{LayerKind::swa, 4};
    CHECK(swa.first_token(11) == 7);  // position 11 sees 8 to 11; position 10, computed anew, sees 7 to 10
    CHECK(swa.stored_tokens(11) == 4);
    CHECK(swa.first_token(4) == 0);
    CHECK(swa.stored_tokens(4) == 4);
    CHECK(swa.stored_tokens(1) == 1);
    CHECK(kv::LayerShape{LayerKind::mla, 0}.stored_tokens(11) == 11);
    CHECK(kv::LayerShape{}.stored_tokens(11) == 11);
}

TEST_CASE("every kind and mixture, in every scheme, comes back from a file and an image bit for bit") {
    const std::vector<kv::Scheme> schemes = {plain_scheme("f16"),
                                             plain_scheme("bf16"),
                                             plain_scheme("f32"),
                                             int8_scheme(Axis::token, 0, true),
                                             int8_scheme(Axis::token, 5, false),
                                             int8_scheme(Axis::channel, 2, true),
                                             int8_scheme(Axis::channel, 4, false, kv::DType::f32)};
    for (const auto& [name, base] : kind_plans()) {
        CAPTURE(name);
        for (std::size_t i = 0; i < schemes.size(); ++i) {
            CAPTURE(i);
            Plan plan = base;
            for (std::uint32_t l = 0; l < plan.n_layers; ++l) {  // another scheme in each layer
                plan.k_of_layer.push_back(schemes[(i + l) % schemes.size()]);
                plan.v_of_layer.push_back(schemes[(i + 2 * l + 1) % schemes.size()]);
            }
            plan.tokens_per_chunk = 4;
            const kv::State state = make_state(plan);
            REQUIRE(kv::check_header(state.header).has_value());
            std::uint64_t bytes = 0;
            for (std::size_t s = 0; s < state.layers.size(); ++s) {
                for (std::uint32_t l = 0; l < plan.n_layers; ++l) {
                    for (const PartId id : {PartId::k, PartId::v}) {
                        const kv::Part& part = state.layers[s][l].part(id);
                        CHECK(part.values.shape[0] == plan.shapes[l].stored_tokens(plan.lengths[s]));
                        bytes += part.values.bytes.size() + part.scale.bytes.size() + part.zero.bytes.size();
                    }
                }
            }
            CHECK(state.header.payload_bytes() == bytes);
            const TempDir folder;
            save(state, folder / "a.h5");
            const auto back = load(folder / "a.h5");
            REQUIRE_MESSAGE(back.has_value(), back.error().message);
            CHECK(difference(state, *back) == "");
            const auto image = image_of(state);
            CHECK(image == read_bytes(folder / "a.h5"));
            const auto from_image = load_image(image);
            REQUIRE_MESSAGE(from_image.has_value(), from_image.error().message);
            CHECK(difference(state, *from_image) == "");
        }
    }
}

TEST_CASE("the file says what each layer keeps, in names that fit it") {
    Plan plan = kind_plan("mla and swa");
    plan.k = int8_scheme(Axis::token, 5, false);
    const kv::State state = make_state(plan);
    const TempDir folder;
    save(state, folder / "a.h5");
    const hid_t file = H5Fopen((folder / "a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    REQUIRE(file >= 0);
    const auto shape_of = [&](const std::string& path) {
        std::vector<std::uint64_t> shape;
        const hid_t dataset = H5Dopen2(file, path.c_str(), H5P_DEFAULT);
        REQUIRE_MESSAGE(dataset >= 0, path);
        const hid_t space = H5Dget_space(dataset);
        std::vector<hsize_t> extents(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space)));
        H5Sget_simple_extent_dims(space, extents.data(), nullptr);
        shape.assign(extents.begin(), extents.end());
        H5Sclose(space);
        H5Dclose(dataset);
        return shape;
    };
    using Shape = std::vector<std::uint64_t>;
    CHECK(shape_of("/sequences/0000/layers/000/latent") == Shape{11, 12});
    CHECK(shape_of("/sequences/0000/layers/000/latent_scale") == Shape{11, 3});
    CHECK(shape_of("/sequences/0000/layers/000/latent_zero") == Shape{11, 3});
    CHECK(shape_of("/sequences/0000/layers/000/k_rope") == Shape{11, 6});
    CHECK(H5Lexists(file, "/sequences/0000/layers/000/k", H5P_DEFAULT) == 0);
    CHECK(shape_of("/sequences/0000/layers/001/k") == Shape{4, 1, 12});
    CHECK(shape_of("/sequences/0000/layers/001/k_scale") == Shape{4, 1, 3});
    CHECK(get_integer(file, "/sequences/0000/layers/000", "first_token") == 0);
    CHECK(get_integer(file, "/sequences/0000/layers/001", "first_token") == 7);
    CHECK(get_integer(file, "/sequences/0000/layers/001", "window") == 4);
    CHECK(get_integer(file, "/sequences/0001/layers/001", "first_token") == 0);  // a sequence of 3
    CHECK(get_integer(file, "/", "schema_minor") == 1);
    H5Fclose(file);
}

TEST_CASE("whole states of gqa layers stay states of version 1.0, however their header says so") {
    kv::State state = make_state({});
    const auto image = image_of(state);
    const std::string text = kv::header_text(state.header);
    CHECK(text.find("kind=") == std::string::npos);
    CHECK(text.find("tp_size") == std::string::npos);
    state.header.layer_shapes.assign(2, {});
    CHECK(kv::header_text(state.header) == text);
    CHECK(image_of(state) == image);
    state.header.shard.head_count = 2;  // of 2
    CHECK(kv::header_text(state.header) == text);
    CHECK(image_of(state) == image);
    CHECK(load_image(image)->header.layer_shapes.empty());
}

TEST_CASE("rotation is in the scheme's name, and it and the axes head and tensor make version 1.1") {
    const auto minor_of = [](const Plan& plan, const char* scheme) {
        const TempDir folder;
        const kv::State state = make_state(plan);
        save(state, folder / "a.h5");
        const auto back = load(folder / "a.h5");
        REQUIRE_MESSAGE(back.has_value(), back.error().message);
        CHECK(difference(state, *back) == "");
        const hid_t file = H5Fopen((folder / "a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
        CHECK(get_text(file, "/sequences/0000/layers/001/v", "scheme") == scheme);
        const std::int64_t minor = get_integer(file, "/", "schema_minor");
        H5Fclose(file);
        return minor;
    };
    Plan plan = kind_plan("gqa");
    plan.v = spec_scheme("int8:token:sym");
    CHECK(minor_of(plan, "int8") == 0);
    plan.v = spec_scheme("int8:channel:g4:asym");
    CHECK(minor_of(plan, "int8") == 0);
    plan.v = spec_scheme("int8:head:g4:sym");
    CHECK(minor_of(plan, "int8") == 1);
    plan.v = spec_scheme("int8:tensor:g4:sym");
    CHECK(minor_of(plan, "int8") == 1);
    plan.v = spec_scheme("had:int8:token:sym");
    REQUIRE(plan.v.params.hadamard);
    CHECK(minor_of(plan, "had:int8") == 1);

    const char* v = "/sequences/0000/layers/001/v";
    for (const char* unknown : {"had:int9", "had:", "had:had:int8", "had:f16", "rot:int8"})
        check_refused(after(make_state(plan), [&](hid_t file) { set_text(file, v, "scheme", unknown); }),
                      {v, unknown, "is not known"});
    check_refused(after(make_state(plan), [&](hid_t file) { set_text(file, v, "scheme", "int8"); }),
                  {"root of /integrity"});
}

TEST_CASE("kinds and shards have their lines in the root's text, and change nothing of compat_hash") {
    kv::Header header = make_header(kind_plan("mla and swa"));
    const Digest compat = kv::compat_hash(header.identity);
    header.shard = {2, 1, 0, 1};
    check_contains(kv::header_text(header), {"\nlayer 0 kind=mla window=0\nlayer 1 kind=swa window=4\n"
                                             "shard tp_size=2 tp_rank=1 head_first=0 head_count=1\nprovenance="});
    header.layer_shapes.clear();
    CHECK(kv::compat_hash(header.identity) == compat);
}

TEST_CASE("layers of different length have chunks of their own") {
    Plan plan = kind_plan("swa and gqa");
    plan.lengths = {11};
    plan.tokens_per_chunk = 2;
    const kv::State state = make_state(plan);
    CHECK(kv::checksum_layer(state.header, state.layers[0][0]).k.values.size() == 2);  // 4 tokens
    CHECK(kv::checksum_layer(state.header, state.layers[0][2]).k.values.size() == 6);  // 11 tokens
    const auto back = load_image(image_of(state));
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
}

TEST_CASE("damage is named by layer, array and the sequence's own tokens") {
    Plan plan = kind_plan("mla and swa");
    plan.v = int8_scheme(Axis::token, 0, true);
    plan.tokens_per_chunk = 2;
    const kv::State state = make_state(plan);
    const auto message_after = [&](const std::vector<std::byte>& array, std::size_t byte) {
        auto image = image_of(state);
        const auto at = std::search(image.begin(), image.end(), array.begin(), array.end());
        REQUIRE(at != image.end());
        at[static_cast<std::ptrdiff_t>(byte)] ^= std::byte{4};
        const auto back = load_image(std::move(image));
        REQUIRE(!back.has_value());
        return back.error().message;
    };
    const kv::Layer &mla = state.layers[0][0], &swa = state.layers[0][1];
    check_contains(message_after(mla.k.values.bytes, 5 * 12 * 2),
                   {"/sequences/0000/layers/000/latent is", "chunk 2 (tokens 4 to 5)"});
    check_contains(message_after(mla.v.values.bytes, 10 * 6),
                   {"/sequences/0000/layers/000/k_rope is", "tokens 10 to 10"});
    check_contains(message_after(mla.v.scale.bytes, 0),
                   {"/sequences/0000/layers/000/k_rope_scale is", "tokens 0 to 1"});
    check_contains(message_after(swa.k.values.bytes, 3 * 12 * 2),
                   {"/sequences/0000/layers/001/k is", "layer 1, chunk 1 (tokens 9 to 10)"});
}

TEST_CASE("hostile kinds, windows, first tokens and heads are refused with the group, the found and the expected") {
    const kv::State state = make_state(kind_plan("swa and gqa"));
    const char *swa = "/sequences/0000/layers/000", *gqa = "/sequences/0000/layers/002";
    const auto refused = [&](const std::function<void(hid_t)>& change, std::initializer_list<std::string_view> parts) {
        check_refused(after(state, change), parts);
    };
    refused([&](hid_t f) { set_integer(f, swa, "window", 0); }, {"window", swa, "is 0", "1 or more", "swa"});
    refused([&](hid_t f) { set_integer(f, gqa, "window", 5); }, {"window", gqa, "is 5", "0 is expected", "gqa"});
    refused([&](hid_t f) { set_integer(f, swa, "window", -4); }, {"window", swa, "-4"});
    refused([&](hid_t f) { set_integer(f, swa, "window", 0x7FFFFFFF); }, {"window"});
    refused([&](hid_t f) { set_integer(f, swa, "window", 5); }, {"root of /integrity"});
    refused([&](hid_t f) { set_integer(f, swa, "first_token", 6); }, {"first_token", swa, "is 6", "7 is expected"});
    refused([&](hid_t f) { set_integer(f, gqa, "first_token", 7); }, {"first_token", gqa, "is 7", "0 is expected"});
    refused([&](hid_t f) { set_integer(f, "/sequences/0001/layers/000", "window", 3); },
            {"window", "/sequences/0001/layers/000", "is 3", "4 is expected"});
    refused([&](hid_t f) { set_text(f, swa, "kind", "mamba"); }, {"kind", swa, "mamba", "gqa, swa or mla"});
    refused([&](hid_t f) { set_text(f, "/sequences/0001/layers/000", "kind", "gqa"); },
            {"kind", "/sequences/0001/layers/000", "gqa", "swa"});
    refused([&](hid_t f) { set_text(f, gqa, "kind", "mla"); }, {"/sequences/0000/layers/002/latent is missing"});
    refused([&](hid_t f) { set_integer(f, "/", "head_first", 1); }, {"head_first of /", "is 1", "0 is expected"});
    refused([&](hid_t f) { set_integer(f, "/", "head_count", 1); }, {"head_count of /", "is 1", "2 is expected"});
    refused([&](hid_t f) { set_integer(f, "/", "tp_rank", 1); }, {"tp_rank of /", "is 1", "0 is expected"});
    refused([&](hid_t f) { set_integer(f, "/", "tp_size", 0); }, {"tp_size is 0"});
    refused([&](hid_t f) { set_integer(f, "/", "layer_first", 1); }, {"layer_first of /", "is 1"});
    refused([&](hid_t f) { set_integer(f, "/", "layer_count", 2); }, {"layer_count of /", "is 2", "3 is expected"});
    const auto shard = [&](hid_t f, std::int64_t size, std::int64_t rank, std::int64_t first, std::int64_t count) {
        set_integer(f, "/", "tp_size", size);
        set_integer(f, "/", "tp_rank", rank);
        set_integer(f, "/", "head_first", first);
        set_integer(f, "/", "head_count", count);
    };
    refused([&](hid_t f) { shard(f, 2, 2, 0, 1); }, {"tp_rank is 2; 0 to 1"});
    refused([&](hid_t f) { shard(f, 2, 0, 2, 1); }, {"head_first is 2; 0 to 1"});
    refused([&](hid_t f) { shard(f, 2, 0, 1, 2); }, {"head_count is 2; 1 to 1"});
    refused([&](hid_t f) { shard(f, 2, 0, 0, 0); }, {"head_count is 0"});
    refused([&](hid_t f) { shard(f, 2, 0, 0x7FFFFFFF, 0x7FFFFFFF); }, {"head_first"});
    refused([&](hid_t f) { shard(f, 2, 0, 0, 1); }, {"root of /integrity"});
}

TEST_CASE("headers whose kinds contradict themselves are refused") {
    const auto refused = [](const char* plan, auto change, std::string_view part) {
        kv::Header header = make_header(kind_plan(plan));
        REQUIRE(kv::check_header(header).has_value());
        change(header);
        const Status status = kv::check_header(header);
        REQUIRE(!status.has_value());
        check_contains(status.error().message, {part});
    };
    refused(
        "swa", [](auto& h) { h.layer_shapes[1].window = 0; }, "layer 1: window of kind swa is 0");
    refused(
        "swa", [](auto& h) { h.layer_shapes[1].kind = LayerKind::gqa; },
        "layer 1: window is 4; 0 is expected of kind gqa");
    refused(
        "swa", [](auto& h) { h.layer_shapes[0].kind = static_cast<LayerKind>(9); }, "layer 0: kind 9 is not known");
    refused(
        "swa", [](auto& h) { h.layer_shapes.pop_back(); }, "layer shapes for");
    refused(
        "swa",
        [](auto& h) {
            h.layer_shapes[0] = {LayerKind::mla, 0};
        },
        "kind mla has no heads, and n_kv_heads is 2");
    refused(
        "mla", [](auto& h) { h.layer_shapes[0].window = 3; }, "window is 3; 0 is expected of kind mla");
    refused(
        "mla", [](auto& h) { h.k_schemes[1].codec = "int9"; }, "layer 1, latent: scheme \"int9\"");
    refused(
        "mla", [](auto& h) { h.v_schemes[1].codec = "int9"; }, "layer 1, RoPE key: scheme \"int9\"");
    refused(
        "swa",
        [](auto& h) {
            h.shard = {1, 0, 0, 1};
        },
        "tp_size is 1: all 2 are expected");
    refused(
        "swa",
        [](auto& h) {
            h.shard = {1, 1, 0, 0};
        },
        "tp_rank");
}

TEST_CASE("int8 and back stays within the codec's bound, in every kind, axis and symmetry") {
    for (const auto& [name, plan] : kind_plans()) {
        CAPTURE(name);
        const kv::State state = make_state(plan);
        for (const Axis axis : {Axis::token, Axis::channel}) {
            for (const bool symmetric : {true, false}) {
                const kv::Scheme scheme = int8_scheme(axis, axis == Axis::token ? 0 : 3, symmetric);
                const auto quantized = converted(state, scheme, scheme);
                REQUIRE_MESSAGE(quantized.has_value(), quantized.error().message);
                CHECK(kv::compare(quantized->header.layer_shapes, state.header.layer_shapes).empty());
                CHECK(quantized->header.scheme(1, PartId::v).params == scheme.params);
                const auto back = converted(*quantized, plain_scheme("f16"), plain_scheme("f16"));
                REQUIRE_MESSAGE(back.has_value(), back.error().message);
                double largest = 0;
                for (std::size_t s = 0; s < state.layers.size(); ++s)
                    for (std::size_t l = 0; l < plan.n_layers; ++l)
                        for (const PartId id : {PartId::k, PartId::v}) {
                            const auto x = values_of(state, s, l, id), y = values_of(*back, s, l, id);
                            REQUIRE(x.size() == y.size());
                            for (std::size_t i = 0; i < x.size(); ++i)
                                largest = std::max(largest, std::fabs(double{x[i]} - y[i]));
                        }
                const double bound = quant::find_codec("int8")->error_bound(scheme.params, -4, 4);
                CHECK(largest > 0);
                CHECK(largest <= bound + 4 * 0x1p-11);  // and half a step of f16
            }
        }
    }
}

TEST_CASE("channel groups count from the first stored token") {
    const kv::State state = make_state(kind_plan("swa"));
    const kv::Scheme scheme = int8_scheme(Axis::channel, 3, true, kv::DType::f32);
    const auto quantized = converted(state, scheme, scheme);
    REQUIRE_MESSAGE(quantized.has_value(), quantized.error().message);
    const auto x = values_of(state, 0, 0, PartId::k);  // tokens 7 to 10
    const kv::Tensor& scale = quantized->layers[0][0].k.scale;
    REQUIRE(scale.shape == std::vector<std::uint64_t>{2, 2, 12});
    std::vector<float> scales(scale.elements());
    std::memcpy(scales.data(), scale.bytes.data(), scale.bytes.size());
    for (std::size_t column = 0; column < 24; ++column) {
        const float first = std::max({std::fabs(x[column]), std::fabs(x[24 + column]), std::fabs(x[48 + column])});
        CHECK(scales[column] == doctest::Approx(first / 127).epsilon(1e-6));
        CHECK(scales[24 + column] == doctest::Approx(std::fabs(x[72 + column]) / 127).epsilon(1e-6));
    }
}

TEST_CASE("what cannot be converted is named by kind and the sequence's own token") {
    kv::State state = make_state(kind_plan("mla and swa"));
    const std::uint16_t infinity = 0x7C00;
    std::memcpy(state.layers[0][1].v.values.bytes.data() + 2 * (2 * 6 + 5), &infinity, 2);  // token 9, dim 5
    auto quantized = converted(state, plain_scheme("f16"), int8_scheme(Axis::token, 0, true));
    REQUIRE(!quantized.has_value());
    check_contains(quantized.error().message, {"in.h5: sequence prompt 0, layer 1, V: token 9, head 0, dim 5"});
    std::memcpy(state.layers[0][0].v.values.bytes.data() + 2 * (10 * 6 + 1), &infinity, 2);
    quantized = converted(state, plain_scheme("f16"), int8_scheme(Axis::token, 0, true));
    REQUIRE(!quantized.has_value());
    check_contains(quantized.error().message, {"in.h5: sequence prompt 0, layer 0, RoPE key: token 10"});
}

TEST_CASE("a comparison reports kinds, and places by the sequence's own tokens") {
    const kv::State a = make_state(kind_plan("mla and swa"));
    kv::State b = a;
    const auto same = compared(a, b);
    REQUIRE_MESSAGE(same.has_value(), same.error().message);
    CHECK(same->max_abs == 0);
    CHECK(same->mismatches.empty());
    CHECK(same->parts[0].kind == LayerKind::mla);
    CHECK(same->parts[0].elements == 11 * 12);
    CHECK(same->parts[2].kind == LayerKind::swa);
    CHECK(same->parts[2].elements == 4 * 12);
    const std::uint16_t big = 0x7000;  // 8192
    std::memcpy(b.layers[0][1].k.values.bytes.data() + 2 * (1 * 12 + 7), &big, 2);
    const auto one = compared(a, b);
    REQUIRE_MESSAGE(one.has_value(), one.error().message);
    CHECK(one->max_abs > 8000);
    CHECK(one->worst.layer == 1);
    CHECK(one->worst.kind == LayerKind::swa);
    CHECK(one->worst.token == 8);
    CHECK(one->worst.dim == 7);
}

TEST_CASE("states of different kinds: not comparable where they store different tokens, else a mismatch") {
    Plan windowed = kind_plan("swa and gqa"), full = windowed;
    full.shapes.clear();
    auto result = compared(make_state(windowed), make_state(full));
    REQUIRE(!result.has_value());
    CHECK(result.error().code == Errc::bad_input);
    check_contains(result.error().message,
                   {"not comparable: layer 0 is swa (window 4) and gqa", "prompt 0", "4 and 11"});

    windowed.lengths = full.lengths = {3};  // within the window
    result = compared(make_state(windowed), make_state(full));
    REQUIRE_MESSAGE(result.has_value(), result.error().message);
    REQUIRE(result->mismatches.size() == 1);
    CHECK(result->mismatches[0].field == "layer 0 (and 1 more)");
    CHECK(result->mismatches[0].left == "swa (window 4)");
    CHECK(result->mismatches[0].right == "gqa");
    CHECK(result->max_abs == 0);
}

TEST_CASE("a window is filled from itself or from all tokens, and goes back as far as it reaches") {
    const kv::LayerShape all{}, window{kv::LayerKind::swa, 4}, other{kv::LayerKind::swa, 5},
        latent{kv::LayerKind::mla, 0};
    CHECK(window.takes(window));
    CHECK(window.takes(all));
    CHECK_FALSE(window.takes(other));
    CHECK_FALSE(window.takes(latent));
    CHECK_FALSE(all.takes(window));
    CHECK(latent.takes(latent));
    CHECK_FALSE(latent.takes(all));
    // Of 10 tokens 6 to 9 are held: the query at 9 sees 6 to 9, that at 8 would need 5.
    CHECK(window.first_token(10) == 6);
    CHECK(window.can_go_back(6, 10));
    CHECK(window.can_go_back(6, 9));
    CHECK_FALSE(window.can_go_back(6, 8));
    CHECK_FALSE(window.can_go_back(6, 0));
    CHECK(window.can_go_back(0, 0));
    CHECK(all.can_go_back(0, 3));
}
