#include "engine/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>

namespace hetero::engine {
namespace {

using kernels::DType;
using kv::PartId;

constexpr std::size_t alignment = 64;  // of tiles: a cache line
// Short enough that a few tokens cost little, while a layer of a run is a small part of it.
constexpr std::size_t run_bytes = std::size_t{16} << 20;

bool latent(const model::KvLayout& layer) { return layer.kind == model::KvLayout::Kind::latent; }

// One head's tile; 0 where the codec cannot be. The V of a latent layer lies in the rows of its K. Cannot overflow:
// sizes are bounded by the model's limits.
std::size_t tile_bytes(const model::KvLayout& layer, const KvStorage& storage, PartId part) {
    if (latent(layer) && part == PartId::v) return 0;
    const std::uint32_t dim = part == PartId::k ? layer.query_dim() : layer.head_dim_v;
    if (storage.codecs) {
        const auto format = part_format(part == PartId::k ? storage.codecs->k : storage.codecs->v, part, dim);
        return format ? format->tile_bytes : 0;
    }
    return round_up(kernels::dtype_bytes(storage.dtype, dim * KvPool::page_tokens), alignment);
}

std::uint32_t kept_heads(std::span<const model::KvLayout> layers, std::span<const Range> heads, std::size_t layer) {
    return heads.empty() ? layers[layer].n_kv_heads : static_cast<std::uint32_t>(heads[layer].size());
}

// Of one page.
std::uint64_t layer_bytes(std::span<const model::KvLayout> layers, const KvStorage& storage,
                          std::span<const Range> heads, std::size_t layer) {
    return (std::uint64_t{tile_bytes(layers[layer], storage, PartId::k)} +
            tile_bytes(layers[layer], storage, PartId::v)) *
           kept_heads(layers, heads, layer);
}

// Pages of a run: as many as it should be long, or down to half of them where fewer places of the last run stay empty.
// Layers of unlike sizes have runs of one page.
std::uint64_t run_pages_of(std::span<const model::KvLayout> layers, const KvStorage& storage, std::uint64_t pages,
                           std::span<const Range> heads) {
    const std::uint64_t one = layers.empty() ? 0 : layer_bytes(layers, storage, heads, 0);
    for (std::size_t i = 1; i < layers.size(); ++i)
        if (layer_bytes(layers, storage, heads, i) != one) return 1;
    if (one == 0 || pages == 0) return 1;
    const auto empty = [&](std::uint64_t run) { return (run - pages % run) % run; };
    const std::uint64_t most = std::clamp<std::uint64_t>(run_bytes / (one * layers.size()), 1, pages);
    std::uint64_t best = most;
    for (std::uint64_t run = most; run > most / 2; --run)
        if (empty(run) < empty(best)) best = run;
    return best;
}

}  // namespace

std::uint64_t KvPool::page_bytes(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                 std::span<const Range> heads) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) bytes += layer_bytes(layers, storage, heads, i);
    return bytes;
}

std::uint64_t KvPool::bytes_needed(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                   std::uint64_t pages, std::span<const Range> heads) {
    const std::uint64_t run = run_pages_of(layers, storage, pages, heads), runs = pages / run + (pages % run != 0);
    std::uint64_t bytes = 0;
    const bool fits = !__builtin_mul_overflow(page_bytes(layers, storage, heads) * run, runs, &bytes);
    return fits ? bytes : std::numeric_limits<std::uint64_t>::max();
}

Status KvPool::check(std::span<const model::KvLayout> layers, const KvStorage& storage) {
    if (!storage.codecs) return {};
    for (std::size_t i = 0; i < layers.size(); ++i) {
        if (latent(layers[i])) {
            return fail(Errc::usage, "layer {} keeps latents, which stay in memory as f16, bf16 or f32", i);
        }
        HETERO_TRY(const PartFormat k, part_format(storage.codecs->k, PartId::k, layers[i].head_dim_k));
        HETERO_CHECK(part_format(storage.codecs->v, PartId::v, layers[i].head_dim_v));
        if (k.group_tokens != 0 && layers[i].window != 0) {
            return fail(Errc::usage, "layer {} has a window: its K cannot stay in memory by channel; use int8 or int4",
                        i);
        }
    }
    return {};
}

std::uint64_t KvPool::tail_bytes(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                 std::span<const Range> heads) {
    std::uint64_t elements = 0;
    for (std::size_t i = 0; storage.codecs && i < layers.size(); ++i) {
        if (storage.codecs->k.params.axis != quant::Axis::channel) break;
        elements += std::uint64_t{kept_heads(layers, heads, i)} * storage.codecs->k.params.group * layers[i].head_dim_k;
    }
    return 2 * elements;
}

