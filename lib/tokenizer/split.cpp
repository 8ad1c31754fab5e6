#include "tokenizer/split.h"

#include <algorithm>

namespace hetero::tokenizer {
namespace {

struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool match = false;
};

std::size_t next_character(std::string_view text, std::size_t at) {
    do ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    return at;
}

// Cuts a text, which lies at `base` of a larger one, into matches and what lies between them; an empty match only cuts.
template <class Next>
void find_parts(std::string_view text, std::size_t base, Next next, std::vector<Part>& parts) {
    const std::size_t size = text.size();
    parts.clear();
    std::size_t done = 0;
    std::size_t from = 0;
    while (from <= size) {
        const auto match = next(from);
        if (!match) break;
        const auto [begin, end] = *match;
        if (begin > done) parts.push_back({base + done, base + begin, false});
        if (end > begin) parts.push_back({base + begin, base + end, true});
        done = std::max(done, end);
        from = end > begin ? end : next_character(text, end);
    }
    if (done < size) parts.push_back({base + done, base + size, false});
}

void join_with_previous(std::vector<Part>& parts) {
    std::vector<Part> out;
    bool previous_match = false;
    for (const Part& part : parts) {
        if (part.match && !previous_match && !out.empty())
            out.back().end = part.end;
        else
            out.push_back({part.begin, part.end, false});
        previous_match = part.match;
    }
    parts = std::move(out);
}

void join_with_next(std::vector<Part>& parts) {
    std::vector<Part> out;
    bool previous_match = false;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !previous_match && !out.empty())
            out.back().begin = part->begin;
        else
            out.push_back({part->begin, part->end, false});
        previous_match = part->match;
    }
    std::reverse(out.begin(), out.end());
    parts = std::move(out);
}

void join_contiguous(std::vector<Part>& parts) {
    std::vector<Part> out;
    for (const Part& part : parts) {
        if (!out.empty() && out.back().match == part.match)
            out.back().end = part.end;
        else
            out.push_back(part);
    }
    parts = std::move(out);
}

void shape(SplitBehavior behavior, std::vector<Part>& parts) {
    switch (behavior) {
        case SplitBehavior::isolated:
            break;
        case SplitBehavior::removed:
            std::erase_if(parts, [](const Part& part) { return part.match; });
            break;
        case SplitBehavior::merged_with_previous:
            join_with_previous(parts);
            break;
        case SplitBehavior::merged_with_next:
            join_with_next(parts);
            break;
        case SplitBehavior::contiguous:
            join_contiguous(parts);
            break;
    }
}

std::optional<std::pair<std::size_t, std::size_t>> next_literal(std::string_view text, std::string_view what,
                                                                std::size_t from) {
    const std::size_t at = what.empty() ? std::string_view::npos : text.find(what, from);
    if (at == std::string_view::npos) return std::nullopt;
    return std::pair{at, at + what.size()};
}

// Rebuilds the text from edited words.
template <class Edit>
void edit_words(Words& words, Edit edit) {
    Words out;
    out.text.reserve(words.text.size() + words.text.size() / 4 + 16);
    for (std::size_t i = 0; i < words.ranges.size(); ++i) {
        const std::size_t begin = out.text.size();
        edit(i, words.word(words.ranges[i]), out.text);
        if (out.text.size() > begin) out.ranges.push_back({begin, out.text.size()});
    }
    words = std::move(out);
}

}  // namespace

Result<Pattern> Pattern::regular(std::string_view expression, Regex::Trust trust) {
    HETERO_TRY(auto regex, Regex::compile(expression, trust));
    return Pattern{{}, std::move(regex)};
}

Pattern Pattern::exact(std::string text) { return Pattern{std::move(text), nullptr}; }

std::string Pattern::description() const { return regex != nullptr ? "regex:" + regex->source() : "text:" + literal; }

