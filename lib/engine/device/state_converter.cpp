#include "engine/device/state_converter.h"

#include <algorithm>
#include <cstring>

#include "engine/kv_format.h"

namespace hetero::engine {
namespace {

constexpr std::size_t most_slot_bytes = std::size_t{32} << 20, least_slot_bytes = std::size_t{64} << 10;
constexpr std::size_t most_alignment = 7 * device_alignment;  // what is found, and six arrays

// What a kernel found, at the beginning of a slot.
struct Found {
    unsigned long long place = ~0ULL;
    float error = 0;
};
static_assert(sizeof(Found) <= device_alignment);

bool is_float(const quant::Codec& codec) { return !codec.quantized(); }

// The decoder of the codec refuses them; of infinities and NaN the values tell.
bool any_negative(std::span<const std::byte> scales) {
    std::uint16_t bits = 0;
    for (std::size_t i = 0; i + sizeof bits <= scales.size(); i += sizeof bits) {
        std::memcpy(&bits, scales.data() + i, sizeof bits);
        if (bits > 0x8000U) return true;
    }
    return false;
}

void copy_by(ThreadPool& pool, std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::size_t task_bytes = std::size_t{1} << 20;
    pool.parallel_for((bytes + task_bytes - 1) / task_bytes, [&](std::size_t task, int) {
        const std::size_t begin = task * task_bytes;
        std::memcpy(to + begin, from + begin, std::min(task_bytes, bytes - begin));
    });
}

}  // namespace

std::optional<kernels::DeviceCodec> device_codec(const kv::Scheme& scheme, std::uint32_t head_dim) {
    constexpr std::uint32_t most_dims = 1024;
    const quant::Params& params = scheme.params;
    const int mean_width = quant::water_filled_bits(scheme.codec);
    const auto codes = mean_width != 0 ? kernels::KvCodes::u8 : codes_of(scheme.codec, params);
    if (!codes || params.scale_dtype != kernels::DType::f16 || head_dim == 0 || head_dim > most_dims) return {};
    const quant::Codec& cpu = *quant::find_codec(scheme.codec);
    if (!cpu.check(params, head_dim)) return {};
    kernels::DeviceCodec codec{*codes, 0, 0, params.hadamard, mean_width};
    if (params.axis == quant::Axis::token) {
        codec.group = params.group == 0 ? head_dim : params.group;
        if (head_dim % codec.group == 0) return codec;
    } else if (params.axis == quant::Axis::channel && !params.hadamard && *codes != kernels::KvCodes::e4m3fn) {
        codec.group_tokens = cpu.token_step(params);
        if (codec.group_tokens != 0) return codec;
    }
    return {};
}

// Tokens of a part on their way, and what of a slot they take: floats and codes, those that come in first.
struct StateConverter::Job {
    const kv::EncodedTokens& from;
    const quant::Codec& to;
    const quant::Params& params;  // of `to`
    const quant::Shape& shape;
    const quant::EncodedSpans& out;
    ThreadPool& pool;
    kernels::DeviceCodec codec;
    kernels::DType type;  // of the floats
    bool encodes;

