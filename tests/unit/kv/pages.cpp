// K and V in blocks, heads first, with RoPE's pairs side by side: against indexing element by element; and files of
// them.
#include "kv/pages.h"

#include <cstring>
#include <random>

#include "io/safetensors.h"
#include "kinds.h"
#include "kv/pages_file.h"

using namespace hetero;
using namespace hetero::test;
using kv::PageLayout;
using kv::PageShape;
using kv::PartId;

namespace {

// Where an element of [token][head][dim] is, from the definition of the layouts.
std::size_t index_by_hand(const PageLayout& layout, const PageShape& shape, bool is_k, std::uint64_t token,
                          std::uint64_t head, std::uint64_t dim) {
    const std::uint64_t block = layout.block_tokens == 0 ? shape.tokens : layout.block_tokens;
    const std::uint64_t n = layout.rotary_dims == 0 ? shape.dim : layout.rotary_dims;
    std::uint64_t d = dim;
    if (is_k && layout.interleaved && dim < n) d = dim < n / 2 ? 2 * dim : 2 * (dim - n / 2) + 1;
    const std::uint64_t b = token / block, t = token % block;
    if (layout.heads_first) return ((b * shape.heads + head) * block + t) * shape.dim + d;
    return ((b * block + t) * shape.heads + head) * shape.dim + d;
}

std::vector<PageLayout> layouts() {
    std::vector<PageLayout> all;
    for (const bool heads_first : {false, true})
        for (const std::uint32_t block : {0U, 1U, 4U, 16U})
            for (const std::uint32_t rotary : {0U, 4U, 8U}) {
                all.push_back({heads_first, block, true, rotary});
                if (rotary == 0) all.push_back({heads_first, block, false, 0});
            }
    return all;
}

std::string save_pages(const kv::State& state, const std::string& path, const PageLayout& layout) {
    auto sink = kv::create_pages(path, layout, io::Overwrite::replace);
    REQUIRE_MESSAGE(sink.has_value(), sink.error().message);
    const Status done = kv::write_all(state, **sink);
    return done ? "" : done.error().message;
}

Result<kv::State> load_pages(const std::string& path) {
    HETERO_TRY(const auto source, kv::open_pages(path));
    return kv::read_all(*source);
}

}  // namespace

TEST_CASE("every layout puts each value where its definition says, and back") {
    std::mt19937 random(3);
    for (const PageLayout& layout : layouts()) {
        for (const std::uint64_t tokens : {1U, 4U, 7U, 16U, 33U}) {
            for (const std::uint64_t heads : {1U, 3U}) {
                for (const std::size_t item : {2U, 4U}) {
                    for (const bool is_k : {true, false}) {
                        const PageShape shape{tokens, heads, 8, item};
                        std::vector<std::byte> values(tokens * heads * 8 * item);
                        for (std::byte& b : values) b = static_cast<std::byte>(random());
                        std::uint64_t size = item;
                        for (const std::uint64_t n : kv::page_shape(layout, shape)) size *= n;
                        std::vector<std::byte> pages(size, std::byte{0xEE}), expected(size), back(values.size());
                        kv::to_pages(layout, shape, is_k, values, pages);
                        for (std::uint64_t t = 0; t < tokens; ++t)
                            for (std::uint64_t h = 0; h < heads; ++h)
                                for (std::uint64_t d = 0; d < 8; ++d)
                                    std::memcpy(expected.data() + index_by_hand(layout, shape, is_k, t, h, d) * item,
                                                values.data() + ((t * heads + h) * 8 + d) * item, item);
                        CHECK(pages == expected);  // what fills up is zero
                        kv::from_pages(layout, shape, is_k, pages, back);
                        CHECK(back == values);
                    }
                }
            }
        }
    }
}

TEST_CASE("shapes of pages, and rotations that would be cut") {
    CHECK(kv::page_shape({false, 16, false, 0}, {33, 2, 64, 2}) == std::vector<std::uint64_t>{3, 16, 2, 64});
    CHECK(kv::page_shape({true, 16, false, 0}, {32, 2, 64, 2}) == std::vector<std::uint64_t>{2, 2, 16, 64});
    CHECK(kv::page_shape({}, {33, 2, 64, 2}) == std::vector<std::uint64_t>{1, 33, 2, 64});
    CHECK(kv::check_layout({false, 0, true, 0}, 64).has_value());
    CHECK(kv::check_layout({false, 0, true, 16}, 64).has_value());
    CHECK(kv::check_layout({false, 0, false, 0}, 7).has_value());
    for (const std::uint32_t rotary : {3U, 66U})
        CHECK_FALSE(kv::check_layout({false, 0, true, rotary}, 64).has_value());
    CHECK_FALSE(kv::check_layout({false, 0, true, 0}, 7).has_value());
}

