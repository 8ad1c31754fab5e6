#include <algorithm>

#include "common/progress.h"
#include "common/prompts.h"
#include "convert.h"
#include "engine/side_by_side.h"

namespace hetero::tool {
namespace {

constexpr std::uint32_t window_tokens = 1024;

Result<std::unique_ptr<engine::Session>> open_session(const LoadedModel& loaded, const ConvertOptions& options,
                                                      std::uint32_t window) {
    // K and V in f32: what differs is the weights alone.
    const engine::Options engine_options{static_cast<int>(options.threads), kernels::DType::f32, 64};
    return engine::Session::create(loaded.model, engine_options, window);
}

}  // namespace

Status check_conversion(Tool& tool, const ConvertOptions& options) {
    HETERO_TRY(const LoadedModel before, load_model({options.input, "cpu", options.threads}));
    HETERO_TRY(const LoadedModel after, load_model({options.output, "cpu", options.threads}));
    if (!before.tokenizer) return fail(Errc::bad_input, "--check: {} has no tokenizer", options.input);
    HETERO_CHECK(check_identity(after.identity, options.output, before.identity, options.input));
    HETERO_TRY(const std::string text, read_text(options.check));
    const std::vector<TokenId> tokens = before.tokenizer->encode(text, SpecialText::plain);
    if (auto status = check_vocabulary(tokens, before.identity); !status) {
        return fail_with(status.error(), options.check);
    }
    std::optional<TokenId> bos;
    if (options.bos == "on" || (options.bos == "auto" && before.tokenizer->adds_bos())) {
        bos = before.tokenizer->bos();
        if (!bos) return fail(Errc::bad_input, "--bos: {} has no BOS token", options.input);
    }
    if (tokens.size() + (bos ? 1 : 0) < 2) {
        return fail(Errc::bad_input, "{}: has {} tokens, nothing to score", options.check, tokens.size());
    }
    const std::uint32_t window = std::min(window_tokens, before.identity.context_length);
    HETERO_TRY(const auto a, open_session(before, options, window));
    HETERO_TRY(const auto b, open_session(after, options, window));
    engine::SideBySide compared;
    {
        Progress progress(tool, "check", tokens.size(), "tokens");
        auto result = engine::score_side_by_side(
            *a, *b, tokens, window, [&](std::uint64_t done) { progress.update(done); }, bos);
        if (!result) return fail_with(result.error(), options.check);
        compared = std::move(*result);
    }
    const double agreement = static_cast<double>(compared.top1_equal) / static_cast<double>(compared.compared);
    tool.report()["check"] = {{"file", options.check},
                              {"n_tokens", tokens.size()},
                              {"scored", compared.compared},
                              {"window_tokens", window},
                              {"perplexity_in", number(compared.a.perplexity())},
                              {"perplexity_out", number(compared.b.perplexity())},
                              {"kl_mean", number(compared.kl_mean)},
                              {"kl_max", number(compared.kl_max)},
                              {"max_abs_dlogit", number(compared.max_abs_dlogit)},
                              {"max_abs_dp", number(compared.max_abs_dp)},
                              {"top1_agreement", number(agreement)}};
    if (tool.json()) return {};
    return tool.print(fmt::format(
        "perplexity {:.4f} -> {:.4f} over {} tokens; mean KL {:.3g}, max |d logit| {:.3g}, top-1 agreement {:.2f} %\n",
        compared.a.perplexity(), compared.b.perplexity(), compared.compared, compared.kl_mean, compared.max_abs_dlogit,
        100 * agreement));
}

}  // namespace hetero::tool