    struct Places {
        std::size_t in = device_alignment, out = 0, end = 0;  // of values
        std::size_t in_scale = 0, in_zero = 0, out_scale = 0, out_zero = 0;
    };
    [[nodiscard]] quant::EncodedRange in_range(std::uint64_t first, std::uint64_t n) const {
        return quant::encoded_range(from.codec, from.params, shape, first, n);
    }
    [[nodiscard]] quant::EncodedRange out_range(std::uint64_t first, std::uint64_t n) const {
        return quant::encoded_range(to, params, shape, first, n);
    }
    [[nodiscard]] static Places places(const quant::EncodedBytes& in, const quant::EncodedBytes& out) {
        Places at;
        at.in_scale = at.in + device_aligned(in.values);
        at.in_zero = at.in_scale + device_aligned(in.scale);
        at.out = at.in_zero + device_aligned(in.zero);
        at.out_scale = at.out + device_aligned(out.values);
        at.out_zero = at.out_scale + device_aligned(out.scale);
        at.end = at.out_zero + device_aligned(out.zero);
        return at;
    }
    [[nodiscard]] Places places_of(std::uint64_t first, std::uint64_t n) const {
        return places(in_range(first, n).size, out_range(first, n).size);
    }
    // As many whole groups as a slot has room for; 0: not even one.
    [[nodiscard]] std::uint64_t tokens_at_once(std::size_t slot_bytes) const {
        const std::uint64_t step = encodes ? to.token_step(params) : from.codec.token_step(from.params);
        const std::uint64_t n = std::min(step, shape.tokens);
        return (slot_bytes - most_alignment) / (in_range(0, n).size.total() + out_range(0, n).size.total()) * step;
    }
};

Result<std::unique_ptr<StateConverter>> StateConverter::create(const Device& device) {
    const kernels::DeviceOps& ops = *device.ops;
    kernels::DeviceInfo info;
    HETERO_CHECK(check(ops.device_info(device.index, info)));
    std::uint64_t available = info.free_bytes;
    if (device.memory_bytes != 0) available = std::min<std::uint64_t>(available, device.memory_bytes);
    if (available < 2 * least_slot_bytes) {
        return fail(Errc::resource, "{}: converting a state needs at least {} bytes of device memory, {} are {}",
                    device_name(device), 2 * least_slot_bytes, available,
                    available == device.memory_bytes ? "allowed" : "free");
    }
    const std::size_t slot_bytes =
        std::min<std::size_t>(most_slot_bytes, available / 2 / device_alignment * device_alignment);
    std::unique_ptr<StateConverter> made(new StateConverter(device, slot_bytes));
    for (Slot& slot : made->slots_) {
        HETERO_TRY(slot.stream, make_stream(ops, device.index));
        HETERO_TRY(slot.host, take_pinned(ops, device.index, slot_bytes));
        HETERO_TRY(slot.device, take_device(ops, device.index, slot_bytes));
    }
    return made;
}

bool StateConverter::takes(const kv::Scheme& from, const kv::Scheme& to, std::uint32_t head_dim) const {
    const quant::Codec *in = quant::find_codec(from.codec), *out = quant::find_codec(to.codec);
    if (in == nullptr || out == nullptr || is_float(*in) == is_float(*out)) return false;
    return device_codec(is_float(*in) ? to : from, head_dim).has_value();
}

Result<bool> StateConverter::convert(const kv::EncodedTokens& from, const quant::Codec& to, const quant::Params& params,
                                     const quant::Shape& shape, const quant::EncodedSpans& out, ThreadPool& pool,
                                     float& error) {
    const bool encodes = is_float(from.codec);
    kv::Scheme coded;
    coded.codec = encodes ? to.name() : from.codec.name();
    coded.params = encodes ? params : from.params;
    const auto codec = device_codec(coded, shape.head_dim);
    if (!codec || shape.elements() == 0) return codec.has_value();
    const kernels::DType type = encodes ? from.codec.value_dtype(from.params) : to.value_dtype(params);
    const Job job{from, to, params, shape, out, pool, *codec, type, encodes};
    const std::uint64_t at_once = job.tokens_at_once(slot_bytes_);
    if (at_once == 0 || any_negative(from.scale)) return false;

    float largest = error;
    const auto run = [&]() -> Result<bool> {
        std::size_t turn = 0;
        for (std::uint64_t first = 0; first < shape.tokens; first += at_once, ++turn) {
            Slot& slot = slots_[turn % slots_.size()];
            HETERO_TRY(const bool good, take(slot, job, largest));
            if (!good) return false;
            HETERO_CHECK(put(slot, job, first, std::min(at_once, shape.tokens - first)));
        }
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            HETERO_TRY(const bool good, take(slots_[(turn + i) % slots_.size()], job, largest));
            if (!good) return false;
        }
        error = largest;
        return true;
    };
    auto done = run();
    settle();
    return done;
}

