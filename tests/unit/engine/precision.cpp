// Precision::fast: the same bits for a token however it is computed, and near to what Precision::precise gives.
#include <cmath>
#include <cstring>

#include "base/cpus.h"
#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

constexpr std::uint64_t capacity = 64;

std::vector<TokenId> prompt() {
    std::vector<TokenId> tokens;
    for (TokenId i = 0; i < 45; ++i) tokens.push_back((i * 37 + 11) % 500);
    return tokens;
}

std::unique_ptr<Session> session_of(const std::shared_ptr<const model::Model>& model, engine::Precision precision,
                                    std::uint32_t chunk_tokens, int threads) {
    engine::Options options;
    options.threads = threads;
    options.chunk_tokens = chunk_tokens;
    options.precision = precision;
    return must(Session::create(model, options, capacity));
}

// Logits of every position.
std::vector<std::vector<float>> prefilled(Session& session) {
    std::vector<std::vector<float>> rows;
    must(session.prefill(prompt(), engine::Logits::all, [&](std::uint64_t, std::span<const float> logits) -> Status {
        rows.emplace_back(logits.begin(), logits.end());
        return {};
    }));
    return rows;
}

std::vector<std::vector<float>> decoded(Session& session) {
    std::vector<std::vector<float>> rows;
    for (const TokenId token : prompt()) {
        const std::span<const float> logits = must(session.decode(token));
        rows.emplace_back(logits.begin(), logits.end());
    }
    return rows;
}

double rms_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        for (std::size_t j = 0; j < a[i].size(); ++j) {
            difference += std::pow(static_cast<double>(a[i][j]) - static_cast<double>(b[i][j]), 2);
            size += std::pow(static_cast<double>(b[i][j]), 2);
        }
    }
    return std::sqrt(difference / size);
}

// Quantized, 16-bit, with Q, K, V and gate, up in fused matrices, with experts, and with latents.
const char* const models[] = {"gguf/llama-q8_0.gguf", "gguf/qwen3-q4_0.gguf", "gguf/llama3_rope-f16.gguf", "phi3/bf16",
                              "mixtral/bf16",         "deepseek_v2/bf16"};

}  // namespace

TEST_CASE("fast: within a phase a token has the same bits in any chunk, on any number of threads") {
    for (const char* name : models) {
        CAPTURE(std::string(name));
        const auto model = tiny_model(name);
        const auto whole = prefilled(*session_of(model, engine::Precision::fast, 64, 1));
        REQUIRE(whole.size() == prompt().size());
        CHECK(prefilled(*session_of(model, engine::Precision::fast, 64, 3)) == whole);
        CHECK(prefilled(*session_of(model, engine::Precision::fast, 7, 2)) == whole);
        CHECK(prefilled(*session_of(model, engine::Precision::fast, 1, 2)) == whole);
        const auto steps = decoded(*session_of(model, engine::Precision::fast, 64, 1));
        CHECK(decoded(*session_of(model, engine::Precision::fast, 64, 2)) == steps);
        CHECK(rms_difference(steps, whole) < 0.1);  // see below
    }
}

TEST_CASE("fast is near to precise, and not the same") {
    for (const char* name : models) {
        CAPTURE(std::string(name));
        const auto model = tiny_model(name);
        const auto fast = prefilled(*session_of(model, engine::Precision::fast, 64, 1));
        const auto precise = prefilled(*session_of(model, engine::Precision::precise, 64, 1));
        const double difference = rms_difference(fast, precise);
        CHECK(difference > 0);
        CHECK(difference <
              0.1);  // random weights do not forgive, least where experts are chosen; a mistake gives more than 1
    }
}

TEST_CASE("f32 weights are never rounded") {
    const auto model = tiny_model("llama/f32");
    CHECK(engine::PackedWeights::bytes_needed(model->program) == 0);
    CHECK(decoded(*session_of(model, engine::Precision::fast, 64, 1)) ==
          decoded(*session_of(model, engine::Precision::precise, 64, 1)));
    // Attention to many queries may round: kernels/api/tiles.h.
    CHECK(rms_difference(prefilled(*session_of(model, engine::Precision::fast, 64, 1)),
                         prefilled(*session_of(model, engine::Precision::precise, 64, 1))) < 0.01);
}

TEST_CASE("sessions of a model share its packed weights, and these outlive neither") {
    const auto model = tiny_model("gguf/llama-q8_0.gguf");
    ThreadPool pool(2);
    const auto first = engine::PackedWeights::of(model, pool);
    CHECK(engine::PackedWeights::of(model, pool) == first);
    std::weak_ptr<const engine::PackedWeights> weights;
    {
        const auto other = tiny_model("gguf/llama-q8_0.gguf");
        const auto packed = engine::PackedWeights::of(other, pool);
        CHECK(packed != first);
        weights = packed;
    }
    CHECK(weights.expired());
}

TEST_CASE("weights have the same bytes where threads are divided among NUMA nodes") {
    const auto one = tiny_model("gguf/llama-q8_0.gguf"), other = tiny_model("gguf/llama-q8_0.gguf");
    const std::vector<int> cpus = allowed_cpus();
    ThreadPool free(2), divided(2, {{0, cpus}, {1, cpus}});
    REQUIRE(divided.nodes() == 2);
    const auto expected = engine::PackedWeights::of(one, free), got = engine::PackedWeights::of(other, divided);
    std::size_t compared = 0;
    for (std::size_t i = 0; i < one->program.ops.size(); ++i) {
        const auto* a = std::get_if<model::FfnAdd>(&one->program.ops[i]);
        const auto* b = std::get_if<model::FfnAdd>(&other->program.ops[i]);
        if (a == nullptr) continue;
        for (const auto matrix : {&model::FfnAdd::gate, &model::FfnAdd::up, &model::FfnAdd::down}) {
            const engine::PackedMatrix* want = expected->find(a->*matrix);
            const engine::PackedMatrix* have = got->find(b->*matrix);
            REQUIRE(want != nullptr);
            REQUIRE(have != nullptr);
            const std::size_t bytes = kernels::packed_bytes(want->packing, (a->*matrix).rows, (a->*matrix).cols);
            CHECK(std::memcmp(want->data, have->data, bytes) == 0);
            compared += bytes;
        }
    }
    CHECK(compared > 0);
}
