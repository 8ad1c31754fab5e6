#include <algorithm>

#include "common/progress.h"
#include "common/prompts.h"
#include "convert.h"

namespace hetero::tool {
namespace {

constexpr std::uint32_t max_window_tokens = 1024;

Result<std::unique_ptr<engine::Session>> open_session(const LoadedModel& loaded, const ConvertOptions& options,
                                                      std::uint32_t window) {
    // K and V in f32: what differs is the weights alone.
    const engine::Options engine_options{static_cast<int>(options.threads), kernels::DType::f32, 64};
    return engine::Session::create(loaded.model, engine_options, window);
}

}  // namespace

Result<ConversionCheck> ConversionCheck::prepare(const ConvertOptions& options) {
    ConversionCheck check;
    HETERO_TRY(check.source_, load_model({.path = options.input, .device = {"cpu"}, .threads = options.threads}));
    if (!check.source_.tokenizer) return fail(Errc::bad_input, "--check: {} has no tokenizer", options.input);
    const Tokenizer& tokenizer = *check.source_.tokenizer;
    HETERO_TRY(const std::string text, read_text(options.check));
    check.tokens_ = tokenizer.encode(text, SpecialText::plain);
    if (auto status = check_vocabulary(check.tokens_, check.source_.identity); !status) {
        return fail_with(status.error(), options.check);
    }
    if (options.bos == "on" || (options.bos == "auto" && tokenizer.adds_bos())) {
        check.bos_ = tokenizer.bos();
        if (!check.bos_) return fail(Errc::bad_input, "--bos: {} has no BOS token", options.input);
    }
    if (check.tokens_.size() + (check.bos_ ? 1 : 0) < 2) {
        return fail(Errc::bad_input, "{}: has {} tokens, nothing to score", options.check, check.tokens_.size());
    }
    check.window_tokens_ = std::min(max_window_tokens, check.source_.identity.context_length);
    return check;
}

Status ConversionCheck::run(const Tool& tool, const ConvertOptions& options, const std::string& converted) {
    HETERO_TRY(const LoadedModel after, load_model({.path = converted, .device = {"cpu"}, .threads = options.threads}));
    if (const auto mismatches = kv::compare(source_.identity, after.identity); !mismatches.empty()) {
        return fail(Errc::internal, "{} is another model than {}: {}", options.output, options.input,
                    kv::to_text(mismatches, "the input", "the output"));
    }
    HETERO_TRY(const auto a, open_session(source_, options, window_tokens_));
    HETERO_TRY(const auto b, open_session(after, options, window_tokens_));
    Progress progress(tool, "check", tokens_.size(), "tokens");
    auto result = engine::score_side_by_side(
        *a, *b, tokens_, window_tokens_, [&](std::uint64_t done) { progress.update(done); }, bos_);
    if (!result) return fail_with(result.error(), options.check);
    result_ = std::move(*result);
    return {};
}

Status ConversionCheck::report(Tool& tool, const ConvertOptions& options) const {
    const double agreement = static_cast<double>(result_.top1_equal) / static_cast<double>(result_.compared);
    tool.report()["check"] = {{"file", options.check},
                              {"n_tokens", tokens_.size()},
                              {"scored", result_.compared},
                              {"window_tokens", window_tokens_},
                              {"perplexity_in", number(result_.a.perplexity())},
                              {"perplexity_out", number(result_.b.perplexity())},
                              {"kl_mean", number(result_.kl_mean)},
                              {"kl_max", number(result_.kl_max)},
                              {"max_abs_dlogit", number(result_.max_abs_dlogit)},
                              {"max_abs_dp", number(result_.max_abs_dp)},
                              {"top1_agreement", number(agreement)}};
    if (tool.json()) return {};
    return tool.print(fmt::format(
        "perplexity {:.4f} -> {:.4f} over {} tokens; mean KL {:.3g}, max |d logit| {:.3g}, top-1 agreement {:.2f} %\n",
        result_.a.perplexity(), result_.b.perplexity(), result_.compared, result_.kl_mean, result_.max_abs_dlogit,
        100 * agreement));
}

}  // namespace hetero::tool
