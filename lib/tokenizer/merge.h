// Byte-pair merging: the best-ranked adjacent pair is merged, leftmost first among equals, until none is left.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tokenizer/flat_map.h"
#include "tokenizer/tokenizer.h"

namespace hetero::tokenizer {

struct Symbol {
    std::uint32_t begin = 0;   // bytes, in the word
    std::uint32_t length = 0;  // bytes; 0: merged into its left neighbour
    TokenId id = -1;
    std::int32_t previous = -1;  // indices into the list of symbols
    std::int32_t next = -1;
};

struct MergedPair {
    std::uint32_t rank = 0;  // smaller is better
    TokenId id = -1;
};

struct MergeCandidate {
    std::uint32_t rank = 0;
    std::uint32_t left = 0;    // index of the left symbol
    std::uint32_t length = 0;  // of both: it only grows, so another length means that the candidate is out of date
    TokenId id = -1;

    // For a heap whose front is the best.
    friend bool operator<(const MergeCandidate& a, const MergeCandidate& b) noexcept {
        return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    }
};

// Lookup: std::optional<MergedPair>(const Symbol& left, const Symbol& right). Keeps working memory from word to word.
class Merger {
public:
    // From this many symbols on, candidates are kept in lists by rank: a heap of a whole prompt does not fit the
    // caches.
    static constexpr std::size_t kLongWord = 1024;

    template <class Lookup>
    void merge(std::vector<Symbol>& symbols, Lookup lookup) {
        if (symbols.size() < kLongWord)
            merge_short(symbols, lookup);
        else
            merge_long(symbols, lookup);
    }

    // One heap of candidates: O(n log n).
    template <class Lookup>
    void merge_short(std::vector<Symbol>& symbols, Lookup lookup) {
        heap_.clear();
        for_each_pair(symbols, lookup, [&](const MergeCandidate& candidate) { heap_.push_back(candidate); });
        std::make_heap(heap_.begin(), heap_.end());
        while (!heap_.empty()) apply(pop(), symbols, lookup, [&](const MergeCandidate& candidate) { push(candidate); });
    }

    // One list per rank, and a heap of ranks. A list is worked off from left to right; what turns up meanwhile and is
    // as good or better goes through a heap of its own, so that the order is that of merge_short.
    template <class Lookup>
    void merge_long(std::vector<Symbol>& symbols, Lookup lookup) {
        heap_.clear();
        ranks_.clear();
        lists_.clear();
        index_ = FlatMap<std::uint32_t>();
        for_each_pair(symbols, lookup, [&](const MergeCandidate& candidate) { file(candidate); });
        std::vector<MergeCandidate> list;
        while (!ranks_.empty()) {
            std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
            const std::uint32_t rank = ranks_.back();
            ranks_.pop_back();
            list.clear();
            list.swap(lists_[*index_.find(rank)]);
            const auto by_place = [](const MergeCandidate& a, const MergeCandidate& b) { return a.left < b.left; };
            if (!std::is_sorted(list.begin(), list.end(), by_place)) std::sort(list.begin(), list.end(), by_place);
            const auto keep = [&](const MergeCandidate& candidate) {
                if (candidate.rank <= rank)
                    push(candidate);
                else
                    file(candidate);
            };
            for (std::size_t at = 0; at < list.size() || !heap_.empty();) {
                if (at == list.size() || (!heap_.empty() && list[at] < heap_.front()))
                    apply(pop(), symbols, lookup, keep);
                else
                    apply(list[at++], symbols, lookup, keep);
            }
        }
    }

private:
    template <class Lookup, class Take>
    static void consider(std::vector<Symbol>& symbols, std::int32_t left, Lookup& lookup, Take take) {
        if (left < 0) return;
        const Symbol& a = symbols[static_cast<std::size_t>(left)];
        if (a.next < 0) return;
        const Symbol& b = symbols[static_cast<std::size_t>(a.next)];
        if (const std::optional<MergedPair> merged = lookup(a, b))
            take({merged->rank, static_cast<std::uint32_t>(left), a.length + b.length, merged->id});
    }

    template <class Lookup, class Take>
    static void for_each_pair(std::vector<Symbol>& symbols, Lookup& lookup, Take take) {
        for (std::size_t i = 0; i < symbols.size(); ++i) consider(symbols, static_cast<std::int32_t>(i), lookup, take);
    }

    template <class Lookup, class Take>
    static void apply(const MergeCandidate& best, std::vector<Symbol>& symbols, Lookup& lookup, Take take) {
        Symbol& left = symbols[best.left];
        if (left.length == 0 || left.next < 0) return;
        Symbol& right = symbols[static_cast<std::size_t>(left.next)];
        if (left.length + right.length != best.length) return;
        left.length = best.length;
        left.id = best.id;
        left.next = right.next;
        right.length = 0;
        if (left.next >= 0)
            symbols[static_cast<std::size_t>(left.next)].previous = static_cast<std::int32_t>(best.left);
        consider(symbols, left.previous, lookup, take);
        consider(symbols, static_cast<std::int32_t>(best.left), lookup, take);
    }

    MergeCandidate pop() {
        std::pop_heap(heap_.begin(), heap_.end());
        const MergeCandidate best = heap_.back();
        heap_.pop_back();
        return best;
    }

    void push(const MergeCandidate& candidate) {
        heap_.push_back(candidate);
        std::push_heap(heap_.begin(), heap_.end());
    }

    void file(const MergeCandidate& candidate) {
        const auto [place, fresh] = index_.insert(candidate.rank, static_cast<std::uint32_t>(lists_.size()));
        if (fresh) lists_.emplace_back();
        std::vector<MergeCandidate>& list = lists_[*place];
        if (list.empty()) {
            ranks_.push_back(candidate.rank);
            std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
        }
        list.push_back(candidate);
    }

    std::vector<MergeCandidate> heap_;
    std::vector<std::uint32_t> ranks_;  // a heap of the ranks whose lists are not empty
    std::vector<std::vector<MergeCandidate>> lists_;
    FlatMap<std::uint32_t> index_;  // rank -> its list
};

}  // namespace hetero::tokenizer
