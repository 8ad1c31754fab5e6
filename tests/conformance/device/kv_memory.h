// Pages of K and V as the engine keeps them, and their copy on a device.
#pragma once
#include <algorithm>

#include "conformance/kernels/inputs.h"
#include "device.h"
#include "engine/kv_cache.h"

namespace hetero::test {

using kv::PartId;

// One sequence of the host's cache, whose pages hold a pattern where nothing was stored.
class HostKv {
public:
    HostKv(const model::KvLayout& layout, const engine::KvStorage& storage, std::uint64_t max_tokens)
        : layout_(layout),
          pool_(*engine::KvPool::create({&layout, 1}, storage, engine::KvPool::pages_for(max_tokens))) {
        for (std::uint64_t page = 0; page < pool_->pages(); ++page)
            std::memset(pool_->memory(static_cast<engine::KvPool::Page>(page)), 0x5A, pool_->page_bytes());
        cache_.emplace(*engine::KvCache::create(pool_, max_tokens));
        REQUIRE(cache_->prepare(0, max_tokens));
    }
    [[nodiscard]] engine::KvCache& cache() { return *cache_; }
    [[nodiscard]] const engine::KvCache& cache() const { return *cache_; }
    [[nodiscard]] const engine::KvPool& pool() const { return *pool_; }
    [[nodiscard]] std::size_t pages() const { return pool_->pages(); }
    // Of page i of the sequence, which is page i of the pool.
    [[nodiscard]] std::span<const std::byte> page(std::size_t i) const {
        return {pool_->memory(static_cast<engine::KvPool::Page>(i)), pool_->page_bytes()};
    }

    [[nodiscard]] kernels::DeviceKv part(PartId part, std::byte* memory) const {
        kernels::DeviceKv kv;
        kv.memory = memory;
        kv.page_bytes = pool_->page_bytes();
        kv.n_heads = layout_.n_kv_heads;
        kv.head_dim = pool_->head_dim(0, part);
        kv.offset = pool_->tile_offset(0, part, 0);
        kv.head_bytes = pool_->tile_offset(0, part, 1) - kv.offset;
        kv.dtype = pool_->dtype();
        kv.token_stride = pool_->token_stride(0, part);
        if (const engine::PartFormat* format = pool_->format(0, part)) {
            kv.codes = format->codes;
            kv.token_stride = format->row_bytes * (kernels::is_paired(format->codes) ? 2 : 1);
            kv.scale_offset = format->scale_offset;
            kv.zero_offset = format->zero_offset;
            kv.group = format->group;
            kv.group_tokens = format->group_tokens;
            kv.rotated = format->params.hadamard;
        }
        return kv;
    }

private:
    model::KvLayout layout_;
    std::shared_ptr<engine::KvPool> pool_;
    std::optional<engine::KvCache> cache_;
};

// Where page i of a sequence lies on the device: not in order.
inline std::uint32_t device_page(std::size_t i, std::size_t sequence, std::size_t n_sequences) {
    return static_cast<std::uint32_t>((i ^ 1U) * n_sequences + sequence);
}
inline std::size_t device_pages(std::size_t per_sequence, std::size_t n_sequences) {
    return (per_sequence + 1) / 2 * 2 * n_sequences;
}

inline engine::KvStorage storage_of(const std::string& name) {
    if (const auto dtype = kernels::dtype_from_name(name)) return {*dtype};
    return {DType::f16, *engine::resident_codecs(name)};
}

}  // namespace hetero::test
