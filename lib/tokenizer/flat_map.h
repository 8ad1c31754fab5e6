// A hash map from 64-bit keys, all but the largest of them, to small values: open addressing, linear probing, no
// deletion. Merge tables of 300,000 entries are built in a few milliseconds and looked up with one or two cache misses.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

namespace hetero::tokenizer {

template <class Value>
class FlatMap {
public:
    explicit FlatMap(std::size_t expected = 0) { rehash(expected); }

    [[nodiscard]] const Value* find(std::uint64_t key) const noexcept {
        for (std::size_t at = slot_of(key); slots_[at].key != unused; at = (at + 1) & mask_)
            if (slots_[at].key == key) return &slots_[at].value;
        return nullptr;
    }

    // Returns the value's place and whether the key is new; an old value is left as it is.
    std::pair<Value*, bool> insert(std::uint64_t key, Value value) {
        if ((count_ + 1) * 2 > slots_.size()) grow();
        std::size_t at = slot_of(key);
        for (; slots_[at].key != unused; at = (at + 1) & mask_)
            if (slots_[at].key == key) return {&slots_[at].value, false};
        slots_[at] = {key, value};
        ++count_;
        return {&slots_[at].value, true};
    }

    [[nodiscard]] std::size_t size() const noexcept { return count_; }

private:
    static constexpr std::uint64_t unused = ~std::uint64_t{0};
    struct Slot {
        std::uint64_t key = unused;
        Value value{};
    };

    [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept {
        key *= 0x9E3779B97F4A7C15ULL;  // Fibonacci hashing; the high bits are the mixed ones
        return static_cast<std::size_t>(key >> 32) & mask_;
    }

    void rehash(std::size_t expected) {
        const std::size_t size = std::bit_ceil(expected * 2 < 8 ? std::size_t{8} : expected * 2);
        slots_.assign(size, Slot{});
        mask_ = size - 1;
        count_ = 0;
    }

    void grow() {
        std::vector<Slot> old = std::move(slots_);
        rehash(old.size());
        for (const Slot& slot : old)
            if (slot.key != unused) insert(slot.key, slot.value);
    }

    std::vector<Slot> slots_;
    std::size_t mask_ = 0;
    std::size_t count_ = 0;
};

}  // namespace hetero::tokenizer
