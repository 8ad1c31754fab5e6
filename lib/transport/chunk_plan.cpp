#include "transport/chunk_plan.h"

#include <algorithm>
#include <new>

namespace hetero::transport {
namespace {

std::uint64_t pick(const quant::EncodedBytes& bytes, Array array) {
    return array == Array::values ? bytes.values : array == Array::scale ? bytes.scale : bytes.zero;
}

template <class PartType>
auto& member_of(PartType& part, Array array) noexcept {
    switch (array) {
        case Array::scale:
            return part.scale;
        case Array::zero:
            return part.zero;
        case Array::sink:
            return part.sink;
        case Array::tail:
            return part.tail;
        default:
            return part.values;
    }
}

}  // namespace

kv::Tensor& array_of(kv::Part& part, Array array) noexcept { return member_of(part, array); }
const kv::Tensor& array_of(const kv::Part& part, Array array) noexcept { return member_of(part, array); }
std::vector<std::uint32_t>& array_of(kv::PartChecksums& part, Array array) noexcept { return member_of(part, array); }
const std::vector<std::uint32_t>& array_of(const kv::PartChecksums& part, Array array) noexcept {
    return member_of(part, array);
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

ChunkWalk::ChunkWalk(const kv::Header& header) : header_(&header) {
    enter_part();
    settle();
}

void ChunkWalk::enter_part() {
    if (place_.sequence >= header_->sequences.size() || header_->identity.n_layers == 0) return;
    const kv::Scheme& scheme = header_->scheme(place_.layer, place_.part);
    codec_ = quant::find_codec(scheme.codec);  // known: check_header
    rows_ = kv::kept_rows(scheme, header_->stored_tokens(place_.sequence, place_.layer));
    const std::uint64_t chunks = (rows_.middle + header_->tokens_per_chunk - 1) / header_->tokens_per_chunk;
    chunks_ = std::max<std::uint64_t>(chunks, rows_.sinks + rows_.tail != 0 ? 1 : 0);
}

void ChunkWalk::next_array() noexcept {
    if (place_.array != Array::tail) {
        place_.array = static_cast<Array>(static_cast<int>(place_.array) + 1);
    } else {
        place_.array = Array::values;
        ++place_.chunk;
    }
}

// Offset and length of the place; length 0 where it has none.
void ChunkWalk::find_bytes() {
    const kv::Scheme& scheme = header_->scheme(place_.layer, place_.part);
    const std::uint32_t heads = header_->stored_heads(), dim = header_->identity.head_dim(place_.part);
    if (place_.array >= Array::sink) {  // all of them go with chunk 0
        const std::uint64_t kept = place_.array == Array::sink ? rows_.sinks : rows_.tail;
        const kv::DType dtype = scheme.source_dtype;
        const std::uint64_t row = std::uint64_t{heads} * dim;
        place_.offset = 0;
        place_.length = place_.chunk == 0 ? kernels::dtype_bytes(dtype, kept * row) : 0;
        return;
    }
    const std::uint64_t first = std::min(rows_.middle, std::uint64_t{place_.chunk} * header_->tokens_per_chunk);
    const std::uint64_t end = std::min<std::uint64_t>(rows_.middle, first + header_->tokens_per_chunk);
    // Chunks start at multiples of the groups of tokens, so that the bytes before one are those of its tokens.
    const auto before = [&](std::uint64_t rows) {
        return pick(codec_->bytes(scheme.params, {rows, heads, dim}), place_.array);
    };
    place_.offset = before(first);
    place_.length = before(end) - place_.offset;
}

void ChunkWalk::settle() {
    const std::uint32_t n_layers = header_->identity.n_layers;
    for (;;) {
        if (place_.sequence >= header_->sequences.size() || n_layers == 0) {
            done_ = true;
            return;
        }
        if (place_.chunk < chunks_) {
            find_bytes();
            place_.layer_index = std::uint64_t{place_.sequence} * n_layers + place_.layer;
            place_.slot = static_cast<std::uint32_t>(place_.piece % wire_slots);
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
        enter_part();
    }
}

void ChunkWalk::advance() {
    ++place_.piece;
    next_array();
    settle();
}

std::uint64_t total_pieces(const kv::Header& header) {
    ChunkWalk walk(header);
    while (!walk.done()) walk.advance();
    return walk.place().piece;
}

std::uint64_t total_layers(const kv::Header& header) noexcept {
    return std::uint64_t{header.sequences.size()} * header.identity.n_layers;
}

std::uint64_t layer_bytes(const kv::Header& header, std::uint64_t layer_index) {
    const std::size_t layer = layer_index % header.identity.n_layers;
    const std::uint64_t tokens = header.stored_tokens(layer_index / header.identity.n_layers, layer);
    return kv::part_bytes(header, header.scheme(layer, kv::PartId::k), tokens, kv::PartId::k) +
           kv::part_bytes(header, header.scheme(layer, kv::PartId::v), tokens, kv::PartId::v);
}

Result<std::shared_ptr<kv::Layer>> allocate_layer(const kv::Header& header, std::uint64_t layer_index) {
    const std::size_t layer = layer_index % header.identity.n_layers;
    const std::uint64_t tokens = header.stored_tokens(layer_index / header.identity.n_layers, layer);
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
