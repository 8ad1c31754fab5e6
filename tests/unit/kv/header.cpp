#include <limits>

#include "kv/canonical.h"
#include "states.h"

using namespace hetero;
using namespace hetero::test;

namespace {

void check_refused(const kv::Header& header, std::string_view part) {
    const auto status = kv::check_header(header);
    REQUIRE(!status.has_value());
    CHECK_MESSAGE(status.error().message.find(part) != std::string::npos, part, " is not in: ", status.error().message);
}

template <class Change>
kv::Header changed(Change change) {
    kv::Header header = make_header({});
    change(header);
    return header;
}

}  // namespace

TEST_CASE("every hard field of an identity is compared, by name and with both values") {
    const kv::Identity a = make_header({}).identity;
    const auto one = [&a](auto change, std::string_view field, std::string_view left, std::string_view right) {
        kv::Identity b = a;
        change(b);
        const auto mismatches = kv::compare(a, b);
        REQUIRE(mismatches.size() == 1);
        CHECK(mismatches[0].field == field);
        CHECK(mismatches[0].left == left);
        CHECK(mismatches[0].right == right);
        CHECK(kv::compat_hash(a) != kv::compat_hash(b));
    };
    one([](auto& b) { b.arch = "qwen2"; }, "arch", "llama", "qwen2");
    one([](auto& b) { b.n_layers = 3; }, "n_layers", "2", "3");
    one([](auto& b) { b.n_heads = 8; }, "n_heads", "4", "8");
    one([](auto& b) { b.n_kv_heads = 4; }, "n_kv_heads", "2", "4");
    one([](auto& b) { b.head_dim_k = 9; }, "head_dim_k", "8", "9");
    one([](auto& b) { b.head_dim_v = 9; }, "head_dim_v", "8", "9");
    one([](auto& b) { b.vocab_size = 51; }, "vocab_size", "50", "51");
    one([](auto& b) { b.context_length = 16; }, "context_length", "1048576", "16");
    one([](auto& b) { b.rope_theta = 100000; }, "rope_theta", "10000", "100000");
    one([](auto& b) { b.rope_scaling = "{}"; }, "rope_scaling", "none", "{}");
    one([](auto& b) { b.rope_applied = false; }, "rope_applied", "true", "false");
    one([](auto& b) { b.arch_digest[0] ^= 1; }, "arch_digest", to_hex(a.arch_digest), to_hex([&] {
            auto d = a.arch_digest;
            d[0] ^= 1;
            return d;
        }()));
    one([](auto& b) { b.tokenizer_digest = {}; }, "tokenizer_digest", to_hex(a.tokenizer_digest), std::string(64, '0'));
    one([](auto& b) { b.lineage = {}; }, "lineage", to_hex(a.lineage), std::string(64, '0'));
}

TEST_CASE("model_id and weights_digest may differ") {
    const kv::Identity a = make_header({}).identity;
    kv::Identity b = a;
    b.model_id = "the same in Q8_0";
    b.weights_digest = {};
    CHECK(kv::compare(a, b).empty());
    CHECK(kv::compat_hash(a) == kv::compat_hash(b));
}

TEST_CASE("the canonical text of compat_hash is the one that hetero-kv(5) gives") {
    kv::Identity id = make_header({}).identity;
    id.arch = "a\nb\\c";
    id.rope_theta = 100000;
    CHECK(kv::compat_text(id) ==
          "hetero-kv-compat 1\narch=a\\x0ab\\x5cc\nn_layers=2\nn_heads=4\nn_kv_heads=2\nhead_dim_k=8\nhead_dim_v=8\n"
          "vocab_size=50\ncontext_length=1048576\nrope_convention=half-split\nrope_theta=40f86a0000000000\n"
          "rope_scaling=none\nrope_applied=1\narch_digest=" +
              to_hex(sha256("arch")) + "\ntokenizer_digest=" + to_hex(sha256("tokenizer")) +
              "\nlineage=" + to_hex(sha256("lineage")) + "\n");
}

TEST_CASE("texts cannot be shifted from one field to the next") {
    // Without escapes, id "a\npending_token=5" could stand for another header.
    const kv::Header a = changed([](auto& h) { h.sequences[0].id = "a\ntokens=1"; });
    CHECK(kv::header_text(a).find("\nsequence=a\\x0atokens=1\n") != std::string::npos);
}

