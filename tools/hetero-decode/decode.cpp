#include "decode.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/statistics.h"
#include "common/kv_session.h"

namespace hetero::tool {
namespace {

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

std::string to_hex(std::string_view bytes) {
    std::string hex;
    for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return hex;
}

Json describe(const std::string& id, std::size_t n_prompt, const engine::Generation& generation, double import_ms) {
    const std::string text = to_valid_utf8(generation.text);
    Json entry = {{"id", id},
                  {"n_prompt_tokens", n_prompt},
                  {"n_tokens", generation.token_ids.size()},
                  {"token_ids", generation.token_ids},
                  {"text", text}};
    if (text != generation.text) entry["bytes_hex"] = to_hex(generation.text);
    entry["finish_reason"] = engine::finish_reason_name(generation.reason);
    entry["ttft_ms"] = generation.token_ids.empty() ? Json(nullptr) : number(import_ms + generation.ttft_ms);
    Json& itl = entry["itl_ms"] = Json::array();
    double total_ms = 0;
    for (const double value : generation.itl_ms) {
        itl.push_back(number(value));
        total_ms += value;
    }
    entry["itl_p50_ms"] = number(percentile(generation.itl_ms, 50));
    entry["itl_p99_ms"] = number(percentile(generation.itl_ms, 99));
    entry["tokens_per_s"] =
        total_ms > 0 ? number(static_cast<double>(generation.itl_ms.size()) / total_ms * 1e3) : Json(nullptr);
    return entry;
}

class DecodeRun {
public:
    DecodeRun(Tool& tool, const DecodeOptions& options, const LoadedModel& loaded, kv::State state)
        : tool_(tool), options_(options), loaded_(loaded), state_(std::move(state)) {}

    Status run() {
        HETERO_TRY(const kernels::DType dtype, resident_dtype(options_.kv_dtype, &state_.header));
        std::uint64_t capacity = 1;
        HETERO_CHECK(read_prompt());
        for (const kv::Sequence& sequence : state_.header.sequences) {
            const std::uint64_t longest = std::max<std::uint64_t>(sequence.tokens.size(), prompt_.size());
            capacity = std::max(capacity, longest + options_.generate.max_tokens + 1);
        }
        capacity = std::min<std::uint64_t>(capacity, loaded_.identity.context_length);
        const engine::Options engine_options{static_cast<int>(options_.model.threads), dtype,
                                             static_cast<std::uint32_t>(options_.chunk_tokens)};
        HETERO_TRY(session_, engine::Session::create(loaded_.model, engine_options, capacity));
        continued_.header = make_header(loaded_.identity, dtype);
        continued_.header.provenance = state_.header.provenance;
        continued_.header.provenance.push_back(tool_.provenance(fmt::format(
            "decode n={} kv_dtype={}", options_.generate.max_tokens, continued_.header.k_schemes.front().codec)));
        for (std::size_t i = 0; i < state_.header.sequences.size(); ++i) HETERO_CHECK(run_sequence(i));
        return {};
    }

    [[nodiscard]] const kv::State& continued() const noexcept { return continued_; }

private:
    // The prompt is read the way the state's own was, so that equal text gives equal tokens.
    Status read_prompt() {
        if (!has_prompt(options_.prompt)) return {};
        PromptOptions how = options_.prompt;
        how.special = how.special || state_.header.sequences.front().special_parsed;
        HETERO_TRY(auto prompts, read_prompts(how, loaded_));
        prompt_ = std::move(prompts.front().tokens);
        return check_tokens(prompt_, loaded_.identity);
    }

    Status run_sequence(std::size_t index) {
        const kv::Sequence& held = state_.header.sequences[index];
        const bool same_prompt = prompt_.empty() || prompt_ == held.tokens;
        const Clock::time_point start = Clock::now();
        HETERO_CHECK(import_sequence(*session_, state_, index));
        state_.layers[index] = {};
        std::vector<TokenId> tokens = prompt_.empty() ? held.tokens : prompt_;
        const TokenId pending = same_prompt ? held.pending_token : -1;
        std::vector<float> logits = held.logits;
        if (pending < 0) {
            auto extended = extend_to(*session_, held.tokens, held.logits, tokens);
            if (!extended) return fail_with(extended.error(), options_.input);
            logits = std::move(*extended);
        }
        const double import_ms = milliseconds(Clock::now() - start);
        const std::size_t n_prompt = tokens.size();
        const bool stream = !tool_.json() && options_.output != "-";
        HETERO_TRY(
            const engine::Generation generation,
            engine::generate(*session_, *loaded_.tokenizer, tokens, logits, pending, options_.generate,
                             [&](std::string_view text) -> Status { return stream ? tool_.print(text) : Status{}; }));
        if (stream && isatty(STDOUT_FILENO) == 1) HETERO_CHECK(tool_.print("\n"));
        tool_.report()["sequences"].push_back(describe(held.id, n_prompt, generation, import_ms));
        tool_.note("sequence {}: {} tokens, {}; TTFT {:.1f} ms, ITL p50 {:.2f} ms, p99 {:.2f} ms", held.id,
                   generation.token_ids.size(), engine::finish_reason_name(generation.reason),
                   import_ms + generation.ttft_ms, percentile(generation.itl_ms, 50),
                   percentile(generation.itl_ms, 99));
        if (!options_.output.empty()) HETERO_CHECK(keep(held, std::move(tokens), generation, std::move(logits)));
        return {};
    }

