#include "engine/generate.h"

#include "support.h"

using namespace hetero;
using namespace hetero::test;
using engine::FinishReason;
using engine::GenerateOptions;
using engine::Generation;

namespace {

std::shared_ptr<const Tokenizer> tiny_tokenizer() {
    return must(Tokenizer::from_folder(testdata("golden/tiny/llama/f32")));
}

const std::vector<TokenId> prompt = {1, 70, 300, 42, 411, 99};

struct Outcome {
    Generation generation;
    std::vector<TokenId> tokens;  // in the cache
    std::string streamed;
};

Outcome run(Session& session, std::vector<TokenId> tokens, std::span<const float> logits, TokenId pending,
            const GenerateOptions& options) {
    Outcome out;
    out.generation = must(engine::generate(session, *tiny_tokenizer(), tokens, logits, pending, options,
                                           [&out](std::string_view text) -> Status {
                                               out.streamed += text;
                                               return {};
                                           }));
    out.tokens = tokens;
    CHECK(out.streamed == out.generation.text);
    CHECK(tokens.size() == session.position());
    return out;
}

Outcome fresh(const GenerateOptions& options, std::uint64_t capacity = 128) {
    const auto session = make_session(tiny_model(), capacity);
    const auto logits = prefill(*session, prompt);
    return run(*session, prompt, logits, -1, options);
}

GenerateOptions options_of(std::uint64_t max_tokens, double temperature = 0) {
    GenerateOptions options;
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    options.sampling.temperature = temperature;
    options.sampling.seed = 11;
    return options;
}

}  // namespace

TEST_CASE("greedy generation gives the golden tokens") {
    const Golden golden("golden/tiny/llama/f32/golden.safetensors");
    const auto ids = golden.get<std::int32_t>("p33.input_ids");
    const auto session = make_session(tiny_model(), 128, DType::f32);
    const auto logits = prefill(*session, ids);
    const Outcome out = run(*session, ids, logits, -1, options_of(24));
    CHECK(out.generation.token_ids == golden.get<std::int32_t>("p33.greedy_ids"));
    CHECK(out.generation.reason == FinishReason::length);
    CHECK(out.generation.pending_token == out.generation.token_ids.back());
    CHECK(out.tokens.size() == 33 + 23);
    CHECK(out.generation.itl_ms.size() == 23);
    CHECK(out.generation.text == tiny_tokenizer()->decode(out.generation.token_ids, true));
}

TEST_CASE("a run that stops and goes on gives the tokens of one long run, greedy and sampled") {
    for (const double temperature : {0.0, 0.8, 1.5}) {
        for (const double penalty : {1.0, 1.3}) {
            GenerateOptions options = options_of(30, temperature);
            options.sampling.repetition_penalty = penalty;
            const Outcome whole = fresh(options);
            for (const std::uint64_t first : {1U, 2U, 13U, 29U}) {
                CAPTURE(temperature);
                CAPTURE(first);
                options.max_tokens = first;
                const auto session = make_session(tiny_model(), 128);
                const auto logits = prefill(*session, prompt);
                const Outcome begun = run(*session, prompt, logits, -1, options);
                // Into another session, as from a file.
                const auto other = make_session(tiny_model(), 64);
                kv::Header header;
                header.identity = engine::identity_of(session->model(), Digest{});
                for (std::uint32_t layer = 0; layer < 3; ++layer) {
                    must(other->import_layer(header, layer, must(session->export_layer(layer)), session->position()));
                }
                options.max_tokens = 30 - first;
                const Outcome rest = run(*other, begun.tokens, {}, begun.generation.pending_token, options);
                std::vector<TokenId> joined = begun.generation.token_ids;
                joined.insert(joined.end(), rest.generation.token_ids.begin(), rest.generation.token_ids.end());
                CHECK(joined == whole.generation.token_ids);
                CHECK(begun.generation.text + rest.generation.text == whole.generation.text);
                CHECK(rest.tokens == whole.tokens);
            }
        }
    }
}

TEST_CASE("no tokens asked for: nothing is fed, and what was pending stays") {
    const auto session = make_session(tiny_model(), 32);
    const auto logits = prefill(*session, prompt);
    const Outcome out = run(*session, prompt, {}, 77, options_of(0));
    CHECK(out.generation.token_ids.empty());
    CHECK(out.generation.pending_token == 77);
    CHECK(session->position() == prompt.size());
    CHECK(out.generation.reason == FinishReason::length);
}

TEST_CASE("a full session ends the run with that reason") {
    const Outcome out = fresh(options_of(100), prompt.size() + 4);
    CHECK(out.generation.reason == FinishReason::context);
    CHECK(std::string(engine::finish_reason_name(out.generation.reason)) == "context full");
    CHECK(out.generation.token_ids.size() == 5);  // the last is chosen from the last position's logits
    CHECK(out.generation.pending_token == out.generation.token_ids.back());
    CHECK(out.tokens.size() == prompt.size() + 4);
    CHECK(fresh(options_of(5), prompt.size() + 4).generation.reason == FinishReason::length);
}

TEST_CASE("without logits the last position is computed again") {
    const auto session = make_session(tiny_model(), 128, DType::f32);
    prefill(*session, prompt);
    const Outcome out = run(*session, prompt, {}, -1, options_of(12));
    CHECK(out.generation.token_ids == fresh(options_of(12)).generation.token_ids);
    const auto empty = make_session(tiny_model(), 32);
    std::vector<TokenId> none;
    CHECK(error_of(engine::generate(*empty, *tiny_tokenizer(), none, {}, -1, options_of(1), {})).code == Errc::usage);
}

