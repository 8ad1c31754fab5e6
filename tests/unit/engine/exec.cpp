// Two ways to run one list of ops: the same bits, and in steps that are planned no memory is taken.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>

#include "engine/plan.h"
#include "support.h"

// AddressSanitizer has allocators of its own, which these must not be mixed with.
#ifndef __SANITIZE_ADDRESS__
namespace {
std::atomic<std::size_t> taken{0};

void* count_and_take(std::size_t bytes, std::size_t alignment) {
    taken.fetch_add(1, std::memory_order_relaxed);
    const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(whole) : std::aligned_alloc(alignment, whole);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
}  // namespace

// Of the whole test program. Not inlined: GCC would take free() for a mistake beside an operator new that it sees as
// one.
void* operator new(std::size_t bytes) { return count_and_take(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return count_and_take(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

using namespace hetero;
using namespace hetero::test;

namespace {

using engine::Arena;
using engine::Exec;
using engine::Precision;
using engine::Range;
using engine::Value;

std::unique_ptr<Session> session_of(const std::shared_ptr<const model::Model>& model, Exec exec, Precision precision,
                                    int threads = 2, const std::optional<engine::KvCodecs>& codecs = {}) {
    engine::Options options;
    options.threads = threads;
    options.chunk_tokens = 16;
    options.precision = precision;
    options.exec = exec;
    options.sequences = 4;
    options.kv_codecs = codecs;
    return must(Session::create(model, options, 48));
}

struct Outcome {
    std::vector<std::vector<float>> logits;
    std::vector<std::byte> kv;
    bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const std::shared_ptr<const model::Model>& model, Exec exec, Precision precision,
                   const std::optional<engine::KvCodecs>& codecs = {}) {
    const auto session = session_of(model, exec, precision, 2, codecs);
    Outcome outcome;
    const auto take = [&](std::size_t, std::span<const float> logits) -> Status {
        outcome.logits.emplace_back(logits.begin(), logits.end());
        return {};
    };
    std::vector<TokenId> tokens;
    for (TokenId i = 0; i < 21; ++i) tokens.push_back((i * 37 + 11) % 200);
    must(session->prefill(tokens, engine::Logits::all,
                          [&](std::uint64_t position, std::span<const float> row) { return take(position, row); }));
    const auto other = must(session->fork(19));
    must(Session::decode_together(std::vector<Session::Step>{{session.get(), 7}, {other.get(), 9}}, take));
    take(0, must(session->decode(3)));
    for (std::uint32_t layer = 0; layer < model->program.kv.size(); ++layer) {
        kv::Layer exported = must(session->export_layer(layer));
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            const auto& bytes = exported.part(id).values.bytes;
            outcome.kv.insert(outcome.kv.end(), bytes.begin(), bytes.end());
        }
    }
    return outcome;
}

}  // namespace

TEST_CASE("graph and eager give the same bits, of every model") {
    const std::vector<std::string> names = all_tiny_models();
    REQUIRE(names.size() >= 12);
    for (const std::string& name : names) {
        CAPTURE(name);
        const auto model = tiny_model(name);
        for (const Precision precision : {Precision::fast, Precision::precise}) {
            CHECK(outcome_of(model, Exec::graph, precision) == outcome_of(model, Exec::eager, precision));
        }
    }
}

TEST_CASE("graph and eager give the same bits with codes in the cache") {
    const auto model = tiny_model("gguf/llama-q8_0.gguf");
    for (const char* name : {"int8", "int8-channel"}) {
        CAPTURE(std::string(name));
        const auto codecs = must(engine::resident_codecs(name));
        CHECK(outcome_of(model, Exec::graph, Precision::fast, codecs) ==
              outcome_of(model, Exec::eager, Precision::fast, codecs));
    }
}

#ifndef __SANITIZE_ADDRESS__
namespace {
// After two steps, each thread has its scratch memory. Enough others follow to close groups of 32 tokens.
void check_steps_take_no_memory(const std::shared_ptr<const model::Model>& model,
                                const std::optional<engine::KvCodecs>& codecs = {}) {
    const auto session = session_of(model, Exec::graph, Precision::fast, 1, codecs);
    prefill(*session, {1, 2, 3});
    const auto second = must(session->fork(3)), third = must(session->fork(3));
    const std::vector<Session::Step> steps = {{session.get(), 5}, {second.get(), 6}, {third.get(), 7}};
    float sum = 0;
    const Session::StepLogitsFn add = [&sum](std::size_t, std::span<const float> logits) -> Status {
        sum += logits[0];
        return {};
    };
    for (int i = 0; i < 2; ++i) must(Session::decode_together(steps, add));
    const std::size_t before = taken.load();
    for (int i = 0; i < 32; ++i) {
        if (!Session::decode_together(steps, add)) FAIL("a step failed");
    }
    for (TokenId i = 0; i < 8; ++i) {
        if (!session->decode(i)) FAIL("a step failed");
    }
    CHECK(taken.load() == before);
    CHECK(std::isfinite(sum));
}
}  // namespace

TEST_CASE("a decode step takes no memory") {
    for (const char* name : {"gguf/llama-q8_0.gguf", "gemma2/bf16", "mixtral/bf16", "deepseek_v2/bf16"}) {
        CAPTURE(std::string(name));
        check_steps_take_no_memory(tiny_model(name));
    }
}

TEST_CASE("a decode step takes no memory with codes in the cache") {
    const auto model = tiny_model("gguf/llama-q8_0.gguf");
    constexpr const char* int4 = "had:int4:token:g16:asym";
    for (const auto& [k, v] : {std::pair("int8", "int8"),
                               {int4, int4},
                               {"fp8_e4m3fn", "fp8_e4m3fn"},
                               {"int8:channel:g32:asym", "had:int8:token"},
                               {"int4:channel:g32:asym", int4}}) {
        CAPTURE(std::string(k));
        check_steps_take_no_memory(model, engine::KvCodecs{must(quant::parse_spec(k)), must(quant::parse_spec(v))});
    }
}
#endif

TEST_CASE("eager names the op whose value is not finite") {
    const auto session = [&](Exec exec) {
        auto damaged = std::make_shared<model::Model>(*tiny_model("llama/f32"));
        for (model::Op& op : damaged->program.ops) {
            auto* norm = std::get_if<model::Normalize>(&op);
            if (norm == nullptr) continue;
            norm->norm.weight.values[3] = std::numeric_limits<float>::quiet_NaN();
            break;
        }
        return session_of(damaged, exec, Precision::precise);
    };
    const std::vector<TokenId> tokens = {1, 2};
    const Status status = session(Exec::eager)->prefill(tokens, engine::Logits::none, {});
    REQUIRE_FALSE(status.has_value());
    CHECK(status.error().message.find("op 1, normalize: ") == 0);
    CHECK(status.error().message.find("[3] at position 0 is nan") != std::string::npos);
}

TEST_CASE("arrange: values that live together never overlap, others may") {
    const std::vector<Value> values = {
        {100, {{0, 2}, {6, 8}}}, {100, {{2, 6}}}, {64, {{1, 3}}}, {0, {{0, 8}}}, {1000, {{3, 4}}}};
    const auto overlap = [&](const Arena& arena, std::size_t a, std::size_t b) {
        return arena.offsets[a] < arena.offsets[b] + values[b].bytes &&
               arena.offsets[b] < arena.offsets[a] + values[a].bytes;
    };
    const Arena graph = engine::arrange(values, Exec::graph), eager = engine::arrange(values, Exec::eager);
    for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(graph.offsets[i] % 64 == 0);
        CHECK(graph.offsets[i] + values[i].bytes <= graph.bytes);
        for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(overlap(eager, i, j));
    }
    CHECK(overlap(graph, 0, 4));
    CHECK_FALSE(overlap(graph, 1, 2));
    CHECK_FALSE(overlap(graph, 0, 2));
    CHECK_FALSE(overlap(graph, 1, 4));
    CHECK(graph.bytes == 1024 + 128);
    CHECK(eager.bytes == 128 + 128 + 64 + 1024);
}

TEST_CASE("registers live from what fills them to their last reader") {
    const auto model = tiny_model("llama/f32");
    const model::Program& program = model->program;
    const auto lives = engine::lives_of(program);
    REQUIRE(lives.size() == program.registers.size());
    // The residual lives all the time; what is normalized is filled twice a layer.
    const auto residual = *engine::written_by(program.ops.front());
    CHECK(lives[residual] == std::vector<Range>{{0, program.ops.size()}});
    const auto normed = *engine::written_by(program.ops[1]);
    CHECK(lives[normed].size() == 2 * program.kv.size());
    CHECK(lives[normed].front().begin == 1);
    CHECK(lives[normed].front().end == 3);  // Q, K and V read it
}
