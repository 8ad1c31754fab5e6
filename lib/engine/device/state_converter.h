// Parts of KV states between floats and codes on a device: what kv-quantize --device runs on. Tokens pass through two
// buffers, page-locked here and likewise there, each with a stream of its own, so that the copies of one run beside the
// kernels and copies of the other.
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "engine/device/device.h"
#include "engine/device/handles.h"
#include "kernels/api/device.h"
#include "kv/convert.h"

namespace hetero::engine {

// How a device has a coded scheme of heads of head_dim; nothing: it has no kernel for it.
[[nodiscard]] std::optional<kernels::DeviceCodec> device_codec(const kv::Scheme& scheme, std::uint32_t head_dim);

class StateConverter final : public kv::TokenConverter {
public:
    // Takes what it needs of the device, at most device.memory_bytes. Errors: resource.
    static Result<std::unique_ptr<StateConverter>> create(const Device& device);
    ~StateConverter() override { settle(); }

    [[nodiscard]] std::string name() const override { return device_name(device_); }
    // int8, int4 and fp8_e4m3fn with f16 scales, per token in groups that divide a head, or per channel, and wf2 to wf9;
    // either way, from or to f32, f16 or bf16.
    [[nodiscard]] bool takes(const kv::Scheme& from, const kv::Scheme& to, std::uint32_t head_dim) const override;
    // Errors: resource, of the device.
    Result<bool> convert(const kv::EncodedTokens& from, const quant::Codec& to, const quant::Params& params,
                         const quant::Shape& shape, const quant::EncodedSpans& out, ThreadPool& pool,
                         float& error) override;

private:
    struct Job;
    // The tokens of a job that are in a buffer, and where in it.
    struct Slot {
        Stream stream;
        PinnedBytes host;
        DeviceBytes device;
        bool busy = false;
        std::uint64_t first = 0, n = 0;  // tokens
    };
    StateConverter(const Device& device, std::size_t slot_bytes) : device_(device), slot_bytes_(slot_bytes) {}
    Status put(Slot& slot, const Job& job, std::uint64_t first, std::uint64_t n);
    Result<bool> take(Slot& slot, const Job& job, float& error);  // waits for it
    void settle() noexcept;                                       // nothing is in the streams any more

    Device device_;
    std::size_t slot_bytes_;
    std::array<Slot, 2> slots_;
};

}  // namespace hetero::engine