WordSplitter::WordSplitter(const std::vector<WordRule>& rules) : rules_(&rules) {
    for (const WordRule& rule : rules) {
        const auto* split = std::get_if<SplitRule>(&rule);
        matchers_.push_back(split != nullptr && split->pattern.regex != nullptr
                                ? std::make_unique<RegexMatcher>(*split->pattern.regex)
                                : nullptr);
    }
}

void WordSplitter::split(std::string text, bool at_start, Words& out) {
    out.text = std::move(text);
    out.ranges.clear();
    if (!out.text.empty()) out.ranges.push_back({0, out.text.size()});
    for (std::size_t i = 0; i < rules_->size(); ++i) {
        const WordRule& rule = (*rules_)[i];
        if (const auto* cut = std::get_if<SplitRule>(&rule)) {
            apply(*cut, matchers_[i].get(), out);
        } else if (std::holds_alternative<PrefixSpaceRule>(rule)) {
            edit_words(out, [](std::size_t, std::string_view word, std::string& to) {
                if (word.front() != ' ') to += ' ';
                to += word;
            });
        } else {
            const auto& meta = std::get<MetaspaceRule>(rule);
            const Pattern space = Pattern::exact(" ");
            edit_words(out, [&](std::size_t index, std::string_view word, std::string& to) {
                const std::string marked = replace_all(word, space, meta.replacement);
                const bool wanted = meta.prepend == MetaspaceRule::Prepend::always ||
                                    (meta.prepend == MetaspaceRule::Prepend::first && at_start && index == 0);
                if (wanted && !marked.starts_with(meta.replacement)) to += meta.replacement;
                to += marked;
            });
            if (meta.split)
                apply(SplitRule{Pattern::exact(meta.replacement), SplitBehavior::merged_with_next, false}, nullptr,
                      out);
        }
    }
}

void WordSplitter::apply(const SplitRule& rule, RegexMatcher* matcher, Words& words) {
    std::vector<Words::Range> ranges;
    ranges.reserve(words.text.size() / 4 + 1);
    std::vector<Part> parts;
    for (const Words::Range range : words.ranges) {
        const std::string_view word = words.word(range);
        // Each word is matched on its own: looking ahead stops at its end.
        if (matcher != nullptr)
            find_parts(
                word, range.begin, [&](std::size_t from) { return matcher->next(word, from); }, parts);
        else
            find_parts(
                word, range.begin, [&](std::size_t from) { return next_literal(word, rule.pattern.literal, from); },
                parts);
        if (rule.invert)
            for (Part& part : parts) part.match = !part.match;
        shape(rule.behavior, parts);
        for (const Part& part : parts)
            if (part.end > part.begin) ranges.push_back({part.begin, part.end});
    }
    words.ranges = std::move(ranges);
}

std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view with) {
    std::string out;
    out.reserve(text.size());
    std::size_t done = 0;
    std::size_t from = 0;
    std::optional<RegexMatcher> matcher;
    if (pattern.regex != nullptr) matcher.emplace(*pattern.regex);
    while (from <= text.size()) {
        const auto match = matcher ? matcher->next(text, from) : next_literal(text, pattern.literal, from);
        if (!match) break;
        const auto [begin, end] = *match;
        if (end == begin) {  // nothing to replace
            from = next_character(text, end);
            continue;
        }
        out.append(text.substr(done, begin - done)).append(with);
        done = from = end;
    }
    out.append(text.substr(done));
    return out;
}

std::string description(const WordRule& rule) {
    if (std::holds_alternative<PrefixSpaceRule>(rule)) return "prefix-space";
    if (const auto* meta = std::get_if<MetaspaceRule>(&rule))
        return fmt::format("metaspace:{}:{}:{}", meta->replacement, static_cast<int>(meta->prepend), meta->split);
    const auto& split = std::get<SplitRule>(rule);
    return fmt::format("split:{}:{}:{}", static_cast<int>(split.behavior), split.invert, split.pattern.description());
}

}  // namespace hetero::tokenizer
