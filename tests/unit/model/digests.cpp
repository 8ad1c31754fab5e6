// What names a model: the arithmetic, the weights, and the file apart.
#include "model/digest.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

std::shared_ptr<const model::Model> must_load(const std::string& path) {
    auto model = model::Model::load(path);
    REQUIRE_MESSAGE(model.has_value(), (model ? "" : model.error().message));
    return *model;
}

}  // namespace

TEST_CASE("one model has one arch digest in every container and precision") {
    const auto f32 = must_load(testdata("golden/tiny/llama/f32")), bf16 = must_load(testdata("golden/tiny/llama/bf16"));
    const auto gguf = must_load(testdata("golden/tiny/gguf/llama-f32.gguf"));
    const auto q8 = must_load(testdata("golden/tiny/gguf/llama-q8_0.gguf"));
    const auto other = must_load(testdata("golden/tiny/llama3_rope/bf16"));
    CHECK(f32->arch_digest == bf16->arch_digest);
    CHECK(f32->arch_digest == gguf->arch_digest);
    CHECK(f32->arch_digest == q8->arch_digest);
    CHECK(f32->arch_digest != other->arch_digest);
    CHECK(f32->lineage != bf16->lineage);
    CHECK(gguf->lineage != q8->lineage);
}

TEST_CASE("every value that changes the arithmetic changes the arch digest, and nothing else does") {
    const model::Config base = must_load(testdata("golden/tiny/llama3_rope/bf16"))->config;
    const auto changed = [&base](const std::function<void(model::Config&)>& change) {
        model::Config config = base;
        change(config);
        return model::arch_text(config) != model::arch_text(base);
    };
    CHECK(changed([](model::Config& c) { c.arch = std::string(3, 'x'); }));
    CHECK(changed([](model::Config& c) { ++c.n_layers; }));
    CHECK(changed([](model::Config& c) { ++c.n_heads; }));
    CHECK(changed([](model::Config& c) { ++c.n_kv_heads; }));
    CHECK(changed([](model::Config& c) { ++c.head_dim; }));
    CHECK(changed([](model::Config& c) { ++c.hidden; }));
    CHECK(changed([](model::Config& c) { ++c.ffn; }));
    CHECK(changed([](model::Config& c) { ++c.vocab_size; }));
    CHECK(changed([](model::Config& c) { c.norm_eps = 1e-6F; }));
    CHECK(changed([](model::Config& c) { c.rope.theta += 1; }));
    CHECK(changed([](model::Config& c) { c.rope.rotary_dim -= 2; }));
    CHECK(changed([](model::Config& c) { c.rope.scaling = model::RopeScalingKind::none; }));
    CHECK(changed([](model::Config& c) { c.rope.scaling = model::RopeScalingKind::linear; }));
    CHECK(changed([](model::Config& c) { c.rope.factor += 1; }));
    CHECK(changed([](model::Config& c) { c.rope.low_freq_factor += 1; }));
    CHECK(changed([](model::Config& c) { c.rope.high_freq_factor += 1; }));
    CHECK(changed([](model::Config& c) { ++c.rope.original_context; }));
    CHECK(changed([](model::Config& c) { c.rope.frequency_divisors = {1, 2}; }));
    CHECK_FALSE(changed([](model::Config& c) { c.name = std::string(3, 'x'); }));
    CHECK_FALSE(changed([](model::Config& c) { ++c.context_length; }));
    CHECK_FALSE(changed([](model::Config& c) { c.tied_embeddings = !c.tied_embeddings; }));
    CHECK_FALSE(changed([](model::Config& c) { c.rope.pairing = kernels::RopePairing::interleaved; }));
}