Status StateConverter::put(Slot& slot, const Job& job, std::uint64_t first, std::uint64_t n) {
    const kernels::DeviceOps& ops = *device_.ops;
    kernels::DeviceStream stream = slot.stream.get();
    const quant::EncodedRange in = job.in_range(first, n);
    const Job::Places at = job.places_of(first, n);
    std::byte *host = slot.host.get(), *there = slot.device.get();
    const Found nothing;
    std::memcpy(host, &nothing, sizeof nothing);
    copy_by(job.pool, host + at.in, in.values(job.from.values).data(), in.size.values);
    copy_by(job.pool, host + at.in_scale, in.scale(job.from.scale).data(), in.size.scale);
    copy_by(job.pool, host + at.in_zero, in.zero(job.from.zero).data(), in.size.zero);
    slot.busy = true;
    slot.first = first;
    slot.n = n;
    HETERO_CHECK(check(ops.copy(stream, there, host, at.out)));
    auto* place = reinterpret_cast<unsigned long long*>(there + offsetof(Found, place));
    auto* error = reinterpret_cast<float*>(there + offsetof(Found, error));
    const auto halves = [&](std::size_t offset) { return reinterpret_cast<std::uint16_t*>(there + offset); };
    const std::size_t heads = job.shape.heads, dim = job.shape.head_dim;
    kernels::DeviceCodes codes;
    std::byte* floats = nullptr;
    if (job.encodes) {
        floats = there + at.in;
        codes = {reinterpret_cast<std::uint8_t*>(there + at.out), halves(at.out_scale),
                 job.out.zero.empty() ? nullptr : halves(at.out_zero)};
        HETERO_CHECK(check(ops.kv_quantize(stream, job.codec, job.type, floats, n, heads, dim, codes, place)));
    } else {
        floats = there + at.out;
        codes = {reinterpret_cast<std::uint8_t*>(there + at.in), halves(at.in_scale),
                 job.from.zero.empty() ? nullptr : halves(at.in_zero)};
        HETERO_CHECK(check(ops.kv_dequantize(stream, job.codec, {codes.codes, codes.scale, codes.zero}, n, heads, dim,
                                             job.type, floats, place)));
    }
    HETERO_CHECK(check(ops.kv_error(stream, job.codec, {codes.codes, codes.scale, codes.zero}, n, heads, dim, job.type,
                                    floats, error)));
    HETERO_CHECK(check(ops.copy(stream, host + at.out, there + at.out, at.end - at.out)));
    return check(ops.copy(stream, host, there, sizeof(Found)));
}

Result<bool> StateConverter::take(Slot& slot, const Job& job, float& error) {
    if (!slot.busy) return true;
    HETERO_CHECK(check(device_.ops->synchronize(slot.stream.get())));
    slot.busy = false;
    Found found;
    std::memcpy(&found, slot.host.get(), sizeof found);
    if (found.place != Found{}.place) return false;
    error = std::max(error, found.error);
    const quant::EncodedRange out = job.out_range(slot.first, slot.n);
    const Job::Places at = job.places_of(slot.first, slot.n);
    const std::byte* host = slot.host.get();
    copy_by(job.pool, out.values(job.out.values).data(), host + at.out, out.size.values);
    copy_by(job.pool, out.scale(job.out.scale).data(), host + at.out_scale, out.size.scale);
    copy_by(job.pool, out.zero(job.out.zero).data(), host + at.out_zero, out.size.zero);
    return true;
}

void StateConverter::settle() noexcept {
    for (Slot& slot : slots_) {
        if (slot.busy) (void)device_.ops->synchronize(slot.stream.get());
        slot.busy = false;
    }
}

}  // namespace hetero::engine
