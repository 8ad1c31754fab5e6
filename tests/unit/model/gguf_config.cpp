// The metadata and tensors of a GGUF: what is understood, and what is refused by name.
#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

std::string llama_bytes() { return read_file(testdata("golden/tiny/gguf/llama-f32.gguf")); }

std::string error_of(const std::string& bytes) {
    const TempDir folder;
    return load_error(folder.write("changed.gguf", bytes));
}

void check_message(const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
        CAPTURE(message);
        CAPTURE(part);
        CHECK(message.find(part) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("the metadata of a Llama") {
    const auto loaded = model::Model::load(testdata("golden/tiny/gguf/llama3_rope-f16.gguf"));
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
    const model::Model& model = **loaded;
    CHECK(model.config.name == "tiny-llama3_rope");
    CHECK(model.config.n_layers == 2);
    CHECK(model.config.n_kv_heads == 1);
    CHECK(model.config.head_dim == 16);
    CHECK(model.config.vocab_size == 512);
    CHECK(model.config.tied_embeddings);
    CHECK(model.config.rope.theta == 500000);
    CHECK(model.config.rope.pairing == kernels::RopePairing::interleaved);
    CHECK(model.config.rope.frequency_divisors.size() == 8);
    CHECK(model.rope_scaling_text().starts_with("{\"frequency_divisors\":[1,"));
    CHECK(model.gguf != nullptr);
    const auto& qkv = std::get<model::Qkv>(model.program.ops.at(2));
    CHECK(qkv.q.dtype == kernels::DType::f16);
    CHECK(qkv.q.data == model.weights->find("blk.0.attn_q.weight")->bytes.data());
}

TEST_CASE("the vocabulary is as large as the embedding where no key tells") {
    std::string bytes = llama_bytes();
    rename_gguf(bytes, "llama.vocab_size", "other.vocab_size");
    const TempDir folder;
    const auto loaded = model::Model::load(folder.write("changed.gguf", bytes));
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
    CHECK((*loaded)->config.vocab_size == 512);
}

TEST_CASE("damaged or unsupported metadata is refused by name") {
    struct Change {
        const char* key;
        std::uint32_t value;
        std::vector<std::string> message;
    };
    const Change changes[] = {
        {"llama.block_count", 0, {"llama.block_count", "found 0"}},
        {"llama.block_count", 2, {"blk.2.", "no place"}},
        {"llama.block_count", 4, {"blk.3.attn_norm.weight"}},
        {"llama.block_count", 0xFFFFFFFF, {"llama.block_count", "4294967295"}},
        {"llama.context_length", 0, {"llama.context_length"}},
        {"llama.embedding_length", 128, {"token_embd.weight", "[512, 64]", "[512, 128]"}},
        {"llama.embedding_length", 66, {"hidden size 66 is not a multiple of 4 heads"}},
        {"llama.feed_forward_length", 64, {"blk.0.ffn_gate.weight", "[128, 64]", "[64, 64]"}},
        {"llama.attention.head_count", 0, {"llama.attention.head_count", "found 0"}},
        {"llama.attention.head_count", 8, {"RoPE over 16 dimensions does not fit heads of 8"}},
        {"llama.attention.head_count_kv", 3, {"4 query heads", "3 KV heads"}},
        {"llama.attention.head_count_kv", 4, {"blk.0.attn_k.weight", "[32, 64]", "[64, 64]"}},
        {"llama.rope.dimension_count", 15, {"15 dimensions"}},
        {"llama.vocab_size", 511, {"token_embd.weight", "[512, 64]", "[511, 64]"}},
        {"llama.rope.freq_base", 0x7FC00000, {"llama.rope.freq_base", "nan"}},
        {"llama.rope.freq_base", 0, {"llama.rope.freq_base", "found 0"}},
        {"llama.attention.layer_norm_rms_epsilon", 0x7F800000, {"layer_norm_rms_epsilon", "inf"}},
    };
    for (const Change& change : changes) {
        CAPTURE(change.key);
        CAPTURE(change.value);
        std::string bytes = llama_bytes();
        set_gguf(bytes, change.key, change.value);
        check_message(error_of(bytes), change.message);
    }
}

TEST_CASE("another architecture, unknown keys and unknown tensors are refused by name") {
    std::string architecture = llama_bytes();
    architecture.replace(gguf_value(architecture, "general.architecture") + 8, 5, "mamba");
    check_message(error_of(architecture), {"general.architecture", "\"mamba\"", "llama"});

    std::string logit_scale = llama_bytes();
    rename_gguf(logit_scale, "general.file_type", "llama.logit_scale");
    check_message(error_of(logit_scale), {"llama.logit_scale", "not implemented"});

    std::string no_epsilon = llama_bytes();
    rename_gguf(no_epsilon, "layer_norm_rms_epsilon", "layer_norm_xxx_epsilon");
    check_message(error_of(no_epsilon), {"llama.attention.layer_norm_rms_epsilon is missing"});

    std::string missing = llama_bytes();
    rename_gguf(missing, "blk.1.attn_q.weight", "blk.1.attn_x.weight");
    check_message(error_of(missing), {"blk.1.attn_q.weight"});

    // Without output.weight the embedding is the head; a stray tensor is not taken for harmless.
    std::string untied = llama_bytes();
    const std::size_t at = untied.find(std::string("\x0D\0\0\0\0\0\0\0output.weight", 21));
    REQUIRE(at != std::string::npos);
    untied.replace(at + 8, 13, "outpux.weight");
    check_message(error_of(untied), {"outpux.weight", "no place"});
}

TEST_CASE("frequency divisors must be positive and fit") {
    for (const float value : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
        const std::string path = testdata("golden/tiny/gguf/llama3_rope-f16.gguf");
        std::string bytes = read_file(path);
        const auto original = model::Model::load(path);
        REQUIRE(original.has_value());
        const auto divisors = (*original)->weights->find("rope_freqs.weight")->bytes;
        const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(divisors.data()), divisors.size()));
        REQUIRE(at != std::string::npos);
        std::memcpy(bytes.data() + at + 4, &value, sizeof(value));
        check_message(error_of(bytes), {"rope_freqs.weight"});
    }
}

TEST_CASE("a truncated file is refused") {
    const std::string bytes = llama_bytes();
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{3}, std::size_t{20}, bytes.size() / 2, bytes.size() - 1}) {
        CAPTURE(size);
        check_message(error_of(bytes.substr(0, size)), {"changed.gguf"});
    }
}
