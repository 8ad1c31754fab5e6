// Every family, from a folder to GGUF and back: the programs over the same rows, the same names of the arithmetic, and
// the goldens' own GGUF files, which another program wrote.
#include <cmath>

#include "io/gguf.h"
#include "model/digest.h"
#include "unit/convert/programs.h"
#include "unit/model/support.h"

namespace {

using namespace hetero;
using namespace hetero::test;

const char* const folders[] = {"llama/f32",        "llama/bf16",       "llama3_rope/bf16", "qwen2/bf16",
                               "qwen3/bf16",       "mistral_swa/bf16", "gemma2/bf16",      "gemma3_text/bf16",
                               "phi3/bf16",        "gpt_neox/bf16",    "mixtral/bf16",     "qwen3_moe/bf16",
                               "deepseek_v2/bf16", "deepseek_v3/bf16"};

struct Folder {
    explicit Folder(const std::string& name) {
        if (name.starts_with("deepseek_v3")) {  // it scales Q and K, which a GGUF of its family does not
            copy_folder(dir_, "golden/tiny/" + name, [](nlohmann::json& config) {
                auto& scaling = config["rope_scaling"];
                scaling["mscale"] = scaling["mscale_all_dim"];
            });
            model_ = load_model(dir_.path());
        } else {
            model_ = load_model(testdata("golden/tiny/" + name));
        }
    }
    const model::Model& operator*() const { return *model_; }
    const model::Model* operator->() const { return model_.get(); }

private:
    TempDir dir_;
    std::shared_ptr<const model::Model> model_;
};

const io::GgufMetaValue* find(const convert::Plan& plan, const std::string& key) {
    for (const auto& [name, value] : plan.metadata) {
        if (name == key) return &value;
    }
    return nullptr;
}

std::string all(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
}

}  // namespace

TEST_CASE("a GGUF computes what the folder computes, and is the same architecture") {
    for (const char* name : folders) {
        CAPTURE(name);
        const Folder folder(name);
        const TempDir dir;
        const auto gguf = load_model(write_gguf(dir, must(convert::plan_to_gguf(*folder)), *folder));
        check_same_program(*folder, *gguf);
        CHECK(model::arch_text(folder->config) == model::arch_text(gguf->config));
        CHECK(folder->arch_digest == gguf->arch_digest);
        CHECK(folder->rope_scaling_text() == gguf->rope_scaling_text());
        CHECK(folder->config.context_length == gguf->config.context_length);
        CHECK(folder->config.name == gguf->config.name);
        CHECK(folder->config.rope.theta == gguf->config.rope.theta);
    }
}

TEST_CASE("and back: the folder's tensors, bit for bit, and the same arithmetic") {
    for (const char* name : folders) {
        CAPTURE(name);
        const Folder folder(name);
        const TempDir dir;
        const auto gguf = load_model(write_gguf(dir, must(convert::plan_to_gguf(*folder)), *folder));
        const auto back = load_model(write_folder(dir, must(convert::plan_to_folder(*gguf)), *gguf));
        const Tensors before = tensors_of(*folder->weights), after = tensors_of(*back->weights);
        CHECK(folder->weights->names() == back->weights->names());
        for (const auto& [tensor, values] : before) {
            CAPTURE(tensor);
            REQUIRE(after.contains(tensor));
            CHECK((values == after.at(tensor)));
        }
        check_same_program(*folder, *back);
        CHECK(model::arch_text(folder->config) == model::arch_text(back->config));
        CHECK(folder->config.tied_embeddings == back->config.tied_embeddings);
        CHECK(folder->config.context_length == back->config.context_length);
    }
}

TEST_CASE("the experts of a GGUF that another program wrote") {
    // The same weights, in f32 there and rounded to bf16 here.
    const Folder folder("mixtral/bf16");
    const auto gguf = load_model(testdata("golden/tiny/gguf/mixtral-f32.gguf"));
    const auto check = [](const Tensors& ours, const Tensors& theirs) {
        REQUIRE(ours.size() == theirs.size());
        for (const auto& [name, tensor] : ours) {
            CAPTURE(name);
            REQUIRE(theirs.contains(name));
            const Tensor& other = theirs.at(name);
            REQUIRE(tensor.shape == other.shape);
            std::size_t beyond = 0;  // half a step of bf16
            for (std::size_t i = 0; i < tensor.values.size(); ++i) {
                if (!(std::fabs(tensor.values[i] - other.values[i]) <= std::fabs(other.values[i]) / 256)) ++beyond;
            }
            CHECK(beyond == 0);
        }
    };
    check(carried_out(must(convert::plan_to_gguf(*folder)), *folder->weights), tensors_of(*gguf->weights));
    check(carried_out(must(convert::plan_to_folder(*gguf)), *gguf->weights), tensors_of(*folder->weights));
    CHECK(model::arch_text(folder->config) == model::arch_text(gguf->config));
}

