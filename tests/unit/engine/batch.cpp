// Several sequences decoded together: each gets the bits that it gets alone.
#include <algorithm>
#include <random>

#include "support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

using engine::Precision;

constexpr std::uint64_t capacity = 160;
constexpr std::size_t n_steps = 5;

std::vector<TokenId> prompt_of(std::size_t sequence) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < 3 + sequence * 9 % 100; ++i) {
        tokens.push_back(static_cast<TokenId>((i * 37 + sequence * 101 + 11) % 500));
    }
    return tokens;
}

TokenId token_of(std::size_t sequence, std::size_t step) {
    return static_cast<TokenId>((sequence * 53 + step * 7 + 3) % 500);
}

std::unique_ptr<Session> root_of(const std::string& name, std::uint32_t sequences, int threads,
                                 Precision precision = Precision::fast) {
    engine::Options options;
    options.threads = threads;
    options.chunk_tokens = 32;
    options.precision = precision;
    options.sequences = sequences;
    return must(Session::create(tiny_model(name), options, capacity));
}

using Logits = std::vector<std::vector<float>>;  // [step]

Logits alone(const std::string& name, std::size_t sequence, Precision precision) {
    const auto session = root_of(name, 1, 1, precision);
    prefill(*session, prompt_of(sequence));
    Logits logits;
    for (std::size_t step = 0; step < n_steps; ++step) {
        const auto row = must(session->decode(token_of(sequence, step)));
        logits.emplace_back(row.begin(), row.end());
    }
    return logits;
}

// Each step takes the sequences in another order.
std::vector<Logits> together(const std::string& name, std::size_t n, int threads, Precision precision) {
    const auto root = root_of(name, static_cast<std::uint32_t>(n), threads, precision);
    std::vector<std::unique_ptr<Session>> sessions;
    for (std::size_t i = 0; i < n; ++i) {
        sessions.push_back(must(root->fork(0)));
        prefill(*sessions.back(), prompt_of(i));
    }
    std::vector<std::size_t> order(n);
    for (std::size_t i = 0; i < n; ++i) order[i] = i;
    std::mt19937 random(static_cast<unsigned>(n));
    std::vector<Logits> logits(n);
    for (std::size_t step = 0; step < n_steps; ++step) {
        std::shuffle(order.begin(), order.end(), random);
        std::vector<Session::Step> steps;
        for (const std::size_t i : order) steps.push_back({sessions[i].get(), token_of(i, step)});
        std::size_t expected = 0;
        must(Session::decode_together(steps, [&](std::size_t index, std::span<const float> row) -> Status {
            CHECK(index == expected++);
            logits[order[index]].emplace_back(row.begin(), row.end());
            return {};
        }));
        CHECK(expected == n);
    }
    return logits;
}

}  // namespace

TEST_CASE("a batch of 1, 2, 7 or 16 sequences in any order gives each the bits that it has alone") {
    struct Case {
        const char* name;
        Precision precision;
    };
    for (const auto& [name, precision] :
         {Case{"gguf/llama-q8_0.gguf", Precision::fast}, Case{"llama/f32", Precision::precise},
          Case{"gemma2/bf16", Precision::fast}, Case{"mixtral/bf16", Precision::fast},
          Case{"deepseek_v2/bf16", Precision::fast}, Case{"gpt_neox/bf16", Precision::fast}}) {
        CAPTURE(std::string(name));
        std::vector<Logits> expected;
        for (std::size_t i = 0; i < 16; ++i) expected.push_back(alone(name, i, precision));
        for (const std::size_t n : {1U, 2U, 7U, 16U}) {
            CAPTURE(n);
            const auto found = together(name, n, n == 7 ? 3 : 2, precision);
            for (std::size_t i = 0; i < n; ++i) CHECK(found[i] == expected[i]);
        }
    }
}

