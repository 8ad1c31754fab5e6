#include "engine/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/stack_memory.h"

namespace hetero::engine {
namespace {

using kernels::DType;
using kv::PartId;

// The largest magnitude that rounds to a finite value of the type.
float largest(DType dtype) {
    switch (dtype) {
        case DType::f16:
            return std::nextafter(65520.0F, 0.0F);  // the midpoint to 65536 rounds up, to infinity
        case DType::bf16:
            return std::nextafter(0x1.FFp127F, 0.0F);
        default:
            return std::numeric_limits<float>::max();
    }
}

}  // namespace

KvCache::KvCache(std::shared_ptr<KvPool> pool, std::uint64_t capacity) : pool_(std::move(pool)), capacity_(capacity) {
    pages_.reserve(KvPool::pages_for(capacity));
    memory_.reserve(KvPool::pages_for(capacity));
    in_memory_.resize(pool_->layers());
    if (pool_->tail_size() == 0) return;
    tail_.reset(new std::uint16_t[pool_->tail_size()]);
    open_.resize(pool_->layers());
    whole_.resize(pool_->layers());
}

Result<KvCache> KvCache::create(std::shared_ptr<KvPool> pool, std::uint64_t capacity) {
    try {
        return KvCache(std::move(pool), capacity);
    } catch (const std::exception&) {  // memory, or a length beyond it
        return fail(Errc::resource, "out of memory: the page table of {} tokens", capacity);
    }
}

KvCache& KvCache::operator=(KvCache&& other) noexcept {
    pool_.swap(other.pool_);
    std::swap(capacity_, other.capacity_);
    pages_.swap(other.pages_);
    memory_.swap(other.memory_);
    in_memory_.swap(other.in_memory_);
    on_device_.swap(other.on_device_);
    tail_.swap(other.tail_);
    open_.swap(other.open_);
    whole_.swap(other.whole_);
    return *this;
}

Result<KvCache> KvCache::fork(std::uint64_t n_tokens) const {
    HETERO_TRY(KvCache other, create(pool_, capacity_));
    const std::size_t shared = std::min<std::uint64_t>(KvPool::pages_for(n_tokens), pages_.size());
    for (std::size_t i = 0; i < shared; ++i) {
        pool_->share(pages_[i]);
        other.pages_.push_back(pages_[i]);
        other.memory_.push_back(memory_[i]);
    }
    other.in_memory_ = in_memory_;
    if (tail_) {
        std::copy_n(tail_.get(), pool_->tail_size(), other.tail_.get());
        other.open_ = open_;
        other.whole_ = whole_;
    }
    other.truncate(n_tokens);
    return other;
}

Status KvCache::prepare(std::uint64_t first, std::uint64_t end) {
    for (std::size_t i = first / KvPool::page_tokens; i < KvPool::pages_for(end); ++i) {
        const bool missing = i >= pages_.size();
        if (!missing && !pool_->is_shared(pages_[i])) continue;
        HETERO_TRY(const KvPool::Page page, pool_->take());
        std::byte* memory = pool_->memory(page);
        if (missing) {
            pages_.push_back(page);
            memory_.push_back(memory);
            continue;
        }
        if (Status copied = pool_->copy(pages_[i], page); !copied) {
            pool_->drop(page);
            return copied;
        }
        for (std::uint64_t& tokens : in_memory_) tokens = std::min(tokens, i * KvPool::page_tokens);
        pool_->drop(pages_[i]);
        pages_[i] = page;
        memory_[i] = memory;
    }
    return {};
}

void KvCache::truncate(std::uint64_t n_tokens) noexcept {
    for (std::size_t layer = 0; layer < open_.size(); ++layer) {
        if (n_tokens < whole_[layer]) whole_[layer] = 0;
        if (n_tokens / group_tokens(layer, PartId::k) < open_[layer]) reopen(layer, n_tokens);
    }
    for (std::uint64_t& tokens : in_memory_) tokens = std::min(tokens, n_tokens);
    while (pages_.size() > KvPool::pages_for(n_tokens)) {
        pool_->drop(pages_.back());
        pages_.pop_back();
        memory_.pop_back();
    }
}

std::size_t KvCache::row_bytes(std::size_t layer, PartId part) const noexcept {
    return kernels::dtype_bytes(dtype(), head_dim(layer, part));
}

std::byte* KvCache::row(std::size_t layer, PartId part, std::uint32_t head, std::uint64_t token) const noexcept {
    return memory_[token / KvPool::page_tokens] + pool_->tile_offset(layer, part, head) +
           token % KvPool::page_tokens * kernels::dtype_bytes(dtype(), pool_->token_stride(layer, part));
}

kernels::KvView KvCache::view(std::size_t layer, PartId part, std::uint32_t head) const noexcept {
    if (pool_->is_latent(layer)) part = PartId::k;
    if (const PartFormat* format = pool_->format(layer, part)) {
        kernels::KvView view;
        view.pages = memory_.data();
        view.offset = pool_->tile_offset(layer, part, head);
        view.codes = format->codes;
        view.token_stride = format->row_bytes * (kernels::is_paired(format->codes) ? 2 : 1);
        view.scale_offset = view.offset + format->scale_offset;
        view.zero_offset = format->zero_offset == 0 ? 0 : view.offset + format->zero_offset;
        view.group = format->group;
        view.group_tokens = format->group_tokens;
        if (format->group_tokens != 0) {
            view.open_begin = open_[layer] * format->group_tokens;
            view.open = tail_row(layer, head, view.open_begin);
        }
        return view;
    }
    return {dtype(), memory_.data(), pool_->tile_offset(layer, part, head), pool_->token_stride(layer, part)};
}

tl::unexpected<Error> KvCache::not_finite(std::size_t layer, PartId part, std::uint64_t token, std::uint32_t head,
                                          const float* values) const {
    const std::uint32_t dim = head_dim(layer, part);
    std::uint32_t at = 0;
    while (at + 1 < dim && std::fabs(values[at]) <= largest(dtype())) ++at;
    const float value = values[at];
    const std::string_view type = kernels::dtype_info(dtype()).name;
    const std::string place = fmt::format("layer {}, {}, token {}, head {}, dim {}", layer, kv::part_name(part), token,
                                          first_head(layer) + head, at);
    if (std::isfinite(value)) {
        return fail(Errc::bad_input, "{}: {} does not fit {}; use {}", place, value, type,
                    dtype() == DType::f16 ? "bf16" : "f32");
    }
    return fail(Errc::bad_input, "{}: the value is {}; the weights or the state are damaged, or the model overflows",
                place, std::isnan(value) ? "not a number" : "infinite");
}

Status KvCache::store(std::size_t layer, PartId part, std::uint64_t token, const float* values) {
    const kernels::Ops& ops = kernels::ops();
    const std::uint32_t dim = head_dim(layer, part);
    const float limit = largest(dtype());
    const bool codes = pool_->format(layer, part) != nullptr;
    StackMemory<1024> memory;  // room for usual heads, so that a step takes none
    std::pmr::vector<std::uint16_t> rounded(codes ? dim : 0, memory.get());
    if (group_tokens(layer, part) != 0) HETERO_CHECK(open_token(layer, token));
    for (std::uint32_t head = 0; head < heads(layer); ++head) {
        const float* source = values + std::size_t{head} * dim;
        float low = 0, high = 0;
        if (!ops.min_max(source, dim, &low, &high) || low < -limit || high > limit) {
            return not_finite(layer, part, token, head, source);
        }
        if (codes) {
            ops.f32_to_f16(source, rounded.data(), dim);
            HETERO_CHECK(store_codes(layer, part, head, token, rounded));
            continue;
        }
        std::byte* target = row(layer, part, head, token);
        switch (dtype()) {
            case DType::f16:
                ops.f32_to_f16(source, reinterpret_cast<std::uint16_t*>(target), dim);
                break;
            case DType::bf16:
                ops.f32_to_bf16(source, reinterpret_cast<std::uint16_t*>(target), dim);
                break;
            default:
                std::memcpy(target, source, dim * sizeof(float));
                break;
        }
    }
    return {};
}

void KvCache::save(std::size_t layer, PartId part, std::uint64_t first, std::uint64_t end,
                   std::span<std::byte> out) const {
    const std::size_t bytes = row_bytes(layer, part);
    std::byte* target = out.data();
    for (std::uint64_t token = first; token < end; ++token) {
        for (std::uint32_t head = 0; head < heads(layer); ++head, target += bytes) {
            std::memcpy(target, row(layer, part, head, token), bytes);
        }
    }
}

Status KvCache::load(std::size_t layer, PartId part, std::uint64_t first, std::uint64_t end,
                     std::span<const std::byte> in, std::uint32_t in_heads, std::uint32_t in_first) {
    const std::size_t bytes = row_bytes(layer, part), token_bytes = in_heads * bytes;
    const std::uint32_t dim = head_dim(layer, part);
    std::uint64_t token = first;
    while (token < end) {  // a page at a time
        const std::uint64_t stop = std::min(end, (token / KvPool::page_tokens + 1) * KvPool::page_tokens);
        const std::byte* const source = in.data() + (token - first) * token_bytes + in_first * bytes;
        bool finite = true;
        for (std::uint32_t head = 0; head < heads(layer); ++head) {
            const kernels::KvValues values{dtype(), source + head * bytes, stop - token, std::size_t{in_heads} * dim,
                                           dim};
            finite =
                kernels::ops().copy_finite(values, row(layer, part, head, token), pool_->token_stride(layer, part)) &&
                finite;
        }
        if (!finite) return refuse_not_finite(layer, part, token, stop, source, token_bytes);
        token = stop;
    }
    return {};
}

Status KvCache::refuse_not_finite(std::size_t layer, PartId part, std::uint64_t first, std::uint64_t end,
                                  const std::byte* in, std::size_t token_bytes) const {
    const std::size_t bytes = row_bytes(layer, part);
    std::vector<float> values(head_dim(layer, part));
    for (std::uint64_t token = first; token < end; ++token, in += token_bytes) {
        for (std::uint32_t head = 0; head < heads(layer); ++head) {
            kernels::ops().dequantize(dtype(), in + head * bytes, values.data(), values.size());
            const bool finite = std::all_of(values.begin(), values.end(), [](float one) { return std::isfinite(one); });
            if (!finite) return not_finite(layer, part, token, head, values.data());
        }
    }
    return {};
}

}  // namespace hetero::engine
