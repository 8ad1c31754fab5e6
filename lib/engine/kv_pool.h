// Memory for the KV caches of one model, in pages of 64 tokens that caches take, share and give back (after
// PagedAttention, https://arxiv.org/abs/2309.06180). A page holds its tokens of all layers: [layer][K, V][kv_head]
// tiles, each [token of the page][head_dim] in the resident type and at a multiple of 64 bytes. K is stored after RoPE,
// half-split. A layer with latents has one tile, [token][latent | RoPE key], so that one row is what a query is
// multiplied with. Pages lie interleaved in runs of some: [run][layer][page of the run], so that what is imported or
// computed layer by layer touches fresh memory bit by bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/aligned.h"
#include "engine/kv_format.h"
#include "engine/share.h"
#include "kernels/api/ops.h"
#include "kv/state.h"
#include "model/program.h"

namespace hetero::engine {

// The address space is taken once; a page costs memory from its first use on. Used by one thread at a time.
class KvPool {
public:
    static constexpr std::uint64_t page_tokens = kernels::kKvPageTokens;
    using Page = std::uint32_t;

    [[nodiscard]] static std::uint64_t pages_for(std::uint64_t tokens) noexcept {
        return tokens / page_tokens + (tokens % page_tokens != 0);
    }
    // `heads`: of each layer, the KV heads that are kept, those of one rank; none given: all. They are counted from 0
    // here; messages name them as the model does.
    [[nodiscard]] static std::uint64_t page_bytes(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                                  std::span<const Range> heads = {});
    // What create() reserves: the pages, and what is left of the last run; the largest number where it is beyond 64 bits.
    [[nodiscard]] static std::uint64_t bytes_needed(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                                    std::uint64_t pages, std::span<const Range> heads = {});
    // usage: codecs that cannot stay in memory, layers that cannot be in codes: those with latents, and those with a
    // window where K is coded by channel.
    [[nodiscard]] static Status check(std::span<const model::KvLayout> layers, const KvStorage& storage);
    // What each cache takes apart from pages: the tokens of groups that are not full.
    [[nodiscard]] static std::uint64_t tail_bytes(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                                  std::span<const Range> heads = {});
    // Floats: f16, bf16 or f32. `memory`: bytes_needed() at a multiple of 64, or null: it is taken here. Errors: those
    // of check(); resource.
    static Result<std::shared_ptr<KvPool>> create(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                                  std::uint64_t pages, std::span<const Range> heads = {},
                                                  std::shared_ptr<std::byte> memory = nullptr);

    [[nodiscard]] kernels::DType dtype() const noexcept { return dtype_; }
    [[nodiscard]] std::uint64_t pages() const noexcept { return users_.size(); }
    [[nodiscard]] std::uint64_t free_pages() const noexcept { return free_.size(); }
    [[nodiscard]] std::size_t page_bytes() const noexcept { return page_bytes_; }

    [[nodiscard]] std::size_t layers() const noexcept { return layers_.size(); }
    [[nodiscard]] std::uint32_t heads(std::size_t layer) const noexcept { return layers_[layer].n_kv_heads; }
    [[nodiscard]] std::uint32_t first_head(std::size_t layer) const noexcept { return first_heads_[layer]; }
    [[nodiscard]] std::uint32_t head_dim(std::size_t layer, kv::PartId part) const noexcept;
    // With these alone: what shapes and sizes of a state's parts are asked with.
    [[nodiscard]] kv::Header header_of(std::size_t layer) const;
    // Where from memory() of a page the tile of a head begins, and elements from one token of it to the next. Of a
    // latent layer the two parts lie side by side in one row.
    [[nodiscard]] std::size_t tile_offset(std::size_t layer, kv::PartId part, std::uint32_t head) const noexcept;
    [[nodiscard]] std::size_t token_stride(std::size_t layer, kv::PartId part) const noexcept;
    // The tiles of all heads that are kept, which are adjacent.
    [[nodiscard]] std::size_t part_bytes(std::size_t layer, kv::PartId part) const noexcept;
    [[nodiscard]] bool is_latent(std::size_t layer) const noexcept;
    // Null where a part is in floats.
    [[nodiscard]] const PartFormat* format(std::size_t layer, kv::PartId part) const noexcept {
        return formats_.empty() ? nullptr : &formats_[2 * layer + static_cast<std::size_t>(part)];
    }
    // Of a cache's tail, f16 [layer][kv_head][group_tokens][head_dim]: where a layer begins, and all of it; elements.
    [[nodiscard]] std::size_t tail_offset(std::size_t layer) const noexcept { return tail_offsets_[layer]; }
    [[nodiscard]] std::size_t tail_size() const noexcept { return tail_size_; }

    // A page with one user; its bytes are unspecified. Errors: resource, when all are taken.
    Result<Page> take();
    void share(Page page) noexcept { ++users_[page]; }
    void drop(Page page) noexcept;  // one user less; without users it is free
    [[nodiscard]] bool is_shared(Page page) const noexcept { return users_[page] > 1; }
    // Of its first tile; the others are tile_offset() from there.
    [[nodiscard]] std::byte* memory(Page page) const noexcept {
        return memory_.get() + page / run_pages_ * (run_pages_ * page_bytes_) + page % run_pages_ * layer_bytes_;
    }
    // Pages of a run: those from a multiple of it on lie together, all their layers.
    [[nodiscard]] std::size_t run_pages() const noexcept { return run_pages_; }
    // From one page to the next one, where that is memory() of it; and all pages, from memory(0) on.
    [[nodiscard]] std::size_t page_stride() const noexcept { return run_pages_ == 1 ? page_bytes_ : layer_bytes_; }
    [[nodiscard]] std::size_t memory_bytes() const noexcept { return memory_bytes_; }

    // What a page holds, to another page. Where a device has the pages, by its function: here is a copy at best.
    using CopyFn = std::function<Status(Page from, Page to)>;
    Status copy(Page from, Page to) const;
    void copy_by(CopyFn copy) { copy_ = std::move(copy); }
    [[nodiscard]] bool is_elsewhere() const noexcept { return copy_ != nullptr; }

private:
    KvPool() = default;
    void interleave(std::size_t run_pages);

    std::vector<model::KvLayout> layers_;           // n_kv_heads: those that are kept
    std::vector<std::uint32_t> first_heads_;        // [layer], of the model's
    std::vector<std::size_t> k_offset_, v_offset_;  // [layer], bytes from memory(page)
    std::vector<PartFormat> formats_;               // [layer][K, V]; empty: floats
    std::vector<std::size_t> tail_offsets_;         // [layer]
    std::size_t tail_size_ = 0;
    std::size_t page_bytes_ = 0;
    std::size_t run_pages_ = 1, layer_bytes_ = 0;  // layers of unlike sizes have runs of one page
    std::size_t memory_bytes_ = 0;
    std::shared_ptr<std::byte> memory_;  // [run][layer][page of the run][layer_bytes_]
    std::vector<std::uint32_t> users_;   // [page]
    std::vector<Page> free_;             // the last is taken next
    CopyFn copy_;                        // empty: the truth is in memory_
    kernels::DType dtype_ = kernels::DType::f16;
};

}  // namespace hetero::engine