TEST_CASE("a header that contradicts itself is refused") {
    CHECK(kv::check_header(make_header({})).has_value());
    check_refused(changed([](auto& h) { h.identity.n_layers = 0; }), "n_layers");
    check_refused(changed([](auto& h) { h.identity.n_layers = 3; }), "2 schemes of K for 3 layers");
    check_refused(changed([](auto& h) { h.identity.n_kv_heads = 3; }), "not a multiple");
    check_refused(changed([](auto& h) { h.identity.n_kv_heads = 0; }), "n_kv_heads");
    check_refused(changed([](auto& h) { h.identity.head_dim_k = std::numeric_limits<std::uint32_t>::max(); }),
                  "head_dim_k");
    check_refused(changed([](auto& h) { h.identity.context_length = 4; }), "5 tokens are more than the context of 4");
    check_refused(changed([](auto& h) { h.identity.rope_theta = std::numeric_limits<double>::quiet_NaN(); }),
                  "rope_theta");
    check_refused(changed([](auto& h) { h.identity.arch.clear(); }), "arch");
    check_refused(changed([](auto& h) { h.sequences.clear(); }), "number of sequences");
    check_refused(changed([](auto& h) { h.sequences.push_back(h.sequences[0]); }), "two sequences");
    check_refused(changed([](auto& h) { h.sequences[0].id.clear(); }), "empty id");
    check_refused(changed([](auto& h) { h.sequences[0].id = std::string("a\0b", 3); }), "NUL");
    check_refused(changed([](auto& h) { h.sequences[0].tokens.clear(); }), "no tokens");
    check_refused(changed([](auto& h) { h.sequences[0].tokens[3] = 50; }), "tokens[3] is 50");
    check_refused(changed([](auto& h) { h.sequences[0].tokens[3] = -1; }), "tokens[3] is -1");
    check_refused(changed([](auto& h) { h.sequences[0].pending_token = 50; }), "pending_token");
    check_refused(changed([](auto& h) { h.sequences[0].logits.pop_back(); }), "49 logits");
    check_refused(changed([](auto& h) { h.k_schemes[1].codec = "int9"; }), "layer 1, K: scheme \"int9\"");
    check_refused(changed([](auto& h) { h.v_schemes[0].source_dtype = kv::DType::f32; }), "layer 0, V");
    check_refused(changed([](auto& h) {
                      h.k_schemes[0] = int8_scheme(quant::Axis::channel, 4, true);
                      h.tokens_per_chunk = 6;
                  }),
                  "multiple of the group of");
}

TEST_CASE("shapes of scales: short last groups, and whole heads") {
    Plan plan;
    plan.head_dim_k = 12;
    const kv::Header header = make_header(plan);
    using Shape = std::vector<std::uint64_t>;
    const auto k = kv::PartId::k;
    CHECK(kv::values_shape(header, plain_scheme("f16"), 7, k) == Shape{7, 2, 12});
    CHECK(kv::scale_shape(header, plain_scheme("f16"), 7, k).empty());
    CHECK(kv::scale_shape(header, int8_scheme(quant::Axis::token, 0, true), 7, k) == Shape{7, 2, 1});
    CHECK(kv::scale_shape(header, int8_scheme(quant::Axis::token, 5, true), 7, k) == Shape{7, 2, 3});
    CHECK(kv::scale_shape(header, int8_scheme(quant::Axis::channel, 4, true), 7, k) == Shape{2, 2, 12});
    CHECK(kv::scale_shape(header, int8_scheme(quant::Axis::channel, 7, true), 7, k) == Shape{1, 2, 12});
}

TEST_CASE("payload bytes are those of all tensors") {
    Plan plan;
    plan.lengths = {5, 9};
    plan.k = int8_scheme(quant::Axis::channel, 4, false);
    const kv::State state = make_state(plan);
    std::uint64_t bytes = 0;
    for (const auto& sequence : state.layers)
        for (const auto& layer : sequence)
            for (const auto* part : {&layer.k, &layer.v})
                bytes += part->values.bytes.size() + part->scale.bytes.size() + part->zero.bytes.size();
    CHECK(state.header.payload_bytes() == bytes);
}

