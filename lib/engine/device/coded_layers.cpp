#include "engine/device/coded_layers.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "engine/device/device_layer.h"
#include "engine/device/state_converter.h"
#include "engine/kv_format.h"
#include "quant/codec.h"

namespace hetero::engine {

using kv::PartId;

namespace {

constexpr std::size_t piece_bytes = std::size_t{8} << 20, most_piece_bytes = std::size_t{64} << 20;  // of values
constexpr std::size_t n_buffers = 4;  // of layers that stay on the device: two are made while two are sent
constexpr std::array parts = {PartId::k, PartId::v};

// A part of a layer: in which codec, and how it is worked on.
struct PartWork {
    kv::Header header;
    const kv::Scheme& scheme;
    const quant::Codec& codec;
    std::size_t heads, dim, row_bytes;  // bytes of a token's values
    std::uint64_t step, piece;          // tokens of a group; of a piece

    PartWork(const KvPool& pool, const LayerSchemes& schemes, std::size_t layer, PartId part)
        : header(pool.header_of(layer)),
          scheme(schemes.of(layer, part)),
          codec(*quant::find_codec(scheme.codec)),
          heads(pool.heads(layer)),
          dim(pool.head_dim(layer, part)),
          row_bytes(kernels::dtype_bytes(pool.dtype(), heads * dim)),
          step(codec.token_step(scheme.params)),
          piece(std::max<std::uint64_t>(piece_bytes / row_bytes / std::max<std::uint64_t>(step, 1), 1) * step) {}

