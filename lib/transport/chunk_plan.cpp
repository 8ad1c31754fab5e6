#include "transport/chunk_plan.h"

#include <algorithm>
#include <new>

namespace hetero::transport {
namespace {

quant::EncodedBytes bytes_of(const kv::Header& header, std::size_t layer, kv::PartId part, std::uint64_t tokens) {
    const kv::Scheme& scheme = header.scheme(layer, part);
    const quant::Codec* codec = quant::find_codec(scheme.codec);  // known: check_header
    return codec->bytes(scheme.params, {tokens, header.stored_heads(), header.identity.head_dim(part)});
}

std::uint64_t pick(const quant::EncodedBytes& bytes, Array array) {
    return array == Array::values ? bytes.values : array == Array::scale ? bytes.scale : bytes.zero;
}

}  // namespace

kv::Tensor& array_of(kv::Part& part, Array array) noexcept {
    return array == Array::values ? part.values : array == Array::scale ? part.scale : part.zero;
}
const kv::Tensor& array_of(const kv::Part& part, Array array) noexcept {
    return array == Array::values ? part.values : array == Array::scale ? part.scale : part.zero;
}
std::vector<std::uint32_t>& array_of(kv::PartChecksums& part, Array array) noexcept {
    return array == Array::values ? part.values : array == Array::scale ? part.scale : part.zero;
}

FrameHeader ChunkPlace::frame() const noexcept {
    FrameHeader header;
    header.kind = FrameKind::chunk;
    header.sequence = sequence;
    header.layer = layer;
    header.part = part;
    header.array = array;
    header.chunk = chunk;
    header.slot = slot;
    header.length = length;
    return header;
}

bool ChunkPlace::matches(const FrameHeader& header) const noexcept {
    return header.kind == FrameKind::chunk && header.sequence == sequence && header.layer == layer &&
           header.part == part && header.array == array && header.chunk == chunk && header.slot == slot &&
           header.length == length;
}

ChunkWalk::ChunkWalk(const kv::Header& header) : header_(&header) { settle(); }

std::uint64_t ChunkWalk::chunks() const noexcept {
    const std::uint64_t tokens = header_->stored_tokens(place_.sequence, place_.layer);
    return (tokens + header_->tokens_per_chunk - 1) / header_->tokens_per_chunk;
}

void ChunkWalk::next_array() noexcept {
    if (place_.array != Array::zero) {
        place_.array = static_cast<Array>(static_cast<int>(place_.array) + 1);
    } else {
        place_.array = Array::values;
        ++place_.chunk;
    }
}

void ChunkWalk::settle() {
    const std::uint32_t n_layers = header_->identity.n_layers;
    for (;;) {
        if (place_.sequence >= header_->sequences.size() || n_layers == 0) {
            done_ = true;
            return;
        }
        if (place_.chunk < chunks()) {
            const std::uint64_t tokens = header_->stored_tokens(place_.sequence, place_.layer);
            const std::uint64_t first = std::uint64_t{place_.chunk} * header_->tokens_per_chunk;
            const std::uint64_t end = std::min<std::uint64_t>(tokens, first + header_->tokens_per_chunk);
            // Chunks start at multiples of the channel groups, so that the bytes before one are those of its tokens.
            place_.offset = pick(bytes_of(*header_, place_.layer, place_.part, first), place_.array);
            place_.length = pick(bytes_of(*header_, place_.layer, place_.part, end), place_.array) - place_.offset;
            place_.layer_index = std::uint64_t{place_.sequence} * n_layers + place_.layer;
            place_.slot = static_cast<std::uint32_t>(next_slot_ % wire_slots);
            if (place_.length > 0) return;
            next_array();
            continue;
        }
        place_.chunk = 0;
        place_.array = Array::values;
        if (place_.part == kv::PartId::k) {
            place_.part = kv::PartId::v;
        } else {
            place_.part = kv::PartId::k;
            if (++place_.layer == n_layers) {
                place_.layer = 0;
                ++place_.sequence;
            }
        }
    }
}

void ChunkWalk::advance() {
    ++next_slot_;
    next_array();
    settle();
}

std::uint64_t total_layers(const kv::Header& header) noexcept {
    return std::uint64_t{header.sequences.size()} * header.identity.n_layers;
}

std::uint64_t layer_bytes(const kv::Header& header, std::size_t sequence, std::size_t layer) {
    const std::uint64_t tokens = header.stored_tokens(sequence, layer);
    return bytes_of(header, layer, kv::PartId::k, tokens).total() +
           bytes_of(header, layer, kv::PartId::v, tokens).total();
}

Result<std::shared_ptr<kv::Layer>> allocate_layer(const kv::Header& header, std::size_t sequence, std::size_t layer) {
    const std::uint64_t tokens = header.stored_tokens(sequence, layer);
    try {
        auto out = std::make_shared<kv::Layer>();
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            auto part = kv::allocate_part(header, header.scheme(layer, id), tokens, id);
            if (!part) return fail_with(part.error(), fmt::format("layer {}", layer));
            out->part(id) = std::move(*part);
        }
        return out;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "no memory for layer {}", layer);
    }
}

}  // namespace hetero::transport