TEST_CASE("the chunk length: 1 to 4 MiB of values or as wanted, whole channel groups") {
    Plan plan;
    plan.n_kv_heads = 3;
    plan.n_heads = 9;
    plan.head_dim_k = plan.head_dim_v = 64;
    kv::Header header = make_header(plan);
    const std::uint64_t row = 3 * 64 * 2;
    const std::uint32_t tokens = kv::choose_tokens_per_chunk(header);
    CHECK(tokens * row >= 1U << 20);
    CHECK(tokens * row <= 4U << 20);
    const std::uint32_t fewer = kv::choose_tokens_per_chunk(header, 64U << 10);
    CHECK(fewer * row >= 64U << 10);
    CHECK(fewer * row <= 128U << 10);
    header.k_schemes[0] = int8_scheme(quant::Axis::channel, 48, true);
    header.v_schemes[0] = int8_scheme(quant::Axis::channel, 5, true);
    CHECK(kv::choose_tokens_per_chunk(header) % 240 == 0);
}

TEST_CASE("checksums cover every byte, and each chunk on its own") {
    Plan plan;
    plan.lengths = {10};
    plan.k = int8_scheme(quant::Axis::channel, 2, false);
    plan.tokens_per_chunk = 4;
    const kv::State state = make_state(plan);
    kv::Layer layer = state.layers[0][0];
    const kv::LayerChecksums before = kv::checksum_layer(state.header, layer);
    REQUIRE(before.k.values.size() == 3);  // 4 + 4 + 2 tokens
    REQUIRE(before.k.scale.size() == 3);   // 2 + 2 + 1 groups
    REQUIRE(before.k.zero.size() == 3);
    CHECK(before.v.scale.empty());
    const std::span<const std::byte> values(layer.k.values.bytes);
    const std::size_t row = values.size() / 10;
    CHECK(before.k.values[1] == crc32c(values.subspan(4 * row, 4 * row)));
    CHECK(before.k.values[2] == crc32c(values.subspan(8 * row)));
    layer.k.scale.bytes.back() ^= std::byte{1};
    const kv::LayerChecksums after = kv::checksum_layer(state.header, layer);
    CHECK(after.k.values == before.k.values);
    CHECK(after.k.scale[0] == before.k.scale[0]);
    CHECK(after.k.scale[1] == before.k.scale[1]);
    CHECK(after.k.scale[2] != before.k.scale[2]);
}

TEST_CASE("the root changes with every part of the header and every checksum") {
    const kv::State state = make_state({});
    kv::Header header = state.header;
    header.tokens_per_chunk = 8;
    std::vector<std::vector<kv::LayerChecksums>> tables(1);
    for (const auto& layer : state.layers[0]) tables[0].push_back(kv::checksum_layer(header, layer));
    const Digest root = kv::root_digest(header, tables);
    CHECK(root == kv::root_digest(header, tables));
    const auto differs = [&](auto change) {
        kv::Header h = header;
        auto t = tables;
        change(h, t);
        CHECK(kv::root_digest(h, t) != root);
    };
    differs([](auto& h, auto&) { h.identity.rope_theta = 1; });
    differs([](auto& h, auto&) { h.identity.model_id = "b"; });
    differs([](auto& h, auto&) { h.identity.weights_digest = {}; });
    differs([](auto& h, auto&) { h.sequences[0].id = "b"; });
    differs([](auto& h, auto&) { h.sequences[0].tokens[4] = 0; });
    differs([](auto& h, auto&) { h.sequences[0].pending_token = 7; });
    differs([](auto& h, auto&) { h.sequences[0].special_parsed = true; });
    differs([](auto& h, auto&) { h.sequences[0].logits[7] = 0.5F; });
    differs([](auto& h, auto&) { h.sequences[0].logits.clear(); });
    differs([](auto& h, auto&) { h.k_schemes[1].codec = "bf16"; });
    differs([](auto& h, auto&) { h.provenance.pop_back(); });
    differs([](auto& h, auto&) { h.provenance[0].what += " "; });
    differs([](auto& h, auto&) { h.tokens_per_chunk = 16; });
    differs([](auto&, auto& t) { t[0][1].v.values[0] ^= 1; });
    differs([](auto&, auto& t) { std::swap(t[0][0], t[0][1]); });
    differs([](auto&, auto& t) { t[0][0].k.scale.swap(t[0][0].k.values); });
}
