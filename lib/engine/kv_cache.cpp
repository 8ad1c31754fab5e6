#include "engine/kv_cache.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace hetero::engine {
namespace {

using kernels::DType;
using kv::PartId;

constexpr std::size_t alignment = 64;  // of each layer's K and V: a cache line

std::size_t round_up(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

bool is_latent(const model::KvLayout& layer) { return layer.kind == model::KvLayout::Kind::latent; }

// The V of a latent layer lies in the rows of its K.
std::size_t part_bytes(const model::KvLayout& layer, DType dtype, PartId part, std::uint64_t capacity) {
    if (is_latent(layer) && part == PartId::v) return 0;
    const std::size_t dim = part == PartId::k ? layer.query_dim() : layer.head_dim_v;
    return round_up(dim * layer.n_kv_heads * capacity * kernels::dtype_bytes(dtype, 1));
}

// With the heads that are kept.
std::vector<model::KvLayout> kept_layers(std::span<const model::KvLayout> layers, std::span<const Range> heads) {
    std::vector<model::KvLayout> kept(layers.begin(), layers.end());
    for (std::size_t i = 0; i < heads.size(); ++i) kept[i].n_kv_heads = static_cast<std::uint32_t>(heads[i].size());
    return kept;
}

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

bool all_finite(DType dtype, const std::byte* bytes, std::size_t n) {
    if (dtype == DType::f32) {
        for (std::size_t i = 0; i < n; ++i) {
            float value = 0;
            std::memcpy(&value, bytes + i * sizeof(float), sizeof(float));
            if (!std::isfinite(value)) return false;
        }
        return true;
    }
    const unsigned exponent = dtype == DType::f16 ? 0x7C00U : 0x7F80U;
    for (std::size_t i = 0; i < n; ++i) {
        std::uint16_t value = 0;
        std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
        if ((value & exponent) == exponent) return false;
    }
    return true;
}

}  // namespace

std::uint64_t KvCache::bytes_needed(std::span<const model::KvLayout> layers, DType dtype, std::uint64_t capacity,
                                    std::span<const Range> heads) {
    std::uint64_t bytes = 0;
    for (const model::KvLayout& layer : kept_layers(layers, heads)) {
        for (const PartId part : {PartId::k, PartId::v}) {
            // A part cannot overflow: heads and sizes are bounded by the model's limits, the capacity by its context.
            if (__builtin_add_overflow(bytes, part_bytes(layer, dtype, part, capacity), &bytes)) {
                return std::numeric_limits<std::uint64_t>::max();
            }
        }
    }
    return bytes;
}

Result<KvCache> KvCache::create(std::span<const model::KvLayout> layers, DType dtype, std::uint64_t capacity,
                                std::span<const Range> heads) {
    KvCache cache;
    cache.layers_ = kept_layers(layers, heads);
    cache.first_heads_.resize(layers.size());
    for (std::size_t i = 0; i < heads.size(); ++i) {
        cache.first_heads_[i] = static_cast<std::uint32_t>(heads[i].begin);
    }
    cache.dtype_ = dtype;
    cache.capacity_ = capacity;
    std::size_t offset = 0;
    for (const model::KvLayout& layer : cache.layers_) {
        cache.k_offset_.push_back(offset);
        offset += part_bytes(layer, dtype, PartId::k, capacity);
        cache.v_offset_.push_back(
            is_latent(layer) ? cache.k_offset_.back() + kernels::dtype_bytes(dtype, layer.head_dim_k) : offset);
        offset += part_bytes(layer, dtype, PartId::v, capacity);
    }
    cache.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, round_up(std::max(offset, alignment)))));
    if (cache.memory_ == nullptr) {
        return fail(Errc::resource, "out of memory: the KV cache of {} tokens needs {} bytes", capacity, offset);
    }
    return cache;
}

std::uint32_t KvCache::head_dim(std::size_t layer, PartId part) const noexcept {
    return part == PartId::k ? layers_[layer].head_dim_k : layers_[layer].head_dim_v;
}

std::size_t KvCache::row_bytes(std::size_t layer, PartId part) const noexcept {
    return kernels::dtype_bytes(dtype_, head_dim(layer, part));
}

std::size_t KvCache::token_stride(std::size_t layer, PartId part) const noexcept {
    return is_latent(layers_[layer]) ? layers_[layer].query_dim() : head_dim(layer, part);
}

std::byte* KvCache::row(std::size_t layer, PartId part, std::uint32_t head, std::uint64_t token) const noexcept {
    const std::size_t offset = part == PartId::k ? k_offset_[layer] : v_offset_[layer];
    return memory_.get() + offset +
           (head * capacity_ + token) * kernels::dtype_bytes(dtype_, token_stride(layer, part));
}

kernels::KvView KvCache::view(std::size_t layer, PartId part, std::uint32_t head) const noexcept {
    if (is_latent(layers_[layer])) part = PartId::k;
    return {dtype_, row(layer, part, head, 0), token_stride(layer, part)};
}

tl::unexpected<Error> KvCache::not_finite(std::size_t layer, PartId part, std::uint64_t token, std::uint32_t head,
                                          const float* values) const {
    const std::uint32_t dim = head_dim(layer, part);
    std::uint32_t at = 0;
    while (at + 1 < dim && std::fabs(values[at]) <= largest(dtype_)) ++at;
    const float value = values[at];
    const std::string_view type = kernels::dtype_info(dtype_).name;
    const std::string place = fmt::format("layer {}, {}, token {}, head {}, dim {}", layer, kv::part_name(part), token,
                                          first_head(layer) + head, at);
    if (std::isfinite(value)) {
        return fail(Errc::bad_input, "{}: {} does not fit {}; use {}", place, value, type,
                    dtype_ == DType::f16 ? "bf16" : "f32");
    }
    return fail(Errc::bad_input, "{}: the value is {}; the weights or the state are damaged, or the model overflows",
                place, std::isnan(value) ? "not a number" : "infinite");
}

Status KvCache::store(std::size_t layer, PartId part, std::uint64_t token, const float* values) {
    const kernels::Ops& ops = kernels::ops();
    const std::uint32_t dim = head_dim(layer, part);
    const float limit = largest(dtype_);
    for (std::uint32_t head = 0; head < heads(layer); ++head) {
        const float* source = values + std::size_t{head} * dim;
        float low = 0, high = 0;
        if (!ops.min_max(source, dim, &low, &high) || low < -limit || high > limit) {
            return not_finite(layer, part, token, head, source);
        }
        std::byte* target = row(layer, part, head, token);
        switch (dtype_) {
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
    const std::size_t bytes = row_bytes(layer, part);
    const std::uint32_t dim = head_dim(layer, part);
    for (std::uint64_t token = first; token < end; ++token) {
        const std::byte* source = in.data() + ((token - first) * in_heads + in_first) * bytes;
        for (std::uint32_t head = 0; head < heads(layer); ++head, source += bytes) {
            if (!all_finite(dtype_, source, dim)) {
                std::vector<float> values(dim);
                kernels::ops().dequantize(dtype_, source, values.data(), dim);
                return not_finite(layer, part, token, head, values.data());
            }
            std::memcpy(row(layer, part, head, token), source, bytes);
        }
    }
    return {};
}

}  // namespace hetero::engine