TEST_CASE("the tensors of a GGUF that another program wrote") {
    const Folder folder("llama/f32");
    const auto gguf = load_model(testdata("golden/tiny/gguf/llama-f32.gguf"));
    const convert::Plan to_gguf = must(convert::plan_to_gguf(*folder));
    CHECK((carried_out(to_gguf, *folder->weights) == tensors_of(*gguf->weights)));
    const convert::Plan to_folder = must(convert::plan_to_folder(*gguf));
    CHECK((carried_out(to_folder, *gguf->weights) == tensors_of(*folder->weights)));
    CHECK(folder->arch_digest == gguf->arch_digest);

    // Its keys, in types that llama.cpp insists on. How words are split is compared elsewhere: the two differ in it.
    using Value = io::GgufMetaValue;
    const std::pair<const char*, Value> keys[] = {{"general.architecture", std::string("llama")},
                                                  {"llama.block_count", 3U},
                                                  {"llama.context_length", 512U},
                                                  {"llama.embedding_length", 64U},
                                                  {"llama.feed_forward_length", 128U},
                                                  {"llama.attention.head_count", 4U},
                                                  {"llama.attention.head_count_kv", 2U},
                                                  {"llama.attention.layer_norm_rms_epsilon", 1e-5F},
                                                  {"llama.rope.freq_base", 10000.0F},
                                                  {"llama.rope.dimension_count", 16U},
                                                  {"llama.vocab_size", 512U},
                                                  {"tokenizer.ggml.model", std::string("gpt2")},
                                                  {"tokenizer.ggml.bos_token_id", 1U},
                                                  {"tokenizer.ggml.eos_token_id", 2U},
                                                  {"tokenizer.ggml.padding_token_id", 0U},
                                                  {"tokenizer.ggml.add_bos_token", true}};
    for (const auto& [key, value] : keys) {
        CAPTURE(key);
        const Value* found = find(to_gguf, key);
        REQUIRE(found != nullptr);
        CHECK((*found == value));
        CHECK(gguf->gguf->metadata().contains(key));
    }
    for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
        CAPTURE(key);
        const auto theirs = must(gguf->gguf->strings(key));
        REQUIRE(theirs.has_value());
        REQUIRE(find(to_gguf, key) != nullptr);
        const auto& ours = std::get<std::vector<std::string>>(*find(to_gguf, key));
        CHECK((std::vector<std::string>(theirs->begin(), theirs->end()) == ours));
    }
}

TEST_CASE("what divides frequencies in Llama 3, as another program wrote it") {
    const Folder folder("llama3_rope/bf16");
    const auto gguf = load_model(testdata("golden/tiny/gguf/llama3_rope-f16.gguf"));
    const Tensors made = carried_out(must(convert::plan_to_gguf(*folder)), *folder->weights);
    const Tensor theirs = tensors_of(*gguf->weights).at("rope_freqs.weight");
    REQUIRE(made.contains("rope_freqs.weight"));
    const Tensor& ours = made.at("rope_freqs.weight");
    REQUIRE(ours.shape == theirs.shape);
    for (std::size_t i = 0; i < ours.values.size(); ++i) {
        CAPTURE(i);
        CHECK(ours.values[i] == doctest::Approx(theirs.values[i]).epsilon(1e-6));
    }
    // With another original context than the published one it is not recognised, and no config.json could say it.
    const auto plan = convert::plan_to_folder(*gguf);
    REQUIRE_FALSE(plan.has_value());
    CHECK(plan.error().message.find("rope_freqs.weight") != std::string::npos);
}

TEST_CASE("only matrices may be stored in other types") {
    for (const char* name : folders) {
        const Folder folder(name);
        for (const convert::TensorPlan& one : must(convert::plan_to_gguf(*folder)).tensors) {
            CAPTURE(one.name);
            const bool router = one.name.find("ffn_gate_inp") != std::string::npos;
            CHECK(one.quantizable == (one.shape.size() > 1 && !router));
        }
    }
}

TEST_CASE("what llama.cpp would not do is said") {
    const auto said = [](const char* name, const char* text) {
        CAPTURE(name);
        const std::string warnings = all(must(convert::plan_to_gguf(*Folder(name))).warnings);
        CAPTURE(warnings);
        CHECK(warnings.find(text) != std::string::npos);
    };
    said("mistral_swa/bf16", "window of 24 tokens");
    said("gemma3_text/bf16", "attention.scale");
    said("gemma3_text/bf16", "sliding_window_pattern");
    said("qwen3/bf16", "there is no tokenizer.json");
    CHECK(must(convert::plan_to_gguf(*Folder("llama/f32"))).warnings.empty());
}

TEST_CASE("a container is not converted to itself") {
    const auto gguf = convert::plan_to_gguf(*load_model(testdata("golden/tiny/gguf/llama-f32.gguf")));
    REQUIRE_FALSE(gguf.has_value());
    CHECK(gguf.error().code == Errc::usage);
    const auto folder = convert::plan_to_folder(*Folder("llama/f32"));
    REQUIRE_FALSE(folder.has_value());
    CHECK(folder.error().code == Errc::usage);
}