TEST_CASE("states through files of pages are the same, in every layout") {
    const TempDir folder;
    for (const char* name : {"gqa", "swa", "swa and gqa", "mla"}) {
        for (const auto& [k, v] : {std::pair{"f16", "f32"}, {"bf16", "bf16"}}) {
            Plan plan = kind_plan(name);
            plan.head_dim_k = 8;
            plan.k = plain_scheme(k);
            plan.v = plain_scheme(v);
            const kv::State state = make_state(plan);
            for (const PageLayout& layout : layouts()) {
                if (layout.interleaved && std::string_view(name) == "mla") continue;
                REQUIRE(save_pages(state, folder / "a.safetensors", layout) == "");
                const auto back = load_pages(folder / "a.safetensors");
                REQUIRE_MESSAGE(back.has_value(), back.error().message);
                CHECK(difference(state, *back) == "");
            }
        }
    }
    // As anybody sees them.
    Plan plan;
    plan.lengths = {5};
    REQUIRE(save_pages(make_state(plan), folder / "a.safetensors", {true, 4, false, 0}) == "");
    const auto tensors = io::open_safetensors(folder / "a.safetensors");
    REQUIRE(tensors.has_value());
    CHECK((*tensors)->find("sequences.0.layers.1.k")->shape == std::vector<std::uint64_t>{2, 2, 4, 8});
    CHECK((*tensors)->find("sequences.0.tokens")->dtype == kernels::DType::i32);
}

TEST_CASE("a shard in pages stays a shard") {
    const TempDir folder;
    Plan plan;
    plan.n_kv_heads = 4;
    plan.shard = {2, 1, 2, 2};
    const kv::State state = make_state(plan);
    REQUIRE(save_pages(state, folder / "a.safetensors", {true, 16, true, 0}) == "");
    const auto back = load_pages(folder / "a.safetensors");
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(difference(state, *back) == "");
}

TEST_CASE("what has no other layout is refused before a file is there") {
    const TempDir folder;
    const std::string path = folder / "a.safetensors";
    Plan plan;
    plan.v = int8_scheme(quant::Axis::token, 0, true);
    CHECK(save_pages(make_state(plan), path, {}).find("layer 0, V: int8 has no other layout") != std::string::npos);
    CHECK(save_pages(make_state(kind_plan("mla")), path, {false, 0, true, 0}).find("pairs of its own") !=
          std::string::npos);
    CHECK(save_pages(make_state({}), path, {false, 0, true, 5}).find("cannot be rotated in pairs") !=
          std::string::npos);
    CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a tensor that the state knows nothing of is no part to leave out") {
    const TempDir folder;
    const std::string path = folder / "a.safetensors";
    Plan plan;
    plan.n_layers = 2;
    REQUIRE(save_pages(make_state(plan), path, {}) == "");
    const auto bytes = read_bytes(path);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    // As from a writer without a digest: one layer fewer in the state than in the file.
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>{"\"digest\":", "\"digesx\":"}, {"\"n_layers\":2", "\"n_layers\":1"}}) {
        const std::size_t at = text.find(from);
        REQUIRE(at != std::string::npos);
        text.replace(at, from.size(), to);
    }
    write_bytes(path, std::as_bytes(std::span(text)));
    const auto back = load_pages(path);
    REQUIRE_FALSE(back.has_value());
    CHECK(back.error().message.find("layers.1.k' is of no layer") != std::string::npos);
}

TEST_CASE("tensors of another type of the same width are no state") {
    const TempDir folder;
    const std::string path = folder / "a.safetensors";
    REQUIRE(save_pages(make_state({}), path, {}) == "");
    const auto bytes = read_bytes(path);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::uint64_t length = 0;  // of the header of JSON, little-endian before it
    std::memcpy(&length, text.data(), sizeof length);
    for (std::size_t at = 0; (at = text.find("\"F16\"", at)) != std::string::npos && at < length; ++length)
        text.replace(at, 5, "\"BF16\"");
    std::memcpy(text.data(), &length, sizeof length);
    REQUIRE(text.size() > bytes.size());
    write_bytes(path, std::as_bytes(std::span(text)));
    const auto back = load_pages(path);
    REQUIRE_FALSE(back.has_value());
    CHECK(back.error().message.find("of type bf16, expected \"f16\"") != std::string::npos);
}

TEST_CASE("every flipped byte of a file of pages is found, or without effect") {
    const TempDir folder;
    const std::string path = folder / "a.safetensors";
    Plan plan;
    plan.n_layers = 1;
    plan.n_heads = 2;
    plan.head_dim_k = plan.head_dim_v = 2;
    plan.lengths = {3};
    plan.vocab_size = 4;
    const kv::State state = make_state(plan);
    REQUIRE(save_pages(state, path, {true, 2, true, 0}) == "");
    const auto good = read_bytes(path);
    std::size_t found = 0, same = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
        auto bytes = good;
        bytes[at] ^= std::byte{1};
        write_bytes(path, bytes);
        const auto back = load_pages(path);
        if (!back) {
            ++found;
            CHECK(back.error().code == Errc::bad_input);
            CHECK(back.error().message.find('\n') == std::string::npos);
            continue;
        }
        CHECK(difference(state, *back) == "");
        ++same;
    }
    CHECK(found > good.size() / 2);
    MESSAGE(good.size(), " bytes; ", found, " flips found, ", same, " without effect");
    for (std::size_t length = 0; length < good.size(); length += 7) {
        write_bytes(path, std::span(good).first(length));
        CHECK_FALSE(load_pages(path).has_value());
    }
}
