// K and V that stay in memory as codes.
#include <algorithm>
#include <cstring>

#include "base/stack_memory.h"
#include "engine/kv_cache.h"
#include "quant/rotation.h"

namespace hetero::engine {

using kernels::KvCodes;
using kv::PartId;

namespace {

constexpr std::uint64_t page_tokens = KvPool::page_tokens;
constexpr std::size_t scale_bytes = 1024;  // of a token's head that need no heap

// Of a page's token or group of tokens; `scale` and `zero` are one after the other, `step` bytes apart.
void scatter(const PartFormat& format, std::byte* tile, std::size_t offset, std::size_t row,
             std::span<const std::byte> from) {
    for (std::size_t g = 0; g < format.groups(); ++g)
        std::memcpy(tile + offset + 2 * (g * page_tokens + row), from.data() + 2 * g, 2);
}
void collect(const PartFormat& format, const std::byte* tile, std::size_t offset, std::size_t row,
             std::span<std::byte> to) {
    for (std::size_t g = 0; g < format.groups(); ++g)
        std::memcpy(to.data() + 2 * g, tile + offset + 2 * (g * page_tokens + row), 2);
}

bool halves_finite(std::span<const std::byte> bytes, bool signed_ok) {
    for (std::size_t i = 0; i + 2 <= bytes.size(); i += 2) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + i, 2);
        if ((bits & 0x7C00U) == 0x7C00U || (!signed_ok && (bits & 0x8000U) != 0 && bits != 0x8000U)) return false;
    }
    return true;
}

}  // namespace

std::byte* KvCache::tile(std::size_t layer, PartId part, std::uint32_t head, std::uint64_t token) const noexcept {
    return memory_[token / page_tokens] + pool_->tile_offset(layer, part, head);
}

std::uint16_t* KvCache::tail_row(std::size_t layer, std::uint32_t head, std::uint64_t token) const noexcept {
    const PartFormat& format = *pool_->format(layer, PartId::k);
    return tail_.get() + pool_->tail_offset(layer) +
           (head * format.group_tokens + token % format.group_tokens) * format.head_dim;
}

// Whether the tail takes the token: of K in groups of tokens.
Status KvCache::open_token(std::size_t layer, std::uint64_t token) {
    const std::uint64_t group = token / group_tokens(layer, PartId::k);
    if (group == open_[layer] + 1) HETERO_CHECK(close_group(layer));
    if (group != open_[layer]) return fail(Errc::internal, "K of token {} is stored out of order", token);
    whole_[layer] = 0;
    return {};
}

// `rounded`: [head_dim], values of f16.
Status KvCache::store_codes(std::size_t layer, PartId part, std::uint32_t head, std::uint64_t token,
                            std::span<const std::uint16_t> rounded) {
    const PartFormat& format = *pool_->format(layer, part);
    if (format.group_tokens != 0) {
        std::memcpy(tail_row(layer, head, token), rounded.data(), rounded.size_bytes());
        return {};
    }
    StackMemory<scale_bytes> memory;
    std::pmr::vector<std::byte> scale(2 * format.groups(), memory.get()),
        zero(format.zero_offset != 0 ? scale.size() : 0, memory.get());
    std::byte* to = tile(layer, part, head, token);
    const std::size_t row = token % page_tokens;
    HETERO_CHECK(format.codec->encode_from(format.params, {1, 1, static_cast<std::uint32_t>(format.head_dim), token},
                                           kernels::DType::f16, std::as_bytes(rounded),
                                           {{to + row * format.row_bytes, format.row_bytes}, scale, zero}, nullptr));
    scatter(format, to, format.scale_offset, row, scale);
    if (!zero.empty()) scatter(format, to, format.zero_offset, row, zero);
    return {};
}

// The codes of the open group's first `rows` tokens. Spans: [row][row_bytes], [head_dim], [head_dim].
Status KvCache::encode_tail(std::size_t layer, std::uint32_t head, std::size_t rows, std::span<std::byte> codes,
                            std::span<std::byte> scale, std::span<std::byte> zero) const {
    const PartFormat& format = *pool_->format(layer, PartId::k);
    const std::uint64_t first = open_[layer] * format.group_tokens;
    const std::span<const std::uint16_t> values(tail_row(layer, head, first), rows * format.head_dim);
    return format.codec->encode_from(format.params, {rows, 1, static_cast<std::uint32_t>(format.head_dim), first},
                                     kernels::DType::f16, std::as_bytes(values), {codes, scale, zero}, nullptr);
}

