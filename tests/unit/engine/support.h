// The tiny models, and sessions of them.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/probability.h"
#include "engine/session.h"
#include "support/golden.h"
#include "support/results.h"

namespace hetero::test {

using engine::Session;
using engine::TokenId;
using kernels::DType;

inline std::shared_ptr<const model::Model> tiny_model(const std::string& name = "llama/f32") {
    return must(model::Model::load(testdata("golden/tiny/" + name)));
}

inline std::vector<std::string> all_tiny_models() {
    std::vector<std::string> names;
    const std::filesystem::path root = testdata("golden/tiny");
    for (const auto& family : std::filesystem::directory_iterator(root)) {
        for (const auto& one : std::filesystem::directory_iterator(family)) {
            const bool model = one.path().extension() == ".gguf" || std::filesystem::exists(one.path() / "config.json");
            if (model) names.push_back(std::filesystem::relative(one.path(), root).string());
        }
    }
    std::sort(names.begin(), names.end());
    return names;
}

inline std::unique_ptr<Session> make_session(std::shared_ptr<const model::Model> model, std::uint64_t capacity,
                                             DType kv_dtype = DType::f16, std::uint32_t chunk_tokens = 256,
                                             int threads = 1) {
    engine::Options options;
    options.threads = threads;
    options.kv_dtype = kv_dtype;
    options.chunk_tokens = chunk_tokens;
    return must(Session::create(std::move(model), options, capacity));
}

// Logits of the last position.
inline std::vector<float> prefill(Session& session, const std::vector<TokenId>& tokens) {
    std::vector<float> last;
    must(session.prefill(tokens, engine::Logits::last, [&last](std::uint64_t, std::span<const float> logits) -> Status {
        last.assign(logits.begin(), logits.end());
        return {};
    }));
    return last;
}

// A model whose weights of one matrix are scaled; `storage` keeps them.
struct ScaledModel {
    std::shared_ptr<model::Model> model;
    std::vector<float> storage;
};
enum class Target { k, v };
inline std::shared_ptr<ScaledModel> scaled_model(std::uint32_t layer, Target target, float factor) {
    auto scaled = std::make_shared<ScaledModel>();
    scaled->model = std::make_shared<model::Model>(*tiny_model());
    for (model::Op& op : scaled->model->program.ops) {
        auto* qkv = std::get_if<model::Qkv>(&op);
        if (qkv == nullptr || qkv->layer != layer) continue;
        model::Matrix& matrix = target == Target::k ? qkv->k : qkv->v;
        scaled->storage.resize(matrix.rows * matrix.cols);
        REQUIRE(matrix.dtype == DType::f32);
        std::memcpy(scaled->storage.data(), matrix.data, scaled->storage.size() * sizeof(float));
        for (float& value : scaled->storage) value *= factor;
        matrix.data = reinterpret_cast<const std::byte*>(scaled->storage.data());
    }
    REQUIRE_FALSE(scaled->storage.empty());
    return scaled;
}

}  // namespace hetero::test
