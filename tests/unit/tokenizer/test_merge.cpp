#include <doctest/doctest.h>

#include <map>
#include <random>

#include "tokenizer/merge.h"

using namespace hetero;
using namespace hetero::tokenizer;

namespace {

using Table = std::map<std::pair<TokenId, TokenId>, MergedPair>;

// The definition: again and again the best-ranked pair, the leftmost among equals.
std::vector<TokenId> by_definition(std::vector<TokenId> ids, const Table& table) {
    while (true) {
        std::size_t best = ids.size();
        MergedPair merged;
        for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
            const auto it = table.find({ids[i], ids[i + 1]});
            if (it != table.end() && (best == ids.size() || it->second.rank < merged.rank)) {
                best = i;
                merged = it->second;
            }
        }
        if (best == ids.size()) return ids;
        ids[best] = merged.id;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
}

std::vector<Symbol> symbols_of(const std::vector<TokenId>& ids) {
    std::vector<Symbol> symbols;
    const auto count = static_cast<std::int32_t>(ids.size());
    for (std::int32_t i = 0; i < count; ++i)
        symbols.push_back(
            {static_cast<std::uint32_t>(i), 1, ids[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    return symbols;
}

std::vector<TokenId> ids_of(const std::vector<Symbol>& symbols) {
    std::vector<TokenId> ids;
    for (const Symbol& symbol : symbols)
        if (symbol.length > 0) ids.push_back(symbol.id);
    return ids;
}

}  // namespace

TEST_CASE("both ways of merging follow the definition, whatever the table") {
    std::mt19937 random(7);
    Merger merger;
    for (int round = 0; round < 3000; ++round) {
        const int letters = 1 + static_cast<int>(random() % 4);
        const int tokens = letters + static_cast<int>(random() % 12);
        Table table;
        const int rules = static_cast<int>(random() % 14);
        for (int i = 0; i < rules; ++i) {
            const auto left = static_cast<TokenId>(random() % static_cast<unsigned>(tokens));
            const auto right = static_cast<TokenId>(random() % static_cast<unsigned>(tokens));
            const auto result = static_cast<TokenId>(random() % static_cast<unsigned>(tokens));
            // Ranks are in no order and shared: worse than any trained table.
            table[{left, right}] = {static_cast<std::uint32_t>(random() % 6), result};
        }
        std::vector<TokenId> ids(random() % 40);
        for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(letters));
        const auto lookup = [&](const Symbol& left, const Symbol& right) -> std::optional<MergedPair> {
            const auto it = table.find({left.id, right.id});
            return it == table.end() ? std::nullopt : std::optional(it->second);
        };
        const auto expected = by_definition(ids, table);
        auto one = symbols_of(ids);
        merger.merge_short(one, lookup);
        CHECK(ids_of(one) == expected);
        auto two = symbols_of(ids);
        merger.merge_long(two, lookup);
        CHECK(ids_of(two) == expected);
    }
}

TEST_CASE("FlatMap finds what was inserted and nothing else") {
    FlatMap<int> map;
    std::map<std::uint64_t, int> reference;
    std::mt19937_64 random(3);
    for (int i = 0; i < 20000; ++i) {
        const std::uint64_t key = random() % 30000 * (i % 2 == 0 ? 1 : 0x100000000ULL);
        CHECK(map.insert(key, i).second == reference.emplace(key, i).second);
    }
    CHECK(map.size() == reference.size());
    int wrong = 0;
    for (std::uint64_t key = 0; key < 30000; ++key) {
        const auto it = reference.find(key);
        const int* found = map.find(key);
        wrong += it == reference.end() ? found != nullptr : found == nullptr || *found != it->second;
    }
    CHECK(wrong == 0);
}
