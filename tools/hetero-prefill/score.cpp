#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/progress.h"
#include "prefill.h"

namespace hetero::tool {
namespace {

constexpr std::uint64_t kWindowTokens = 1024;

// -log softmax(logits)[token], in nats.
double negative_log_likelihood(std::span<const float> logits, TokenId token) {
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
    return top + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

}  // namespace

Status run_score(Tool& tool, const PrefillOptions& options) {
    HETERO_TRY(const LoadedModel loaded, load_model(options.model));
    if (!loaded.tokenizer) return fail(Errc::bad_input, "{} has no tokenizer", options.model.path);
    HETERO_TRY(const std::string text, read_text(options.score));
    const std::vector<TokenId> tokens =
        loaded.tokenizer->encode(text, options.prompt.special ? SpecialText::parse : SpecialText::plain);
    const bool with_bos = options.prompt.bos == "on" || (options.prompt.bos == "auto" && loaded.tokenizer->adds_bos());
    if (with_bos && !loaded.tokenizer->bos())
        return fail(Errc::bad_input, "--bos: {} has no BOS token", options.model.path);

    HETERO_TRY(const kernels::DType dtype, resident_dtype(options.kv_dtype, nullptr));
    const std::uint64_t window = std::min<std::uint64_t>(kWindowTokens, loaded.identity.context_length);
    const engine::Options engine_options{static_cast<int>(options.model.threads), dtype,
                                         static_cast<std::uint32_t>(options.chunk_tokens)};
    HETERO_TRY(auto session, engine::Session::create(loaded.model, engine_options, window));

    Progress progress(tool, "score", tokens.size(), "tokens");
    const auto start = std::chrono::steady_clock::now();
    double nll = 0;
    std::uint64_t scored = 0;
    const std::uint64_t step = with_bos ? window - 1 : window;
    for (std::uint64_t begin = 0; begin < tokens.size(); begin += step) {
        const std::uint64_t end = std::min<std::uint64_t>(begin + step, tokens.size());
        std::vector<TokenId> part(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                  tokens.begin() + static_cast<std::ptrdiff_t>(end));
        if (with_bos) part.insert(part.begin(), *loaded.tokenizer->bos());
        if (part.size() < 2) break;
        session->truncate(0);
        const auto score = [&](std::uint64_t position, std::span<const float> logits) -> Status {
            if (position + 1 >= part.size()) return {};
            nll += negative_log_likelihood(logits, part[position + 1]);
            ++scored;
            return {};
        };
        HETERO_CHECK(session->prefill(part, engine::Logits::all, score,
                                      [&](std::uint64_t done) { progress.update(begin + done); }));
    }
    if (scored == 0) return fail(Errc::bad_input, "{}: has {} tokens, nothing to score", options.score, tokens.size());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double mean = nll / static_cast<double>(scored);
    if (!std::isfinite(mean)) return fail(Errc::bad_input, "{}: the log likelihood is not finite", options.score);

    Json& report = tool.report();
    report["file"] = options.score;
    report["n_tokens"] = tokens.size();
    report["scored"] = scored;
    report["window_tokens"] = window;
    report["nll_mean"] = number(mean);
    report["perplexity"] = number(std::exp(mean));
    report["load_ms"] = number(loaded.load_ms);
    report["prefill_ms"] = number(seconds * 1e3);
    report["tokens_per_s"] = number(static_cast<double>(tokens.size()) / seconds);
    if (tool.json()) return {};
    return tool.print(fmt::format("perplexity {:.4f} over {} of {} tokens\n", std::exp(mean), scored, tokens.size()));
}

}  // namespace hetero::tool