TEST_CASE("stop strings end the output, wherever the tokens are cut") {
    const Generation whole = fresh(options_of(30)).generation;
    const auto tokenizer = tiny_tokenizer();
    // Every stretch of 4 bytes of ASCII in the text as a stop string: those that span tokens are among them.
    int spanning = 0, tried = 0;
    for (std::size_t at = 0; at + 4 <= whole.text.size(); ++at) {
        const std::string stop = whole.text.substr(at, 4);
        if (std::any_of(stop.begin(), stop.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
            continue;
        ++tried;
        CAPTURE(stop);
        GenerateOptions options = options_of(30);
        options.stop = {"never seen", stop};
        const Generation out = fresh(options).generation;
        CHECK(out.reason == FinishReason::stop);
        CHECK(out.text == whole.text.substr(0, whole.text.find(stop)));
        CHECK(out.pending_token == out.token_ids.back());
        // The tokens are those up to the one that completed the stop string.
        const std::vector<TokenId> before(out.token_ids.begin(), out.token_ids.end() - 1);
        CHECK(tokenizer->decode(before, true).find(stop) == std::string::npos);
        CHECK(tokenizer->decode(out.token_ids, true).find(stop) != std::string::npos);
        if (tokenizer->piece(out.token_ids.back(), true).find(stop) == std::string::npos) ++spanning;
    }
    CHECK(tried > 0);
    CHECK(spanning > 0);
}

TEST_CASE("text that only began like a stop string is shown at the end") {
    const Generation whole = fresh(options_of(8)).generation;
    REQUIRE(whole.text.size() > 2);
    GenerateOptions options = options_of(8);
    options.stop = {whole.text.substr(whole.text.size() - 2) + "\x01 never"};
    const Generation out = fresh(options).generation;
    CHECK(out.text == whole.text);
    CHECK(out.reason == FinishReason::length);
}

TEST_CASE("an end-of-text token ends the run; it shows only where special tokens do") {
    // The logits of the first step are ours to choose: one says "stop".
    const auto session = make_session(tiny_model(), 64);
    prefill(*session, prompt);
    const auto tokenizer = tiny_tokenizer();
    REQUIRE_FALSE(tokenizer->eos().empty());
    const TokenId eos = tokenizer->eos().front();
    std::vector<float> logits(512, 0.0F);
    logits[static_cast<std::size_t>(eos)] = 5;
    GenerateOptions options = options_of(3);
    options.ignore_eos = false;
    Outcome out = run(*session, prompt, logits, -1, options);
    CHECK(out.generation.reason == FinishReason::eos);
    CHECK(out.generation.token_ids == std::vector<TokenId>{eos});
    CHECK(out.generation.text.empty());
    CHECK(out.generation.pending_token == eos);
    options.show_special = true;
    out = run(*session, prompt, logits, -1, options);
    CHECK(out.generation.text == tokenizer->piece(eos, false));
    CHECK_FALSE(out.generation.text.empty());
    options.ignore_eos = true;
    out = run(*session, prompt, logits, -1, options);
    CHECK(out.generation.token_ids.size() == 3);
    CHECK(out.generation.token_ids.front() == eos);
}

TEST_CASE("a run that had come to its end is not gone on with, unless end-of-text is ignored") {
    const auto session = make_session(tiny_model(), 64);
    const auto logits = prefill(*session, prompt);
    const TokenId eos = tiny_tokenizer()->eos().front();
    GenerateOptions options = options_of(3);
    options.ignore_eos = false;
    Outcome out = run(*session, prompt, logits, eos, options);
    CHECK(out.generation.reason == FinishReason::eos);
    CHECK(out.generation.token_ids.empty());
    CHECK(out.generation.pending_token == eos);
    CHECK(session->position() == prompt.size());
    options.ignore_eos = true;
    out = run(*session, prompt, logits, eos, options);
    CHECK(out.generation.token_ids.size() == 3);
}

TEST_CASE("errors of the caller and of the reader end the run") {
    const auto session = make_session(tiny_model(), 64);
    const auto logits = prefill(*session, prompt);
    const auto tokenizer = tiny_tokenizer();
    std::vector<TokenId> short_list = {1, 2};
    CHECK(error_of(engine::generate(*session, *tokenizer, short_list, logits, -1, options_of(1), {})).code ==
          Errc::usage);
    std::vector<TokenId> tokens = prompt;
    const std::vector<float> few(3);
    CHECK(has(error_of(engine::generate(*session, *tokenizer, tokens, few, -1, options_of(1), {})), "512"));
    GenerateOptions bad = options_of(1);
    bad.sampling.top_p = 2;
    CHECK(has(error_of(engine::generate(*session, *tokenizer, tokens, logits, -1, bad, {})), "top-p"));
    std::vector<float> nan = logits;
    nan[7] = std::numeric_limits<float>::quiet_NaN();
    CHECK(error_of(engine::generate(*session, *tokenizer, tokens, nan, -1, options_of(1), {})).code == Errc::bad_input);
    const auto closed = [](std::string_view) -> Status { return fail(Errc::peer, "the reader is gone"); };
    CHECK(error_of(engine::generate(*session, *tokenizer, tokens, logits, -1, options_of(20), closed)).code ==
          Errc::peer);
}
