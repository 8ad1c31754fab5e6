#include "tokenizer/spm_merges.h"

#include <algorithm>
#include <limits>

#include "tokenizer/flat_map.h"
#include "tokenizer/utf8.h"

namespace hetero::tokenizer {
namespace {

std::uint64_t key_of(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

// Calls take(left, right) for each way to cut the token's text into two tokens that plain text may turn into.
template <class Take>
void for_each_cut(const Vocabulary& vocabulary, TokenId id, Take take) {
    const std::string_view text = vocabulary.text(id);
    for (std::size_t at = 0; at < text.size();) {
        at += decode_utf8(text, at).bytes;
        if (at >= text.size()) return;
        const TokenId left = vocabulary.find_ordinary(text.substr(0, at));
        if (left < 0) continue;
        const TokenId right = vocabulary.find_ordinary(text.substr(at));
        if (right >= 0) take(left, right);
    }
}

}  // namespace

std::vector<float> scores_from_merges(const TokenizerParts& parts) {
    constexpr float none = std::numeric_limits<float>::infinity();
    std::vector<float> scores(parts.vocabulary.size(), none);
    float next = -1;
    for (const Merge& merge : parts.merges) {
        float& score = scores[static_cast<std::size_t>(merge.result)];
        if (score == none) score = next--;
    }
    std::replace(scores.begin(), scores.end(), none, next);
    return scores;
}

std::string difference_from_scores(const TokenizerParts& parts) {
    FlatMap<bool> pairs(parts.merges.size());
    FlatMap<bool> closed(parts.vocabulary.size());
    std::size_t scattered = 0;
    for (std::size_t i = 0; i < parts.merges.size(); ++i) {
        const Merge& merge = parts.merges[i];
        pairs.insert(key_of(merge.left, merge.right), true);
        if (i > 0 && parts.merges[i - 1].result == merge.result) continue;
        if (!closed.insert(static_cast<std::uint64_t>(merge.result), true).second) ++scattered;
    }
    std::size_t missing = 0;
    std::string example;
    for (TokenId id = 0; parts.vocabulary.contains(id); ++id) {
        if (parts.vocabulary.kind(id) != TokenKind::normal) continue;  // the others are matched as a whole
        for_each_cut(parts.vocabulary, id, [&](TokenId left, TokenId right) {
            if (pairs.find(key_of(left, right)) != nullptr) return;
            if (missing++ == 0) {
                example = fmt::format("'{}' and '{}'", parts.vocabulary.text(left), parts.vocabulary.text(right));
            }
        });
    }
    std::string text;
    if (missing > 0) text = fmt::format("{} pairs that give a token are not merged there ({})", missing, example);
    if (scattered > 0) {
        text +=
            fmt::format("{}{} merges come later than others of the same token", text.empty() ? "" : "; ", scattered);
    }
    return text;
}

std::vector<Merge> merges_from_scores(const TokenizerParts& parts) {
    const Vocabulary& vocabulary = parts.vocabulary;
    std::vector<Merge> merges;
    for (TokenId id = 0; vocabulary.contains(id); ++id) {
        if (vocabulary.kind(id) != TokenKind::normal && vocabulary.kind(id) != TokenKind::added) continue;
        for_each_cut(vocabulary, id, [&](TokenId left, TokenId right) { merges.push_back({left, right, id}); });
    }
    std::stable_sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
        const bool a_added = vocabulary.kind(a.result) == TokenKind::added;
        const bool b_added = vocabulary.kind(b.result) == TokenKind::added;
        if (a_added != b_added) return a_added;
        if (a_added) return a.result < b.result;
        return parts.ranks[static_cast<std::size_t>(a.result)] < parts.ranks[static_cast<std::size_t>(b.result)];
    });
    return merges;
}

}  // namespace hetero::tokenizer