Result<std::shared_ptr<KvPool>> KvPool::create(std::span<const model::KvLayout> layers, const KvStorage& storage,
                                               std::uint64_t pages, std::span<const Range> heads,
                                               std::shared_ptr<std::byte> memory) {
    HETERO_CHECK(check(layers, storage));
    const std::uint64_t bytes = bytes_needed(layers, storage, pages, heads);
    const auto out_of_memory = [&] {
        return fail(Errc::resource, "out of memory: a KV cache of {} pages of {} tokens needs {} bytes", pages,
                    page_tokens, bytes);
    };
    if (pages > std::numeric_limits<Page>::max() || bytes > std::numeric_limits<std::int64_t>::max()) {
        return out_of_memory();
    }
    try {
        std::shared_ptr<KvPool> pool(new KvPool);
        pool->layers_.assign(layers.begin(), layers.end());
        pool->first_heads_.resize(layers.size());
        pool->dtype_ = storage.dtype;
        for (std::size_t i = 0; storage.codecs && i < layers.size(); ++i) {
            HETERO_TRY(PartFormat k, part_format(storage.codecs->k, PartId::k, layers[i].head_dim_k));
            HETERO_TRY(PartFormat v, part_format(storage.codecs->v, PartId::v, layers[i].head_dim_v));
            pool->tail_offsets_.push_back(pool->tail_size_);
            pool->tail_size_ += kept_heads(layers, heads, i) * k.group_tokens * k.head_dim;
            pool->formats_.push_back(std::move(k));
            pool->formats_.push_back(std::move(v));
        }
        for (std::size_t i = 0; i < layers.size(); ++i) {
            pool->layers_[i].n_kv_heads = kept_heads(layers, heads, i);
            if (!heads.empty()) pool->first_heads_[i] = static_cast<std::uint32_t>(heads[i].begin);
            const auto place = [&](PartId part) {
                const std::size_t offset = pool->page_bytes_;
                pool->page_bytes_ += tile_bytes(layers[i], storage, part) * pool->layers_[i].n_kv_heads;
                return offset;
            };
            pool->k_offset_.push_back(place(PartId::k));
            pool->v_offset_.push_back(latent(layers[i]) ? pool->k_offset_.back() +
                                                              kernels::dtype_bytes(storage.dtype, layers[i].head_dim_k)
                                                        : place(PartId::v));
            if (i == 0) pool->layer_bytes_ = pool->page_bytes_;
        }
        if (memory == nullptr) pool->interleave(run_pages_of(layers, storage, pages, heads));
        pool->users_.resize(pages);
        pool->free_.resize(pages);
        std::iota(pool->free_.rbegin(), pool->free_.rend(), Page{0});
        pool->memory_ = memory != nullptr ? std::move(memory) : std::shared_ptr<std::byte>(take_bytes(bytes));
        pool->memory_bytes_ = bytes;
        if (pool->memory_ == nullptr) return out_of_memory();
        return pool;
    } catch (const std::bad_alloc&) {
        return out_of_memory();
    }
}

void KvPool::interleave(std::size_t run_pages) {
    run_pages_ = run_pages;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        k_offset_[layer] += layer * (run_pages - 1) * layer_bytes_;
        v_offset_[layer] += layer * (run_pages - 1) * layer_bytes_;
    }
}

std::uint32_t KvPool::head_dim(std::size_t layer, PartId part) const noexcept {
    return part == PartId::k ? layers_[layer].head_dim_k : layers_[layer].head_dim_v;
}

bool KvPool::is_latent(std::size_t layer) const noexcept { return latent(layers_[layer]); }

std::size_t KvPool::token_stride(std::size_t layer, PartId part) const noexcept {
    return is_latent(layer) ? layers_[layer].query_dim() : head_dim(layer, part);
}

kv::Header KvPool::header_of(std::size_t layer) const {
    kv::Header header;
    header.identity.n_kv_heads = heads(layer);
    header.identity.head_dim_k = head_dim(layer, PartId::k);
    header.identity.head_dim_v = head_dim(layer, PartId::v);
    return header;
}

std::size_t KvPool::tile_offset(std::size_t layer, PartId part, std::uint32_t head) const noexcept {
    const std::size_t first = part == PartId::k ? k_offset_[layer] : v_offset_[layer];
    const PartFormat* coded = format(layer, part);
    return first + head * (coded != nullptr ? coded->tile_bytes : tile_bytes(layers_[layer], dtype_, part));
}

std::size_t KvPool::part_bytes(std::size_t layer, PartId part) const noexcept {
    const PartFormat* coded = format(layer, part);
    return heads(layer) * (coded != nullptr ? coded->tile_bytes : tile_bytes(layers_[layer], dtype_, part));
}

Result<KvPool::Page> KvPool::take() {
    if (free_.empty()) {
        return fail(Errc::resource, "all {} pages of {} tokens of the KV cache are taken; ask for a larger one",
                    pages(), page_tokens);
    }
    const Page page = free_.back();
    free_.pop_back();
    users_[page] = 1;
    return page;
}

Status KvPool::copy(Page from, Page to) const {
    if (copy_) return copy_(from, to);
    const std::size_t piece = page_stride();
    for (std::size_t at = 0; at < page_bytes_; at += piece)
        std::memcpy(memory(to) + at * run_pages_, memory(from) + at * run_pages_, piece);
    return {};
}

void KvPool::drop(Page page) noexcept {
    if (--users_[page] == 0) free_.push_back(page);  // has room for all pages
}

}  // namespace hetero::engine