Status KvCache::close_group(std::size_t layer) {
    const PartFormat& format = *pool_->format(layer, PartId::k);
    const std::uint64_t first = open_[layer] * format.group_tokens;
    const std::size_t scale_bytes = 2 * format.head_dim, row = first % page_tokens;
    const std::size_t at = row / format.group_tokens * scale_bytes;
    for (std::uint32_t head = 0; head < heads(layer); ++head) {
        std::byte* to = tile(layer, PartId::k, head, first);
        const bool zeros = format.zero_offset != 0;
        HETERO_CHECK(encode_tail(
            layer, head, format.group_tokens, {to + row * format.row_bytes, format.group_tokens * format.row_bytes},
            {to + format.scale_offset + at, scale_bytes}, {to + format.zero_offset + at, zeros ? scale_bytes : 0}));
    }
    ++open_[layer];
    return {};
}

void KvCache::stored_elsewhere(std::size_t layer, std::uint64_t end) noexcept {
    if (end == 0) return;
    open_[layer] = (end - 1) / group_tokens(layer, PartId::k);
    whole_[layer] = 0;
}

// Brings the closed group that has token n_tokens back to the tail: the values that its codes stand for.
void KvCache::reopen(std::size_t layer, std::uint64_t n_tokens) noexcept {
    const PartFormat& format = *pool_->format(layer, PartId::k);
    const std::uint64_t group = n_tokens / format.group_tokens, first = group * format.group_tokens;
    open_[layer] = group;
    whole_[layer] = 0;
    const std::size_t at = first % page_tokens / format.group_tokens * format.head_dim;
    for (std::uint32_t head = 0; head < heads(layer); ++head)
        for (std::uint64_t token = first; token < n_tokens; ++token) {
            const std::byte* from = tile(layer, PartId::k, head, token);
            const std::byte* codes = from + token % page_tokens * format.row_bytes;
            std::uint16_t* to = tail_row(layer, head, token);
            for (std::size_t d = 0; d < format.head_dim; ++d) {
                const bool half = kernels::is_paired(format.codes);
                auto code = std::to_integer<int>(codes[half ? d / 2 : d]);
                if (half) code = d % 2 == 0 ? code & 15 : code >> 4;
                if (format.codes == KvCodes::i4) code = (code ^ 8) - 8;
                if (format.codes == KvCodes::i8) code = static_cast<std::int8_t>(code);
                std::uint16_t bits[2] = {};
                std::memcpy(&bits[0], from + format.scale_offset + 2 * (at + d), 2);
                if (format.zero_offset != 0) std::memcpy(&bits[1], from + format.zero_offset + 2 * (at + d), 2);
                float factors[2] = {};
                kernels::ops().f16_to_f32(bits, factors, 2);
                const float value = static_cast<float>(code) * factors[0] + factors[1];
                kernels::ops().f32_to_f16(&value, to + d, 1);
            }
        }
}

