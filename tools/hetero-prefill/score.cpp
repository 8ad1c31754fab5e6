#include "engine/score.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "common/group.h"
#include "common/progress.h"
#include "prefill.h"

namespace hetero::tool {
namespace {

constexpr std::uint32_t kWindowTokens = 1024;

}  // namespace

Status run_score(Tool& tool, const PrefillOptions& options) {
    HETERO_CHECK(prepare_endpoints(tool, {}, {}, options.transfer, {{options.model.path, options.score}, {}}));
    HETERO_TRY(const LoadedModel loaded, load_model(options.model));
    if (!loaded.tokenizer) return fail(Errc::bad_input, "{} has no tokenizer", options.model.path);
    HETERO_TRY(const std::string text, read_text(options.score));
    const std::vector<TokenId> tokens =
        loaded.tokenizer->encode(text, options.prompt.special ? SpecialText::parse : SpecialText::plain);
    if (auto status = check_vocabulary(tokens, loaded.identity); !status) {
        return fail_with(status.error(), options.score);
    }
    std::optional<TokenId> bos;
    if (options.prompt.bos == "on" || (options.prompt.bos == "auto" && loaded.tokenizer->adds_bos())) {
        bos = loaded.tokenizer->bos();
        if (!bos) return fail(Errc::bad_input, "--bos: {} has no BOS token", options.model.path);
    }
    if (tokens.size() + (bos ? 1 : 0) < 2) {
        return fail(Errc::bad_input, "{}: has {} tokens, nothing to score", options.score, tokens.size());
    }

    HETERO_TRY(const engine::KvStorage storage, resident_storage(options.kv_dtype, nullptr));
    const std::uint32_t window = std::min(kWindowTokens, loaded.identity.context_length);
    engine::Options how = session_options(options.model, storage, options.chunk_tokens);
    HETERO_TRY(auto session, make_session(tool, options.model, loaded, how, window));

    const auto start = std::chrono::steady_clock::now();
    engine::Score score;
    {
        Progress progress(tool, "score", tokens.size(), "tokens");
        auto scored = engine::score(
            *session, tokens, window, [&](std::uint64_t done) { progress.update(done); }, bos);
        if (!scored) return fail_with(scored.error(), options.score);
        score = std::move(*scored);
    }
    const double seconds = seconds_since(start);

    Json& report = tool.report();
    report["file"] = options.score;
    report["n_tokens"] = tokens.size();
    report["scored"] = score.scored;
    report["window_tokens"] = window;
    report["nll_mean"] = number(score.nll_sum / static_cast<double>(score.scored));
    report["perplexity"] = number(score.perplexity());
    report["precision"] = options.model.precision_name();
    report["load_ms"] = number(loaded.load_ms);
    report["prefill_ms"] = number(seconds * 1e3);
    report["tokens_per_s"] = number(static_cast<double>(tokens.size()) / seconds);
    if (tool.json()) return {};
    return tool.print(
        fmt::format("perplexity {:.4f} over {} of {} tokens\n", score.perplexity(), score.scored, tokens.size()));
}

}  // namespace hetero::tool
