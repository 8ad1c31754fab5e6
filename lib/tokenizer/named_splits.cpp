// Sources: the patterns stand in the models' tokenizer.json files; which name stands for which is defined by
// llama_vocab::impl::load() in https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp
#include "tokenizer/named_splits.h"

#include <array>

namespace hetero::tokenizer {
namespace {

using Patterns = std::span<const std::string_view>;

constexpr std::array<std::string_view, 1> kGpt2{kGpt2Pattern};

constexpr std::array<std::string_view, 2> kDigitsGpt2{R"re(\p{N})re", kGpt2Pattern};

constexpr std::array<std::string_view, 1> kLlama3{
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};

constexpr std::array<std::string_view, 1> kQwen2{
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};

constexpr std::array<std::string_view, 1> kQwen35{
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};

constexpr std::array<std::string_view, 1> kTekken{
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};

constexpr std::array<std::string_view, 1> kGpt4o{
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};

constexpr std::array<std::string_view, 6> kDeepseekLlm{
    R"re([\r\n])re",
    // Spelled as bytes: characters that Unicode normalisation would change.
    R"re(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-)re"
    "\xE1\xBD\xBD"
    R"re(ᾀ-ᾴᾶ-ᾼ)re"
    "\xE1\xBE\xBE"
    R"re(ῂ-ῄῆ-ῌῐ-)re"
    "\xE1\xBF\x93"
    R"re(ῖ-)re"
    "\xE1\xBF\x9B"
    R"re(ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ)re"
    "\xE2\x84\xA6"
    R"re(ℨ)re"
    "\xE2\x84\xAA"
    R"re(-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)re",
    R"re(\s?[!-/:-~！-／：-～‘-‟　-。]+)re", R"re(\s+$)re", R"re([一-龥ࠀ-一가-퟿]+)re", R"re(\p{N}+)re"};

constexpr std::array<std::string_view, 5> kDeepseekCoder{R"re([\r\n])re", R"re(\s?\p{L}+)re", R"re(\s?\p{P}+)re",
                                                         R"re([一-龥ࠀ-一가-퟿]+)re", R"re(\p{N})re"};

constexpr std::array<std::string_view, 3> kDeepseekV3{
    R"re(\p{N}{1,3})re", R"re([一-龥぀-ゟ゠-ヿ]+)re",
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};

// What llama.cpp uses for models that were converted without a name of their own.
constexpr std::array<std::string_view, 4> kDefault{R"re([\p{P}\$\+<=>\^~\|]+)re", kGpt2Pattern, R"re(\p{N}+)re",
                                                   R"re([0-9][0-9][0-9])re"};

// clang-format off
constexpr NamedSplit kNamed[] = {
    // name               patterns          nfc    ignore adds_bos
    {"default",           kDefault,         false, false, false},
    {"gpt-2",             kGpt2,            false, false, false},
    {"phi-2",             kGpt2,            false, false, false},
    {"mpt",               kGpt2,            false, false, false},
    {"olmo",              kGpt2,            true,  false, false},
    {"smollm",            kDigitsGpt2,      false, false, false},
    {"starcoder",         kDigitsGpt2,      false, false, false},
    {"refact",            kDigitsGpt2,      false, false, false},
    {"command-r",         kDigitsGpt2,      false, false, false},
    {"codeshell",         kDigitsGpt2,      false, false, false},
    {"llama-bpe",         kLlama3,          false, true,  true},
    {"llama3",            kLlama3,          false, true,  true},
    {"llama-v3",          kLlama3,          false, true,  true},
    {"falcon3",           kLlama3,          false, true,  true},
    {"dbrx",              kLlama3,          false, false, false},
    {"smaug-bpe",         kLlama3,          false, false, false},
    {"glm4",              kLlama3,          false, false, false},
    {"chatglm-bpe",       kLlama3,          false, false, false},
    {"qwen2",             kQwen2,           true,  false, false},
    {"deepseek-r1-qwen",  kQwen2,           false, false, false},
    {"qwen35",            kQwen35,          true,  false, false},
    {"tekken",            kTekken,          false, true,  true},
    {"gpt-4o",            kGpt4o,           false, false, false},
    {"llama4",            kGpt4o,           false, false, false},
    {"deepseek-llm",      kDeepseekLlm,     false, false, false},
    {"deepseek-coder",    kDeepseekCoder,   false, false, false},
    {"deepseek-v3",       kDeepseekV3,      false, false, false},
};
// clang-format on

}  // namespace

std::span<const NamedSplit> named_splits() noexcept { return kNamed; }

Result<const NamedSplit*> find_named_split(std::string_view name) {
    std::string known;
    for (const NamedSplit& split : kNamed) {
        if (split.name == name) return &split;
        known += known.empty() ? "" : ", ";
        known += split.name;
    }
    return fail(Errc::bad_input, "tokenizer.ggml.pre is '{}', a pre-tokenizer that is not implemented; known are: {}",
                name, known);
}

Result<std::vector<WordRule>> rules_of(const NamedSplit& split) {
    std::vector<WordRule> rules;
    for (const std::string_view expression : split.patterns) {
        HETERO_TRY(Pattern pattern, Pattern::regular(expression, Regex::Trust::full));
        rules.emplace_back(SplitRule{std::move(pattern), SplitBehavior::isolated, false});
    }
    return rules;
}

const NamedSplit* name_of(const std::vector<WordRule>& rules, bool nfc, bool ignore_merges) {
    for (const NamedSplit& split : kNamed) {
        if (split.nfc != nfc || split.ignore_merges != ignore_merges || split.patterns.size() != rules.size()) continue;
        bool same = true;
        for (std::size_t i = 0; same && i < rules.size(); ++i) {
            const auto* rule = std::get_if<SplitRule>(&rules[i]);
            same = rule != nullptr && rule->behavior == SplitBehavior::isolated && !rule->invert &&
                   rule->pattern.regex != nullptr && rule->pattern.regex->source() == split.patterns[i];
        }
        if (same) return &split;
    }
    return nullptr;
}

}  // namespace hetero::tokenizer
