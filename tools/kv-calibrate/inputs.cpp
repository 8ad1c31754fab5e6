#include <algorithm>
#include <filesystem>

#include "base/printable.h"
#include "base/units.h"
#include "calibrate.h"
#include "common/prompts.h"

namespace hetero::tool {
namespace {

// "+s4" or "+w32" off the end of `text`.
Status take_kept(std::string_view& text, std::string_view whole, std::uint32_t& sinks, std::uint32_t& window) {
    while (true) {
        const std::size_t plus = text.rfind('+');
        if (plus == std::string_view::npos) return {};
        const std::string_view word = text.substr(plus + 1);
        const auto number = word.empty() ? fail(Errc::usage, "") : parse_integer(word.substr(1));
        if (!number || *number < 0 || *number > 4096 || (word[0] != 's' && word[0] != 'w')) {
            return fail(Errc::usage, "'{}': '+{}' is not +sN (sinks) or +wN (window), N 0 to 4096", printable(whole),
                        printable(word));
        }
        (word[0] == 's' ? sinks : window) = static_cast<std::uint32_t>(*number);
        text = text.substr(0, plus);
    }
}

}  // namespace

Result<Format> parse_format(std::string_view text, const kv::Identity& identity) {
    std::string_view rest = text;
    std::uint32_t sinks = 0, window = 0;
    quant::Spec k, v;
    const std::string_view bare = rest.substr(0, rest.find('+'));
    const auto preset = quant::find_preset(bare);
    if (preset) sinks = preset->sinks;
    HETERO_CHECK(take_kept(rest, text, sinks, window));
    if (preset) {
        HETERO_TRY(k, quant::parse_spec(preset->k));
        HETERO_TRY(v, quant::parse_spec(preset->v));
    } else {
        const std::size_t slash = rest.find('/');
        HETERO_TRY(k, quant::parse_spec(rest.substr(0, slash)));
        HETERO_TRY(v, quant::parse_spec(slash == std::string_view::npos ? rest : rest.substr(slash + 1)));
    }
    HETERO_CHECK(quant::find_codec(k.codec)->check(k.params, identity.head_dim_k));
    HETERO_CHECK(quant::find_codec(v.codec)->check(v.params, identity.head_dim_v));
    return Format{std::string(text),
                  calib::uniform(identity.n_layers, kv::scheme_from_spec(k, sinks, window, kernels::DType::f16),
                                 kv::scheme_from_spec(v, sinks, window, kernels::DType::f16))};
}

Result<std::vector<calib::Text>> read_texts(const CalibrateOptions& options, const std::vector<std::string>& files,
                                            const LoadedModel& loaded) {
    std::vector<calib::Text> texts;
    for (const std::string& file : files) {
        const bool ids = file.starts_with('@');
        calib::Text text;
        text.name = to_valid_utf8(std::filesystem::path(ids ? file.substr(1) : file).stem().string());
        if (ids) {
            HETERO_TRY(text.tokens, parse_token_list(file));
        } else {
            if (!loaded.tokenizer) {
                return fail(Errc::bad_input, "{} has no tokenizer: give texts as token ids, @FILE", options.model.path);
            }
            HETERO_TRY(const std::string content, read_text(file));
            text.tokens = loaded.tokenizer->encode(content, SpecialText::plain);
            if (const auto bos = loaded.tokenizer->bos(); bos && loaded.tokenizer->adds_bos()) {
                text.tokens.insert(text.tokens.begin(), *bos);
            }
        }
        if (auto status = check_vocabulary(text.tokens, loaded.identity); !status) {
            return fail_with(status.error(), file);
        }
        if (text.tokens.size() <= options.steps) {
            return fail(Errc::bad_input, "{}: has {} tokens; {} steps need a prompt before them", file,
                        text.tokens.size(), options.steps);
        }
        text.tokens.resize(std::min<std::size_t>(text.tokens.size(), options.prompt_tokens + options.steps));
        text.prompt_tokens = text.tokens.size() - options.steps;
        texts.push_back(std::move(text));
    }
    return texts;
}

}  // namespace hetero::tool
