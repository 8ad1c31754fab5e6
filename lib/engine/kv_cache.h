// The resident KV cache of one sequence: a table of pages of a pool. Sequences that have a prefix in common share its
// pages; the first store into a shared page copies it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/kv_pool.h"

namespace hetero::engine {

class KvCache {
public:
    // Takes no pages yet. Errors: resource.
    static Result<KvCache> create(std::shared_ptr<KvPool> pool, std::uint64_t capacity_tokens);
    KvCache(KvCache&& other) noexcept = default;
    KvCache& operator=(KvCache&& other) noexcept;
    ~KvCache() { truncate(0); }

    [[nodiscard]] const KvPool& pool() const noexcept { return *pool_; }
    [[nodiscard]] kernels::DType dtype() const noexcept { return pool_->dtype(); }
    [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::uint32_t heads(std::size_t layer) const noexcept { return pool_->heads(layer); }
    [[nodiscard]] std::uint32_t first_head(std::size_t layer) const noexcept { return pool_->first_head(layer); }
    [[nodiscard]] std::uint32_t head_dim(std::size_t layer, kv::PartId part) const noexcept {
        return pool_->head_dim(layer, part);
    }

    // Another sequence with the same first tokens, of the same capacity. Takes no pages. Errors: resource.
    [[nodiscard]] Result<KvCache> fork(std::uint64_t n_tokens) const;
    // Makes the pages of tokens [first, end), end <= capacity(), those of this sequence alone; before they are stored.
    // Those before `first` exist. Errors: resource, when the pool has no more.
    Status prepare(std::uint64_t first, std::uint64_t end);
    // Gives back the pages after the first n_tokens.
    void truncate(std::uint64_t n_tokens) noexcept;

    [[nodiscard]] std::span<const KvPool::Page> pages() const noexcept { return pages_; }
    // Where a device has the pages (KvPool::is_elsewhere): the tokens of a layer, from 0 on, that the pool's memory
    // has, too.
    [[nodiscard]] std::uint64_t in_memory(std::size_t layer) const noexcept { return in_memory_[layer]; }
    void set_in_memory(std::size_t layer, std::uint64_t tokens) noexcept { in_memory_[layer] = tokens; }

    // Likewise, of K in groups of tokens: the tail f16 [layer][kv_head][group_tokens][head_dim], what the device holds
    // for this cache, and that a layer's tokens up to `end` were stored there, and the open group's brought to the
    // tail.
    [[nodiscard]] std::uint16_t* tail() const noexcept { return tail_.get(); }
    [[nodiscard]] std::shared_ptr<void>& on_device() noexcept { return on_device_; }
    void stored_elsewhere(std::size_t layer, std::uint64_t end) noexcept;

    // Whether tokens of this part must be stored in order, each after the attention of those of the group before it: K
    // in groups of tokens. A query sees its own group as f16, groups before it as codes.
    [[nodiscard]] std::size_t group_tokens(std::size_t layer, kv::PartId part) const noexcept {
        const PartFormat* format = pool_->format(layer, part);
        return format != nullptr ? format->group_tokens : 0;
    }
    // Heads are rotated (quant/rotation.h) before they are coded: so must be queries, and outputs back.
    [[nodiscard]] bool is_rotated(std::size_t layer, kv::PartId part) const noexcept {
        const PartFormat* format = pool_->format(layer, part);
        return format != nullptr && format->params.hadamard;
    }

    // K and V as attention reads them, valid until the next prepare(), truncate() or move. Of a latent layer both are
    // the whole rows, of which the values are the first part.
    [[nodiscard]] kernels::KvView view(std::size_t layer, kv::PartId part, std::uint32_t head) const noexcept;

    // Converts one token's values [kv_head][head_dim] and stores them (tokens may be stored from several threads at
    // once). A value that is not finite in the resident type: bad_input naming the place, and bf16 where f16 is too
    // narrow.
    Status store(std::size_t layer, kv::PartId part, std::uint64_t token, const float* values);

    // Tokens [first, end) as [token][kv_head][head_dim] in the resident type, to and from dense bytes. What load()
    // reads has `in_heads` heads, of which those of this cache begin at `in_first`; it refuses values that are not
    // finite, as store() does.
    void save(std::size_t layer, kv::PartId part, std::uint64_t first, std::uint64_t end,
              std::span<std::byte> out) const;
    Status load(std::size_t layer, kv::PartId part, std::uint64_t first, std::uint64_t end,
                std::span<const std::byte> in, std::uint32_t in_heads, std::uint32_t in_first);
    // The same of codes, as the part of a state of these tokens holds them, whose arrays have their sizes. load_codes()
    // refuses scales and values that are not finite.
    Status save_codes(std::size_t layer, kv::PartId part, std::uint64_t first, std::uint64_t end, kv::Part& out) const;
    Status load_codes(std::size_t layer, kv::PartId part, std::uint64_t first, std::uint64_t end, const kv::Part& in,
                      std::uint32_t in_heads, std::uint32_t in_first);

private:
    KvCache(std::shared_ptr<KvPool> pool, std::uint64_t capacity);
    [[nodiscard]] std::byte* row(std::size_t layer, kv::PartId part, std::uint32_t head,
                                 std::uint64_t token) const noexcept;
    [[nodiscard]] std::size_t row_bytes(std::size_t layer, kv::PartId part) const noexcept;
    [[nodiscard]] std::byte* tile(std::size_t layer, kv::PartId part, std::uint32_t head,
                                  std::uint64_t token) const noexcept;
    [[nodiscard]] std::uint16_t* tail_row(std::size_t layer, std::uint32_t head, std::uint64_t token) const noexcept;
    Status open_token(std::size_t layer, std::uint64_t token);
    Status store_codes(std::size_t layer, kv::PartId part, std::uint32_t head, std::uint64_t token,
                       std::span<const std::uint16_t> rounded);
    Status encode_tail(std::size_t layer, std::uint32_t head, std::size_t rows, std::span<std::byte> codes,
                       std::span<std::byte> scale, std::span<std::byte> zero) const;
    Status close_group(std::size_t layer);
    void reopen(std::size_t layer, std::uint64_t n_tokens) noexcept;
    // Names the first value of these heads that is not finite; fine where there is none. in: as load() has it.
    [[nodiscard]] Status refuse_not_finite(std::size_t layer, kv::PartId part, std::uint64_t first, std::uint64_t end,
                                           const std::byte* in, std::size_t token_bytes) const;
    [[nodiscard]] tl::unexpected<Error> not_finite(std::size_t layer, kv::PartId part, std::uint64_t token,
                                                   std::uint32_t head, const float* values) const;

    std::shared_ptr<KvPool> pool_;
    std::uint64_t capacity_ = 0;
    std::vector<KvPool::Page> pages_;       // [page of the sequence]; room for those of the capacity
    std::vector<std::byte*> memory_;        // their memory
    std::vector<std::uint64_t> in_memory_;  // [layer]
    std::shared_ptr<void> on_device_;
    // Of K in groups of tokens: the group whose tokens are in the tail, as f16, and the tokens that an import left
    // whole in codes, those of the last group too (0: changed since).
    std::unique_ptr<std::uint16_t[]> tail_;
    std::vector<std::uint64_t> open_, whole_;  // [layer]
};

}  // namespace hetero::engine
