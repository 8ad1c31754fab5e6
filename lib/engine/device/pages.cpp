#include "engine/device/pages.h"

#include <algorithm>
#include <cstring>

namespace hetero::engine {

using kv::PartId;

namespace {

constexpr std::size_t least_lock_bytes = std::size_t{8} << 20;
constexpr std::size_t system_page = 4096;  // bytes

// Whole runs, that share no page of the system with others.
std::size_t lock_pages_of(const KvPool& pool) {
    if (reinterpret_cast<std::uintptr_t>(pool.memory(0)) % system_page != 0) return pool.pages();
    const std::size_t run_bytes = pool.run_pages() * pool.page_bytes();
    std::size_t runs = (least_lock_bytes + run_bytes - 1) / run_bytes;
    while (runs * run_bytes % system_page != 0) ++runs;
    return runs * pool.run_pages();
}

}  // namespace

std::vector<DevicePages::Place> DevicePages::places_of(const KvPool& pool, const KvTiers& tiers,
                                                       std::size_t& page_bytes, std::size_t& slot_bytes) {
    std::vector<Place> places;
    page_bytes = slot_bytes = 0;
    for (std::size_t layer = 0; layer < pool.layers(); ++layer) {
        std::size_t in_slot = 0;
        for (const PartId part : {PartId::k, PartId::v}) {
            Place place;
            // The V of a latent layer lies in the rows of its K, and goes where that goes.
            const bool within = pool.is_latent(layer) && part == PartId::v;
            place.host_offset = pool.tile_offset(layer, part, 0);
            place.bytes = within ? 0 : pool.part_bytes(layer, part);
            place.in_slot = tiers.of(layer, within ? PartId::k : part) != Tier::device;
            std::size_t& end = place.in_slot ? in_slot : page_bytes;
            place.offset = end;
            if (within) place.offset = places.back().offset + place.host_offset - places.back().host_offset;
            end += place.bytes;
            places.push_back(place);
        }
        slot_bytes = std::max(slot_bytes, in_slot);
    }
    return places;
}

DevicePages::Bytes DevicePages::bytes_needed(const KvPool& pool, const KvTiers& tiers) {
    std::size_t page_bytes = 0, slot_bytes = 0;
    (void)places_of(pool, tiers, page_bytes, slot_bytes);
    return {pool.pages() * page_bytes, 2 * pool.pages() * slot_bytes};
}

Result<std::unique_ptr<DevicePages>> DevicePages::create(const Device& device, KvPool& pool, const KvTiers& tiers) {
    const kernels::DeviceOps& ops = *device.ops;
    std::unique_ptr<DevicePages> made(new DevicePages(device, pool));
    made->places_ = places_of(pool, tiers, made->page_bytes_, made->slot_bytes_);
    HETERO_TRY(made->memory_,
               take_device(ops, device.index, std::max<std::size_t>(pool.pages() * made->page_bytes_, 1)));
    for (DeviceBytes& slot : made->slots_) {
        if (made->slot_bytes_ == 0) break;
        HETERO_TRY(slot, take_device(ops, device.index, pool.pages() * made->slot_bytes_));
    }
    if (!tiers.any(Tier::file) && pool.page_bytes() != 0 && pool.pages() != 0) {  // pages of a file are to be let go
        made->lock_pages_ = lock_pages_of(pool);
        made->tried_.resize((pool.pages() + made->lock_pages_ - 1) / made->lock_pages_);
        made->locked_.reserve(made->tried_.size());
    }
    return made;
}

DevicePages::~DevicePages() {
    for (std::byte* memory : locked_) (void)device_.ops->unregister_host(device_.index, memory);
}

void DevicePages::lock(PageList pages) {
    if (lock_pages_ == 0) return;
    for (const KvPool::Page page : pages) {
        const std::size_t index = page / lock_pages_;
        if (tried_[index]) continue;
        tried_[index] = true;
        const std::size_t begin = index * lock_pages_ * pool_.page_bytes();
        const std::size_t bytes = std::min(lock_pages_ * pool_.page_bytes(), pool_.memory_bytes() - begin);
        std::byte* memory = pool_.memory(0) + begin;
        if (!device_.ops->register_host(device_.index, memory, bytes)) locked_.push_back(memory);
    }
}

kernels::DeviceKv DevicePages::shape_of(const KvPool& pool, std::size_t layer, PartId part) {
    kernels::DeviceKv out;
    out.n_heads = pool.heads(layer);
    out.head_dim = pool.head_dim(layer, part);
    out.head_bytes = pool.is_latent(layer) ? 0 : pool.part_bytes(layer, part) / out.n_heads;
    out.dtype = pool.dtype();
    out.token_stride = pool.token_stride(layer, part);
    if (const PartFormat* format = pool.format(layer, part)) {
        out.codes = format->codes;
        out.token_stride = format->row_bytes * (kernels::is_paired(format->codes) ? 2 : 1);
        out.scale_offset = format->scale_offset;
        out.zero_offset = format->zero_offset;
        out.group = format->group;
        out.group_tokens = format->group_tokens;
        out.rotated = format->params.hadamard;
        out.tail_offset = format->group_tokens != 0 ? pool.tail_offset(layer) : 0;
    }
    return out;
}

kernels::DeviceKv DevicePages::part(std::size_t layer, PartId part) const {
    const Place& place = places_[2 * layer + static_cast<std::size_t>(part)];
    kernels::DeviceKv out = shape_of(pool_, layer, part);
    out.memory = memory_of(layer, place);
    out.page_bytes = stride_of(place);
    out.offset = place.offset;
    return out;
}

Status DevicePages::move(kernels::DeviceStream stream, std::size_t layer, PageList pages, bool in_slot, Way way) const {
    for (std::size_t i = 2 * layer; i < 2 * layer + 2; ++i) {
        const Place& place = places_[i];
        if (place.bytes == 0 || place.in_slot != in_slot) continue;
        std::byte* const memory = memory_of(layer, place);
        const std::size_t stride = stride_of(place);
        for (std::size_t begin = 0; begin < pages.size();) {
            std::size_t end = begin + 1;  // neighbours go together
            const auto together = [&](KvPool::Page page, KvPool::Page next) {
                return next == page + 1 && pool_.memory(next) == pool_.memory(page) + pool_.page_stride() &&
                       (lock_pages_ == 0 || next % lock_pages_ != 0);
            };
            while (end < pages.size() && together(pages[end - 1], pages[end])) ++end;
            std::byte* there = memory + pages[begin] * stride + place.offset;
            std::byte* here = pool_.memory(pages[begin]) + place.host_offset;
            const std::size_t step = pool_.page_stride();
            HETERO_CHECK(
                check(way == Way::to_host
                          ? device_.ops->copy_2d(stream, here, step, there, stride, place.bytes, end - begin)
                          : device_.ops->copy_2d(stream, there, stride, here, step, place.bytes, end - begin)));
            begin = end;
        }
    }
    return {};
}

Status DevicePages::to_host(kernels::DeviceStream stream, std::size_t layer, PageList pages) const {
    return move(stream, layer, pages, false, Way::to_host);
}
Status DevicePages::to_device(kernels::DeviceStream stream, std::size_t layer, PageList pages) const {
    return move(stream, layer, pages, false, Way::to_device);
}
Status DevicePages::bring(kernels::DeviceStream stream, std::size_t layer, PageList pages) const {
    return move(stream, layer, pages, true, Way::to_device);
}
Status DevicePages::take_back(kernels::DeviceStream stream, std::size_t layer, PageList pages) const {
    return move(stream, layer, pages, true, Way::to_host);
}

Status DevicePages::copy(kernels::DeviceStream stream, KvPool::Page from, KvPool::Page to) const {
    HETERO_CHECK(check(
        device_.ops->copy(stream, memory_.get() + to * page_bytes_, memory_.get() + from * page_bytes_, page_bytes_)));
    for (const Place& place : places_) {  // streams are idle between steps: the pool's memory is what it says
        if (place.in_slot && place.bytes != 0)
            std::memcpy(pool_.memory(to) + place.host_offset, pool_.memory(from) + place.host_offset, place.bytes);
    }
    return {};
}

}  // namespace hetero::engine