    // What the session holds now, and the token that was chosen but not fed.
    Status keep(const kv::Sequence& held, std::vector<TokenId> tokens, const engine::Generation& generation,
                std::vector<float> logits) {
        kv::Sequence sequence;
        sequence.id = held.id;
        sequence.special_parsed = held.special_parsed;
        sequence.pending_token = generation.pending_token;
        tokens.resize(session_->position());
        sequence.tokens = std::move(tokens);
        if (generation.token_ids.empty()) {
            sequence.pending_token = held.pending_token;
            sequence.logits = std::move(logits);
        }
        continued_.header.sequences.push_back(std::move(sequence));
        std::vector<kv::Layer>& layers = continued_.layers.emplace_back();
        for (std::uint32_t i = 0; i < loaded_.identity.n_layers; ++i) {
            HETERO_TRY(auto layer, session_->export_layer(i));
            layers.push_back(std::move(layer));
        }
        return {};
    }

    Tool& tool_;
    const DecodeOptions& options_;
    const LoadedModel& loaded_;
    kv::State state_, continued_;
    std::vector<TokenId> prompt_;  // empty: none given
    std::unique_ptr<engine::Session> session_;
};

// Text of several sequences on one stdout could not be told apart.
Status check_choice(const Tool& tool, const DecodeOptions& options, const kv::Header& header) {
    const std::size_t chosen = options.sequences.empty() ? header.sequences.size() : options.sequences.size();
    if (chosen == 1) return {};
    if (has_prompt(options.prompt)) {
        return fail(Errc::usage, "a prompt belongs to one sequence: choose it with --sequence (the state has {})",
                    header.sequences.size());
    }
    if (tool.json() || !options.output.empty()) return {};
    return fail(Errc::usage, "the state has {} sequences ({}, ...): choose one with --sequence, or use --json",
                header.sequences.size(), header.sequences.front().id);
}

}  // namespace

Status run_decode(Tool& tool, const DecodeOptions& options) {
    HETERO_TRY(const Endpoints endpoints, prepare_endpoints(tool, {options.input}, {options.output}, options.transfer));
    HETERO_TRY(const LoadedModel loaded, load_model(options.model));
    if (!loaded.tokenizer) return fail(Errc::bad_input, "{} has no tokenizer", options.model.path);
    const Clock::time_point start = Clock::now();
    transport::TransportOptions transfer = options.transfer.transport();
    transfer.expected_identity = loaded.identity;
    HETERO_TRY(auto source, transport::open_source(endpoints.inputs.front(), transfer));
    const kv::Identity& identity = source->header().identity;
    HETERO_CHECK(check_identity(loaded.identity, options.model.path, identity, source->name()));
    HETERO_CHECK(check_choice(tool, options, source->header()));
    if (identity.weights_digest != loaded.identity.weights_digest) {
        tool.note("the state was made with another precision of these weights");
    }
    HETERO_TRY(auto state, read_sequences(*source, options.sequences));

    Json& report = tool.report();
    report["model"] = loaded.identity.model_id;
    report["load_ms"] = number(loaded.load_ms);
    report["read_ms"] = number(milliseconds(Clock::now() - start));
    report["kv_bytes"] = source->header().payload_bytes();
    DecodeRun run(tool, options, loaded, std::move(state));
    HETERO_CHECK(run.run());
    if (endpoints.outputs.empty()) return {};
    HETERO_TRY(auto sink, transport::open_sink(endpoints.outputs.front(), options.transfer.transport()));
    auto written = kv::write_all(run.continued(), *sink);
    if (!written) sink->abort(written.error());
    return written;
}

}  // namespace hetero::tool