TEST_CASE("so does every value of YaRN, of latents and of experts") {
    const model::Config base = must_load(testdata("golden/tiny/deepseek_v3/bf16"))->config;
    const auto changed = [&base](const std::function<void(model::Config&)>& change) {
        model::Config config = base;
        change(config);
        return model::arch_text(config) != model::arch_text(base);
    };
    CHECK(changed([](model::Config& c) { c.rope.attention_factor += 0.1; }));
    CHECK(changed([](model::Config& c) { c.rope.beta_fast += 1; }));
    CHECK(changed([](model::Config& c) { c.rope.beta_slow += 1; }));
    CHECK(changed([](model::Config& c) { c.rope.factor += 1; }));
    CHECK(changed([](model::Config& c) { ++c.rope.original_context; }));
    CHECK(changed([](model::Config& c) { c.rope.whole_dims = false; }));
    CHECK(changed([](model::Config& c) { c.attention_scale *= 2; }));
    CHECK(changed([](model::Config& c) { ++c.latent->q_rank; }));
    CHECK(changed([](model::Config& c) { ++c.latent->kv_rank; }));
    CHECK(changed([](model::Config& c) { ++c.latent->plain_dim; }));
    CHECK(changed([](model::Config& c) { ++c.latent->rope_dim; }));
    CHECK(changed([](model::Config& c) { ++c.latent->v_dim; }));
    CHECK(changed([](model::Config& c) { c.latent->norm_eps *= 2; }));
    CHECK(changed([](model::Config& c) { c.moe->layers.flip(); }));
    CHECK(changed([](model::Config& c) { ++c.moe->n_experts; }));
    CHECK(changed([](model::Config& c) { ++c.moe->expert_ffn; }));
    CHECK(changed([](model::Config& c) { ++c.moe->n_shared; }));
    CHECK(changed([](model::Config& c) { c.moe->selection_bias = false; }));
    CHECK(changed([](model::Config& c) { c.moe->rule.score = model::RoutingRule::Score::softmax; }));
    CHECK(changed([](model::Config& c) { c.moe->rule.group_score = model::RoutingRule::GroupScore::highest; }));
    CHECK(changed([](model::Config& c) { ++c.moe->rule.top_k; }));
    CHECK(changed([](model::Config& c) { ++c.moe->rule.n_groups; }));
    CHECK(changed([](model::Config& c) { ++c.moe->rule.top_groups; }));
    CHECK(changed([](model::Config& c) { c.moe->rule.normalize = false; }));
    CHECK(changed([](model::Config& c) { c.moe->rule.scale *= 2; }));
    CHECK_FALSE(changed([](model::Config& c) { ++c.n_other_layers; }));
}

TEST_CASE("what the older families say of themselves stays as it is: states refer to it") {
    CHECK(model::arch_text(must_load(testdata("golden/tiny/llama/bf16"))->config) ==
          "hetero-arch 1\narch=llama\nn_layers=3\nn_heads=4\nn_kv_heads=2\nhead_dim=16\nhidden=64\nffn=128\n"
          "vocab_size=512\nnorm_eps=1e-05\nrope_theta=10000\nrotary_dim=16\nrope_scaling=none\n");
    CHECK(must_load(testdata("golden/tiny/deepseek_v3/bf16"))->rope_scaling_text() ==
          R"({"attention_factor":1.0369928,"beta_fast":32,"beta_slow":1,"factor":4,)"
          R"("original_max_position_embeddings":128,"rope_type":"yarn"})");
}

TEST_CASE("another RoPE base is another arithmetic over the same weights") {
    const std::string path = testdata("golden/tiny/gguf/llama-f32.gguf");
    std::string bytes = read_file(path);
    set_gguf(bytes, "llama.rope.freq_base", 20000.0F);
    const TempDir folder;
    const auto original = must_load(path), changed = must_load(folder.write("changed.gguf", bytes));
    CHECK(changed->config.rope.theta == 20000);
    CHECK(changed->arch_digest != original->arch_digest);
    CHECK(changed->lineage == original->lineage);
    CHECK(changed->weights_digest != original->weights_digest);
}

TEST_CASE("the lineage follows the weights, not the path") {
    const std::string path = testdata("golden/tiny/gguf/llama-f32.gguf");
    const std::string bytes = read_file(path);
    const auto original = must_load(path);
    const TempDir folder;
    const auto copy = must_load(folder.write("elsewhere.gguf", bytes));
    CHECK(copy->lineage == original->lineage);
    CHECK(copy->weights_digest == original->weights_digest);
    CHECK(copy->config.name == original->config.name);
    // The start and the end of each tensor are always among the samples.
    for (const std::string& name : original->weights->names()) {
        CAPTURE(name);
        const auto data = original->weights->find(name)->bytes;
        const std::string content(reinterpret_cast<const char*>(data.data()), std::min<std::size_t>(data.size(), 256));
        const std::size_t begin = bytes.find(content);
        REQUIRE(begin != std::string::npos);
        for (const std::size_t offset : {std::size_t{0}, data.size() - 1}) {
            std::string changed = bytes;
            changed[begin + offset] = static_cast<char>(changed[begin + offset] ^ 1);
            CHECK(must_load(folder.write("changed.gguf", changed))->lineage != original->lineage);
        }
    }
}
