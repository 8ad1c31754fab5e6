#include "kinds.h"

using namespace hetero;
using namespace hetero::test;

namespace {

kv::State small_state(std::uint32_t n_layers = 2) {
    Plan plan;
    plan.n_layers = n_layers;
    plan.lengths = {5, 2};
    plan.vocab_size = 40;
    plan.k = int8_scheme(quant::Axis::channel, 2, false);
    plan.v = plain_scheme("f16");
    plan.tokens_per_chunk = 2;
    return make_state(plan);
}

bool names_a_place(const std::string& message) {
    for (const char* word :
         {"attribute", "image: /: damaged object header", "/sequences", "/integrity", "superblock", "root group",
          "HDF5 file", "truncated", "bytes follow", "not complete", "HDF5 cannot open", "HDF5 offsets"})
        if (message.find(word) != std::string::npos) return true;
    return false;
}

void check_every_byte(const kv::State& state, std::initializer_list<bool> modes) {
    const auto image = image_of(state);
    std::size_t found = 0, without_effect = 0;
    for (const bool whole : modes) {
        for (std::size_t i = 0; i < image.size(); ++i) {
            const int mask = whole ? 0xFF : 1 << (i % 8);
            auto damaged = image;
            damaged[i] ^= static_cast<std::byte>(mask);
            const auto back = load_image(std::move(damaged));
            if (back) {
                const std::string what = difference(state, *back);
                if (!what.empty()) FAIL_CHECK("byte ", i, " xor ", mask, " changes ", what, " unseen");
                ++without_effect;
            } else {
                if (!names_a_place(back.error().message))
                    FAIL_CHECK("byte ", i, " xor ", mask, " gives no place: ", back.error().message);
                if (back.error().code != Errc::bad_input)
                    FAIL_CHECK("byte ", i, " xor ", mask, " is taken for something else: ", back.error().message);
                ++found;
            }
        }
    }
    MESSAGE(image.size(), " bytes; ", found, " flips found, ", without_effect, " without effect");
    CHECK(found > without_effect);
}

}  // namespace

TEST_CASE("every flipped byte is found and named, or changes nothing that is read") {
    check_every_byte(small_state(1), {true, false});
}

TEST_CASE("every flipped byte of a shard with a window and a latent, likewise") {
    check_every_byte(small_kinds(), {true});
}

TEST_CASE("a flipped byte of a tensor is named by sequence, layer, array and chunk") {
    const kv::State state = small_state();
    auto image = image_of(state);
    // The values of V, layer 1 of the second sequence (2 tokens = 1 chunk) and of the first (chunk 1 = tokens 2, 3).
    const auto& first = state.layers[0][1].v.values.bytes;
    const auto at = std::search(image.begin(), image.end(), first.begin(), first.end());
    REQUIRE(at != image.end());
    const std::size_t row = first.size() / 5;
    at[static_cast<std::ptrdiff_t>(3 * row)] ^= std::byte{4};
    const auto back = load_image(image);
    REQUIRE(!back.has_value());
    const std::string& message = back.error().message;
    for (const char* part : {"/sequences/0000/layers/001/v", "sequence prompt 0", "layer 1", "chunk 1 (tokens 2 to 3)",
                             "CRC-32C expected"})
        CHECK_MESSAGE(message.find(part) != std::string::npos, part, " is not in: ", message);
    // Structure alone is not hurt by it.
    const TempDir folder;
    write_bytes(folder / "a.h5", image);
    CHECK(load(folder / "a.h5", kv::Verify::structure_only).has_value());
}

TEST_CASE("truncation at every 512 bytes, and 1 byte short") {
    const auto image = image_of(small_state());
    const TempDir folder;
    for (std::size_t n = 0; n < image.size();
         n += n + 512 < image.size() || n + 1 == image.size() ? 512 : image.size() - 1 - n) {
        CAPTURE(n);
        write_bytes(folder / "a.h5", std::span(image).first(n));
        const auto back = load(folder / "a.h5");
        REQUIRE(!back.has_value());
        CHECK(back.error().code == Errc::bad_input);
        const std::string& message = back.error().message;
        if (n == 0)
            CHECK(message.find("empty") != std::string::npos);
        else
            CHECK_MESSAGE(
                message.find(fmt::format("truncated: {} bytes, {} are expected", n, image.size())) != std::string::npos,
                message);
    }
    const std::vector<std::byte> start(image.begin(), image.begin() + 20);
    const auto back = load_image(start);
    REQUIRE(!back.has_value());
    CHECK(back.error().message.find("truncated") != std::string::npos);
}

TEST_CASE("bytes after the end are refused") {
    auto image = image_of(small_state());
    image.push_back(std::byte{0});
    const auto back = load_image(image);
    REQUIRE(!back.has_value());
    CHECK(back.error().message.find("1 bytes follow the end") != std::string::npos);
}

TEST_CASE("files of other kinds are refused as what they are") {
    const TempDir folder;
    const std::string text = "The capital of France is Paris. And this is a text, not a state of a cache.\n";
    write_bytes(folder / "a.txt", std::as_bytes(std::span(text)));
    auto back = load(folder / "a.txt");
    REQUIRE(!back.has_value());
    CHECK(back.error().code == Errc::bad_input);
    CHECK(back.error().message.find("not an HDF5 file") != std::string::npos);
    CHECK(back.error().message.find("a.txt") != std::string::npos);

    back = load(folder / "missing.h5");
    REQUIRE(!back.has_value());
    CHECK(back.error().message.find("No such file") != std::string::npos);

    back = load(folder / ".");
    REQUIRE(!back.has_value());
    CHECK(back.error().message.find("not a regular file") != std::string::npos);
}