TEST_CASE("sequences join and leave between steps, and give their pages back") {
    const auto root = root_of("gguf/llama-q8_0.gguf", 3, 2);
    const Logits first = alone("gguf/llama-q8_0.gguf", 12, Precision::fast);
    const Logits second = alone("gguf/llama-q8_0.gguf", 13, Precision::fast);
    prefill(*root, prompt_of(12));
    Logits found, late;
    const auto step = [&](std::vector<Session::Step> steps) {
        must(Session::decode_together(steps, [&](std::size_t index, std::span<const float> row) -> Status {
            (index == 0 ? found : late).emplace_back(row.begin(), row.end());
            return {};
        }));
    };
    step({{root.get(), token_of(12, 0)}});
    for (int round = 0; round < 20; ++round) {  // more than there are pages for, had they not come back
        const auto guest = must(root->fork(0));
        prefill(*guest, prompt_of(13));
    }
    {
        const auto guest = must(root->fork(0));
        prefill(*guest, prompt_of(13));
        for (std::size_t i = 1; i < 3; ++i) step({{root.get(), token_of(12, i)}, {guest.get(), token_of(13, i - 1)}});
    }
    for (std::size_t i = 3; i < n_steps; ++i) step({{root.get(), token_of(12, i)}});
    CHECK(found == first);
    CHECK(late == Logits(second.begin(), second.begin() + 2));
}

TEST_CASE("a fork continues what it begins with, and neither disturbs the other") {
    for (const char* name : {"gguf/llama-q8_0.gguf", "gemma3_text/bf16", "deepseek_v2/bf16"}) {
        CAPTURE(std::string(name));
        const auto root = root_of(name, 4, 2);
        const std::vector<TokenId> prompt = prompt_of(8);  // 75 tokens: a whole page and a part
        prefill(*root, prompt);
        const auto fork = must(root->fork(70));
        CHECK(fork->position() == 70);
        const auto straight = root_of(name, 1, 1);
        std::vector<TokenId> other(prompt.begin(), prompt.begin() + 70);
        other.insert(other.end(), {4, 5, 6});
        const auto expected = prefill(*straight, other);
        CHECK(prefill(*fork, {4, 5, 6}) == expected);
        const auto again = root_of(name, 1, 1);
        prefill(*again, prompt);
        const auto want = must(again->decode(9));
        const auto got = must(root->decode(9));
        CHECK(std::equal(want.begin(), want.end(), got.begin(), got.end()));
    }
}

TEST_CASE("steps that cannot be made are refused, and nothing advances") {
    const auto root = root_of("gguf/llama-q8_0.gguf", 2, 1);
    prefill(*root, {1, 2, 3});
    const auto other = must(root->fork(3)), third = must(root->fork(3));
    const auto stranger = root_of("gguf/llama-q8_0.gguf", 2, 1);
    const auto nothing = [](std::size_t, std::span<const float>) -> Status { return {}; };
    const auto refused = [&](std::vector<Session::Step> steps, std::string_view why) {
        const Status status = Session::decode_together(steps, nothing);
        REQUIRE_FALSE(status.has_value());
        CHECK_MESSAGE(status.error().message.find(why) != std::string::npos, status.error().message);
        CHECK(status.error().code == Errc::usage);
    };
    refused({{root.get(), 1}, {root.get(), 1}}, "twice");
    refused({{root.get(), 1}, {stranger.get(), 1}}, "different");
    refused({{root.get(), 1}, {other.get(), 1}, {third.get(), 1}}, "3 sequences");
    refused({{root.get(), 1}, {other.get(), 100000}}, "vocabulary");
    const Status stopped =
        Session::decode_together(std::vector<Session::Step>{{root.get(), 1}, {other.get(), 1}},
                                 [](std::size_t index, std::span<const float>) -> Status {
                                     return index == 1 ? Status(fail(Errc::bad_input, "stop")) : Status{};
                                 });
    CHECK_FALSE(stopped.has_value());
    CHECK(root->position() == 3);
    CHECK(other->position() == 3);
    CHECK_FALSE(root->fork(4).has_value());
    engine::Options none;
    none.sequences = 0;
    CHECK_FALSE(Session::create(tiny_model(), none, 8).has_value());
}