    [[nodiscard]] quant::Shape shape(std::uint64_t tokens) const {
        return {tokens, static_cast<std::uint32_t>(heads), static_cast<std::uint32_t>(dim)};
    }
    [[nodiscard]] quant::EncodedBytes bytes(std::uint64_t tokens) const {
        return codec.bytes(scheme.params, shape(tokens));
    }
    // Of the arrays, in the order of kv::part_arrays, for a layer of `tokens`.
    [[nodiscard]] std::array<std::size_t, std::size(kv::part_arrays)> array_bytes(std::uint64_t tokens) const {
        const kv::KeptRows rows = kv::kept_rows(scheme, tokens);
        const quant::EncodedBytes middle = bytes(rows.middle);
        return {middle.values, middle.scale, middle.zero, rows.sinks * row_bytes, rows.tail * row_bytes};
    }
    [[nodiscard]] std::size_t slot_bytes(std::uint64_t tokens) const {
        std::size_t sum = 0;
        for (const std::size_t one : array_bytes(tokens)) sum += device_aligned(one);
        return sum;
    }
};

}  // namespace

// Of K and V, on the device and at the beginning of a slot.
struct CodedLayers::Found {
    unsigned long long place[2] = {~0ULL, ~0ULL};
    float error[2] = {0, 0};
};

CodedLayers::CodedLayers(const Setup& setup) : setup_(setup), coded_(setup.pool->layers()) {
    for (std::size_t layer = 0; layer < coded_.size(); ++layer)
        for (const PartId part : parts) {
            const PartWork work(*setup.pool, setup.schemes, layer, part);
            const std::uint64_t tokens = std::min(work.piece, setup.capacity);
            const quant::EncodedBytes codes = work.bytes(tokens);
            values_bytes_ = std::max(values_bytes_, device_aligned(tokens * work.row_bytes));
            codes_bytes_ = std::max(codes_bytes_, device_aligned(codes.values));
            scale_bytes_ = std::max(scale_bytes_, device_aligned(codes.scale));
        }
}

LayerSchemes CodedLayers::possible(const KvPool& pool, const LayerSchemes& wanted, bool coded) {
    if (wanted.k.size() != pool.layers() || wanted.v.size() != pool.layers()) return {};
    LayerSchemes schemes = wanted;
    bool any = false;
    for (std::size_t layer = 0; layer < pool.layers(); ++layer)
        for (const PartId part : parts) {
            if (pool.format(layer, part) != nullptr) return {};
            kv::Scheme& scheme = (part == PartId::k ? schemes.k : schemes.v)[layer];
            bool there = scheme.source_dtype == pool.dtype() && device_codec(scheme, pool.head_dim(layer, part));
            if (there) {
                const PartWork work(pool, schemes, layer, part);
                there = work.step * work.row_bytes <= most_piece_bytes;
            }
            any = any || there;
            if (!there) scheme = scheme_of(KvStorage(pool.dtype()), part);
        }
    return any || !coded ? schemes : LayerSchemes{};
}

std::uint64_t CodedLayers::bytes_needed(const Setup& setup) {
    const CodedLayers sizes(setup);
    return device_alignment + sizes.values_bytes_ + sizes.codes_bytes_ + 2 * sizes.scale_bytes_ +
           (setup.stay ? n_buffers * DeviceLayerBuffer::bytes_needed(sizes.layer_bytes()) : 0);
}

std::size_t CodedLayers::layer_bytes() const {
    std::size_t most = 0;
    for (std::size_t layer = 0; layer < coded_.size(); ++layer) {
        std::size_t both = 0;
        for (const PartId part : parts)
            both += PartWork(*setup_.pool, setup_.schemes, layer, part).slot_bytes(setup_.capacity);
        most = std::max(most, both);
    }
    return most;
}

std::shared_ptr<DeviceLayerBuffer> CodedLayers::free_buffer() const {
    for (const std::shared_ptr<DeviceLayerBuffer>& buffer : buffers_) {
        if (buffer.use_count() != 1) continue;
        std::atomic_thread_fence(std::memory_order_acquire);  // what its last holder did is done
        return buffer;
    }
    return nullptr;
}

Result<std::unique_ptr<CodedLayers>> CodedLayers::create(const Setup& setup) {
    std::unique_ptr<CodedLayers> made(new CodedLayers(setup));
    const kernels::DeviceOps& ops = *setup.device.ops;
    HETERO_TRY(made->device_,
               take_device(ops, setup.device.index,
                           device_alignment + made->values_bytes_ + made->codes_bytes_ + 2 * made->scale_bytes_));
    for (Slot& slot : made->slots_) {
        HETERO_TRY(slot.host, take_pinned(ops, setup.device.index, device_alignment + made->layer_bytes()));
    }
    for (std::size_t i = 0; setup.stay && i < n_buffers; ++i) {
        HETERO_TRY(auto buffer, DeviceLayerBuffer::create(setup.device, made->layer_bytes()));
        made->buffers_.push_back(std::move(buffer));
    }
    return made;
}

Status CodedLayers::begin(kernels::DeviceStream stream, const DevicePages& pages,
                          const kernels::DeviceSequences& sequences, std::size_t layer, std::uint64_t end) {
    const kernels::DeviceOps& ops = *setup_.device.ops;
    Slot& slot = slots_[layer % 2];
    slot.end = end;
    slot.first = setup_.shapes.empty() ? 0 : setup_.shapes[layer].first_token(end);
    coded_[layer].reset();
    slot.buffer = nullptr;
    slot.buffer = free_buffer();
    HETERO_CHECK(check(ops.fill(stream, device_.get(), 0xFF, sizeof Found::place)));
    HETERO_CHECK(check(ops.fill(stream, device_.get() + offsetof(Found, error), 0, sizeof Found::error)));
    for (const PartId part : parts) HETERO_CHECK(code_part(stream, pages, sequences, layer, part));
    return check(ops.copy(stream, slot.host.get(), device_.get(), sizeof(Found)));
}

Status CodedLayers::code_part(kernels::DeviceStream stream, const DevicePages& pages,
                              const kernels::DeviceSequences& sequences, std::size_t layer, PartId part) {
    const kernels::DeviceOps& ops = *setup_.device.ops;
    const Slot& slot = slots_[layer % 2];
    const PartWork work(*setup_.pool, setup_.schemes, layer, part);
    const std::uint64_t n_tokens = slot.end - slot.first;
    const kv::KeptRows rows = kv::kept_rows(work.scheme, n_tokens);
    const kernels::DeviceKv from = pages.part(layer, part);

    std::byte* out = slot.buffer != nullptr ? slot.buffer->memory() : slot.host.get() + device_alignment;
    if (part == PartId::v) out += PartWork(*setup_.pool, setup_.schemes, layer, PartId::k).slot_bytes(n_tokens);
    std::array<std::byte*, std::size(kv::part_arrays)> to;
    const auto sizes = work.array_bytes(n_tokens);
    for (std::size_t i = 0; i < to.size(); out += device_aligned(sizes[i++])) to[i] = out;

    std::byte* const values = device_.get() + device_alignment;
    const kernels::DeviceCodes codes{
        reinterpret_cast<std::uint8_t*>(values + values_bytes_),
        reinterpret_cast<std::uint16_t*>(values + values_bytes_ + codes_bytes_),
        work.scheme.params.symmetric
            ? nullptr
            : reinterpret_cast<std::uint16_t*>(values + values_bytes_ + codes_bytes_ + scale_bytes_)};
    const auto collect = [&](std::uint64_t first, std::uint64_t n) {
        return check(ops.kv_collect(stream, from, sequences, 0, slot.first + first, n, values));
    };
    const auto keep = [&](std::uint64_t first, std::uint64_t n, std::byte* kept) -> Status {
        for (std::uint64_t at = 0; at < n; at += work.piece) {
            const std::uint64_t count = std::min(work.piece, n - at);
            HETERO_CHECK(collect(first + at, count));
            HETERO_CHECK(check(ops.copy(stream, kept + at * work.row_bytes, values, count * work.row_bytes)));
        }
        return {};
    };
    HETERO_CHECK(keep(0, rows.sinks, to[3]));
    HETERO_CHECK(keep(rows.sinks + rows.middle, rows.tail, to[4]));
    if (!work.codec.quantized()) return keep(0, rows.middle, to[0]);

    const kernels::DeviceCodec codec = *device_codec(work.scheme, static_cast<std::uint32_t>(work.dim));
    auto* found = reinterpret_cast<Found*>(device_.get());
    const auto index = static_cast<std::size_t>(part);
    for (std::uint64_t at = 0; at < rows.middle; at += work.piece) {
        const std::uint64_t n = std::min(work.piece, rows.middle - at);
        const kernels::DType type = setup_.pool->dtype();
        HETERO_CHECK(collect(rows.sinks + at, n));
        HETERO_CHECK(
            check(ops.kv_quantize(stream, codec, type, values, n, work.heads, work.dim, codes, &found->place[index])));
        HETERO_CHECK(check(ops.kv_error(stream, codec, {codes.codes, codes.scale, codes.zero}, n, work.heads, work.dim,
                                        type, values, &found->error[index])));
        const auto range = quant::encoded_range(work.codec, work.scheme.params, work.shape(rows.middle), at, n);
        HETERO_CHECK(check(ops.copy(stream, to[0] + range.begin.values, codes.codes, range.size.values)));
        HETERO_CHECK(check(ops.copy(stream, to[1] + range.begin.scale, codes.scale, range.size.scale)));
        if (codes.zero != nullptr)
            HETERO_CHECK(check(ops.copy(stream, to[2] + range.begin.zero, codes.zero, range.size.zero)));
    }
    return {};
}

Result<bool> CodedLayers::finish(std::size_t layer) {
    Slot& slot = slots_[layer % 2];
    const std::shared_ptr<DeviceLayerBuffer> buffer = std::move(slot.buffer);
    Found found;
    std::memcpy(&found, slot.host.get(), sizeof found);
    if (found.place[0] != Found{}.place[0] || found.place[1] != Found{}.place[1]) return false;
    CodedLayer coded;
    coded.max_abs_error = std::max(found.error[0], found.error[1]);
    const std::uint64_t n_tokens = slot.end - slot.first;
    std::shared_ptr<DeviceLayer> remote;
    if (buffer != nullptr) remote = std::make_shared<DeviceLayer>(buffer, setup_.pool->header_of(layer), n_tokens);
    std::size_t at = 0;
    for (const PartId id : parts) {
        const PartWork work(*setup_.pool, setup_.schemes, layer, id);
        const auto sizes = work.array_bytes(n_tokens);
        coded.parts_on_device += work.codec.quantized() ? 1 : 0;
        kv::Part& part = coded.layer.part(id);
        if (remote == nullptr) {
            HETERO_TRY(part, kv::allocate_part(work.header, work.scheme, n_tokens, id));
        } else {
            remote->part(id).scheme = work.scheme;
        }
        for (std::size_t i = 0; i < sizes.size(); at += device_aligned(sizes[i++])) {
            if (remote != nullptr) {
                remote->part(id).places[i] = {at, sizes[i]};
            } else {
                std::copy_n(slot.host.get() + device_alignment + at, sizes[i], (part.*kv::part_arrays[i]).bytes.data());
            }
        }
    }
    coded.remote = std::move(remote);
    coded_[layer] = std::move(coded);
    return true;
}

std::optional<CodedLayer> CodedLayers::take(std::size_t layer) {
    std::optional<CodedLayer> taken = std::move(coded_[layer]);
    coded_[layer].reset();
    return taken;
}

void CodedLayers::forget() {
    for (auto& one : coded_) one.reset();
}

}  // namespace hetero::engine
