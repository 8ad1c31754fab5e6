#include "tokenizer/json_pipeline.h"

#include "tokenizer/named_splits.h"

namespace hetero::tokenizer {
namespace {

// Sequences inside sequences are walked by recursion; read_json() has bounded the depth.
template <class Each>
Status for_each_member(const Json& node, const char* key, std::string_view where, Each each) {
    const Json* list = member(node, key);
    if (list == nullptr || !list->is_array())
        return fail(Errc::bad_input, "{}: a Sequence without a list \"{}\"", where, key);
    for (const Json& item : *list) HETERO_CHECK(each(item));
    return {};
}

Result<Pattern> read_pattern(const Json& node, std::string_view where) {
    const Json* pattern = member(node, "pattern");
    if (pattern != nullptr && pattern->is_object() && pattern->size() == 1) {
        if (member(*pattern, "String") != nullptr) {
            HETERO_TRY(const std::string_view text, text_of(*pattern, "String", where));
            return Pattern::exact(std::string(text));
        }
        if (member(*pattern, "Regex") != nullptr) {
            HETERO_TRY(const std::string_view expression, text_of(*pattern, "Regex", where));
            return Pattern::regular(expression);
        }
    }
    return fail(Errc::bad_input, "{}: \"pattern\" is neither {{\"String\": ...}} nor {{\"Regex\": ...}}", where);
}

Result<SplitBehavior> read_behavior(const Json& node, std::string_view where) {
    HETERO_TRY(const std::string_view name, text_of(node, "behavior", where));
    if (name == "Removed") return SplitBehavior::removed;
    if (name == "Isolated") return SplitBehavior::isolated;
    if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
    if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
    if (name == "Contiguous") return SplitBehavior::contiguous;
    return fail(Errc::bad_input, "{}: behavior '{}' is not known", where, name);
}

Result<MetaspaceRule> read_metaspace(const Json& node, std::string_view where) {
    MetaspaceRule rule;
    HETERO_TRY(rule.replacement, text_of(node, "replacement", where));
    if (rule.replacement.empty()) return fail(Errc::bad_input, "{}: Metaspace with an empty replacement", where);
    if (member(node, "prepend_scheme") != nullptr) {
        HETERO_TRY(const std::string_view scheme, text_of(node, "prepend_scheme", where));
        if (scheme == "always")
            rule.prepend = MetaspaceRule::Prepend::always;
        else if (scheme == "first")
            rule.prepend = MetaspaceRule::Prepend::first;
        else if (scheme == "never")
            rule.prepend = MetaspaceRule::Prepend::never;
        else
            return fail(Errc::bad_input, "{}: Metaspace with prepend_scheme '{}', which is not known", where, scheme);
    } else {
        HETERO_TRY(const bool prefix, flag_of(node, "add_prefix_space", true, where));
        rule.prepend = prefix ? MetaspaceRule::Prepend::always : MetaspaceRule::Prepend::never;
    }
    HETERO_TRY(rule.split, flag_of(node, "split", true, where));
    return rule;
}

Status add_split(TokenizerParts& parts, std::string_view expression) {
    HETERO_TRY(Pattern pattern, Pattern::regular(expression, Regex::Trust::full));
    parts.word_rules.emplace_back(SplitRule{std::move(pattern), SplitBehavior::isolated, false});
    return {};
}

// A split at a literal that the normalizer has replaced everywhere never cuts.
bool never_matches(const Pattern& pattern, const TokenizerParts& parts) {
    if (pattern.regex != nullptr || parts.normalizer.empty()) return false;
    const auto* last = std::get_if<Replace>(&parts.normalizer.back());
    return last != nullptr && last->pattern.regex == nullptr && last->pattern.literal == pattern.literal &&
           last->with.find(pattern.literal) == std::string::npos;
}

}  // namespace

Status read_normalizer(const Json* node, TokenizerParts& parts) {
    constexpr std::string_view where = "normalizer";
    if (node == nullptr) return {};
    HETERO_TRY(const std::string_view type, text_of(*node, "type", where));
    if (type == "Sequence")
        return for_each_member(*node, "normalizers", where,
                               [&](const Json& item) { return read_normalizer(&item, parts); });
    if (type == "NFC")
        parts.normalizer.emplace_back(UnicodeForm::nfc);
    else if (type == "NFD")
        parts.normalizer.emplace_back(UnicodeForm::nfd);
    else if (type == "NFKC")
        parts.normalizer.emplace_back(UnicodeForm::nfkc);
    else if (type == "NFKD")
        parts.normalizer.emplace_back(UnicodeForm::nfkd);
    else if (type == "Prepend") {
        HETERO_TRY(const std::string_view text, text_of(*node, "prepend", where));
        parts.normalizer.emplace_back(Prepend{std::string(text)});
    } else if (type == "Replace") {
        HETERO_TRY(Pattern pattern, read_pattern(*node, where));
        HETERO_TRY(const std::string_view with, text_of(*node, "content", where));
        parts.normalizer.emplace_back(Replace{std::move(pattern), std::string(with)});
    } else {
        return fail(Errc::bad_input,
                    "normalizer '{}' is not implemented; known are: NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence",
                    type);
    }
    return {};
}

Status read_pre_tokenizer(const Json* node, TokenizerParts& parts) {
    constexpr std::string_view where = "pre_tokenizer";
    if (node == nullptr) return {};
    HETERO_TRY(const std::string_view type, text_of(*node, "type", where));
    if (type == "Sequence")
        return for_each_member(*node, "pretokenizers", where,
                               [&](const Json& item) { return read_pre_tokenizer(&item, parts); });
    if (parts.byte_level)
        return fail(Errc::bad_input, "pre_tokenizer '{}' comes after ByteLevel, which is not implemented", type);
    if (type == "ByteLevel") {
        HETERO_TRY(const bool prefix, flag_of(*node, "add_prefix_space", true, where));
        HETERO_TRY(const bool regex, flag_of(*node, "use_regex", true, where));
        if (prefix) parts.word_rules.emplace_back(PrefixSpaceRule{});
        if (regex) HETERO_CHECK(add_split(parts, kGpt2Pattern));
        parts.byte_level = true;
    } else if (type == "Split") {
        SplitRule rule;
        HETERO_TRY(rule.pattern, read_pattern(*node, where));
        HETERO_TRY(rule.behavior, read_behavior(*node, where));
        HETERO_TRY(rule.invert, flag_of(*node, "invert", false, where));
        if (rule.invert || !never_matches(rule.pattern, parts)) parts.word_rules.emplace_back(std::move(rule));
    } else if (type == "Digits") {
        HETERO_TRY(const bool single, flag_of(*node, "individual_digits", false, where));
        return add_split(parts, single ? "\\p{N}" : "\\p{N}+");
    } else if (type == "Punctuation") {
        SplitRule rule;
        HETERO_TRY(rule.pattern, Pattern::regular("[\\p{P}!-/:-@\\[-`{-~]", Regex::Trust::full));
        if (member(*node, "behavior") != nullptr) {
            HETERO_TRY(rule.behavior, read_behavior(*node, where));
        }
        parts.word_rules.emplace_back(std::move(rule));
    } else if (type == "Metaspace") {
        HETERO_TRY(MetaspaceRule rule, read_metaspace(*node, where));
        parts.word_rules.emplace_back(std::move(rule));
    } else {
        return fail(Errc::bad_input,
                    "pre_tokenizer '{}' is not implemented; known are: ByteLevel, Digits, Metaspace, Punctuation, "
                    "Sequence, Split",
                    type);
    }
    return {};
}

Status read_decoder(const Json* node, TokenizerParts& parts) {
    constexpr std::string_view where = "decoder";
    if (node == nullptr)
        return fail(Errc::bad_input, "decoder is null: tokens would be joined by spaces, which is not implemented");
    HETERO_TRY(const std::string_view type, text_of(*node, "type", where));
    DecodeRules& rules = parts.decode;
    if (type == "Sequence")
        return for_each_member(*node, "decoders", where, [&](const Json& item) { return read_decoder(&item, parts); });
    if (type == "ByteLevel") {
        if (!parts.byte_level)
            return fail(Errc::bad_input, "decoder ByteLevel without a ByteLevel pre_tokenizer is not implemented");
    } else if (type == "Replace") {
        HETERO_TRY(const Pattern pattern, read_pattern(*node, where));
        HETERO_TRY(const std::string_view with, text_of(*node, "content", where));
        if (pattern.regex != nullptr || pattern.literal != kSpaceMark || with != " ")
            return fail(Errc::bad_input, "decoder Replace of anything but U+2581 by a space is not implemented");
        rules.marks_to_spaces = rules.marks_to_spaces_in_added = true;
    } else if (type == "Metaspace") {
        HETERO_TRY(const MetaspaceRule rule, read_metaspace(*node, where));
        if (rule.replacement != kSpaceMark)
            return fail(Errc::bad_input, "decoder Metaspace with another sign than U+2581 is not implemented");
        rules.marks_to_spaces = rules.marks_to_spaces_in_added = true;
        if (rule.prepend != MetaspaceRule::Prepend::never) rules.leading = DecodeRules::Leading::drop_first_mark;
    } else if (type == "Strip") {
        HETERO_TRY(const std::string_view content, text_of(*node, "content", where));
        const Json* start = member(*node, "start");
        const Json* stop = member(*node, "stop");
        const bool known = content == " " && start != nullptr && start->is_number_unsigned() &&
                           start->get<std::uint64_t>() <= 16 && stop != nullptr && stop->is_number_unsigned() &&
                           stop->get<std::uint64_t>() == 0;
        if (!known)
            return fail(Errc::bad_input, "decoder Strip of anything but up to 16 leading spaces is not implemented");
        rules.leading = DecodeRules::Leading::strip_spaces;
        rules.spaces = start->get<unsigned>();
    } else if (type != "ByteFallback" && type != "Fuse") {  // these two are how bytes are joined here anyway
        return fail(Errc::bad_input,
                    "decoder '{}' is not implemented; known are: ByteFallback, ByteLevel, Fuse, Metaspace, Replace, "
                    "Sequence, Strip",
                    type);
    }
    return {};
}

Result<std::optional<std::string>> read_post_processor(const Json* node) {
    constexpr std::string_view where = "post_processor";
    std::optional<std::string> first;
    if (node == nullptr) return first;
    HETERO_TRY(const std::string_view type, text_of(*node, "type", where));
    if (type == "ByteLevel") return first;  // offsets only
    if (type == "Sequence") {
        HETERO_CHECK(for_each_member(*node, "processors", where, [&](const Json& item) -> Status {
            HETERO_TRY(auto token, read_post_processor(&item));
            if (token && first) return fail(Errc::bad_input, "post_processor adds more than one token");
            if (token) first = std::move(token);
            return {};
        }));
        return first;
    }
    if (type != "TemplateProcessing")
        return fail(Errc::bad_input,
                    "post_processor '{}' is not implemented; known are: ByteLevel, Sequence, TemplateProcessing", type);
    bool after_text = false;
    HETERO_CHECK(for_each_member(*node, "single", where, [&](const Json& item) -> Status {
        if (member(item, "Sequence") != nullptr) {
            after_text = true;
            return {};
        }
        const Json* special = member(item, "SpecialToken");
        if (special == nullptr)
            return fail(Errc::bad_input, "post_processor: a part that is neither Sequence nor SpecialToken");
        HETERO_TRY(const std::string_view token, text_of(*special, "id", where));
        if (after_text || first)
            return fail(Errc::bad_input, "post_processor adds '{}': only one token before the text is implemented",
                        token);
        first = std::string(token);
        return {};
    }));
    return first;
}

}  // namespace hetero::tokenizer