Status KvCache::save_codes(std::size_t layer, PartId part, std::uint64_t first, std::uint64_t end,
                           kv::Part& out) const {
    const PartFormat& format = *pool_->format(layer, part);
    const std::size_t row_bytes = format.row_bytes, n_heads = heads(layer), dim = format.head_dim;
    const bool zeros = format.zero_offset != 0;
    std::span<std::byte> values(out.values.bytes), scale(out.scale.bytes), zero(out.zero.bytes);
    if (format.group_tokens == 0) {
        const std::size_t scales = 2 * format.groups();
        for (std::uint64_t token = first; token < end; ++token)
            for (std::uint32_t head = 0; head < n_heads; ++head) {
                const std::size_t index = (token - first) * n_heads + head, row = token % page_tokens;
                const std::byte* from = tile(layer, part, head, token);
                std::memcpy(values.data() + index * row_bytes, from + row * row_bytes, row_bytes);
                collect(format, from, format.scale_offset, row, scale.subspan(index * scales, scales));
                if (zeros) collect(format, from, format.zero_offset, row, zero.subspan(index * scales, scales));
            }
        return {};
    }
    std::vector<std::byte> codes(format.group_tokens * row_bytes);
    for (std::uint64_t begin = first; begin < end; begin += format.group_tokens) {  // first is a multiple of it
        const std::uint64_t group = begin / format.group_tokens, rows = std::min(format.group_tokens, end - begin);
        const bool coded = group < open_[layer] || end == whole_[layer];
        for (std::uint32_t head = 0; head < n_heads; ++head) {
            const std::size_t at = 2 * ((begin - first) / format.group_tokens * n_heads + head) * dim;
            const std::span<std::byte> to_scale = scale.subspan(at, 2 * dim);
            const std::span<std::byte> to_zero = zeros ? zero.subspan(at, 2 * dim) : zero;
            if (coded) {
                const std::byte* from = tile(layer, part, head, begin);
                const std::size_t offset = 2 * (begin % page_tokens / format.group_tokens) * dim;
                std::memcpy(codes.data(), from + begin % page_tokens * row_bytes, rows * row_bytes);
                std::memcpy(to_scale.data(), from + format.scale_offset + offset, 2 * dim);
                if (zeros) std::memcpy(to_zero.data(), from + format.zero_offset + offset, 2 * dim);
            } else {
                if (group != open_[layer]) return fail(Errc::internal, "K of group {} is not in memory", group);
                HETERO_CHECK(
                    encode_tail(layer, head, rows, std::span(codes).first(rows * row_bytes), to_scale, to_zero));
            }
            for (std::uint64_t row = 0; row < rows; ++row)
                std::memcpy(values.data() + ((begin - first + row) * n_heads + head) * row_bytes,
                            codes.data() + row * row_bytes, row_bytes);
        }
    }
    return {};
}

Status KvCache::load_codes(std::size_t layer, PartId part, std::uint64_t first, std::uint64_t end, const kv::Part& in,
                           std::uint32_t in_heads, std::uint32_t in_first) {
    const PartFormat& format = *pool_->format(layer, part);
    const std::size_t row_bytes = format.row_bytes, dim = format.head_dim;
    const bool zeros = format.zero_offset != 0;
    if (!halves_finite(in.scale.bytes, false) || !halves_finite(in.zero.bytes, true)) {
        return fail(Errc::bad_input, "layer {}, {}: a scale or zero is not finite; the state is damaged", layer,
                    kv::part_name(part));
    }
    if (format.codes == KvCodes::e4m3fn) {
        for (const std::byte code : in.values.bytes)
            if ((code & std::byte{127}) == std::byte{127})
                return fail(Errc::bad_input, "layer {}, {}: a value is not a number; the state is damaged", layer,
                            kv::part_name(part));
    }
    const std::byte *values = in.values.bytes.data(), *scale = in.scale.bytes.data(), *zero = in.zero.bytes.data();
    for (std::uint64_t token = first; token < end; ++token)
        for (std::uint32_t head = 0; head < heads(layer); ++head) {
            const std::size_t index = (token - first) * in_heads + in_first + head, row = token % page_tokens;
            std::byte* to = tile(layer, part, head, token);
            std::memcpy(to + row * row_bytes, values + index * row_bytes, row_bytes);
            if (format.group_tokens == 0) {
                const std::size_t scales = 2 * format.groups();
                scatter(format, to, format.scale_offset, row, {scale + index * scales, scales});
                if (zeros) scatter(format, to, format.zero_offset, row, {zero + index * scales, scales});
            } else if (token % format.group_tokens == 0) {
                const std::size_t from = 2 * ((token - first) / format.group_tokens * in_heads + in_first + head) * dim;
                const std::size_t at = 2 * (row / format.group_tokens) * dim;
                std::memcpy(to + format.scale_offset + at, scale + from, 2 * dim);
                if (zeros) std::memcpy(to + format.zero_offset + at, zero + from, 2 * dim);
            }
        }
    if (format.group_tokens != 0) {
        reopen(layer, end);
        whole_[layer] = end;
    }
    return {};
}

}  // namespace hetero::engine
