// What the codecs with a scale per group share: the geometry of groups, packing of codes, rotation, checks and
// messages. A codec says what a code is. Values are worked on in blocks that stay in a core's cache, by kernels::ops().
#pragma once
#include "kernels/api/ops.h"
#include "quant/groups.h"

namespace hetero::quant {

using kernels::KvOutput;
using kernels::KvValues;

class GroupedCodec : public Codec {
public:
    [[nodiscard]] std::uint64_t row_elements(const Params& params, std::uint32_t head_dim) const noexcept override;
    [[nodiscard]] bool has_scale() const noexcept override { return true; }
    [[nodiscard]] Status check(const Params& params, std::uint32_t head_dim) const override;
    [[nodiscard]] std::uint64_t groups(const Params& params, const Shape& shape) const noexcept override;
    [[nodiscard]] std::array<std::uint64_t, 3> scale_shape(const Params& params,
                                                           const Shape& shape) const noexcept override;
    [[nodiscard]] std::uint64_t token_step(const Params& params) const noexcept override;
    [[nodiscard]] bool streams_codes(const Params& params) const noexcept override {
        if (bits() != 8 || !by_rows(params)) return false;
        return params.axis == Axis::channel ? !params.hadamard
                                            : params.axis == Axis::token && (!params.hadamard || params.group == 0);
    }
    [[nodiscard]] bool streams_values(const Params& params) const noexcept override {
        return any_type() && (!params.hadamard || (params.axis == Axis::token && by_rows(params) && params.group == 0));
    }
    [[nodiscard]] EncodedBytes bytes(const Params& params, const Shape& shape) const noexcept override;
    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override;
    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override;
    Status encode_from(const Params& params, const Shape& shape, DType type, std::span<const std::byte> values,
                       const EncodedSpans& out, float* error) const override;
    Status decode_to(const Params& params, const Shape& shape, std::span<const std::byte> values,
                     std::span<const std::byte> scale, std::span<const std::byte> zero, const FloatsOut& out,
                     float* error) const override;

protected:
    [[nodiscard]] virtual int bits() const noexcept = 0;                                  // of a code, 2 to 8
    [[nodiscard]] virtual bool is_signed(const Params&) const noexcept { return false; }  // codes in two's complement
    // True: encode_rows() and decode_rows() take values of every type, and tell the error. Else they get f32 and null.
    [[nodiscard]] virtual bool any_type() const noexcept { return false; }
    // The largest code where choose() and encode_rows() are those of kernels::Ops::encode_rows, else 0.
    [[nodiscard]] virtual int levels(const Params&) const noexcept { return 0; }
    // Scales and codes are made in one by encode_rows(), encode_columns() and encode_rotated() of kernels::Ops.
    [[nodiscard]] bool by_rows(const Params& params) const noexcept {
        return levels(params) != 0 && params.scale_dtype == DType::f16;
    }
    // Of n groups with these extremes, what their codes are made from. `min` is null where params.symmetric: `max` is
    // the largest magnitude then. False where some cannot be represented.
    [[nodiscard]] virtual bool choose(const Params& params, const float* min, const float* max, std::size_t n,
                                      float* scale, float* zero) const noexcept = 0;
    // Turns them into what is stored: f16 values where the scale type is f16.
    virtual void round_to_stored(std::span<float> /*scale*/, std::span<float> /*zero*/) const noexcept {}
    // Codes, a byte each, of rows that are a group or part of one, with a scale and zero each; x.n bytes a row.
    virtual void encode_rows(const Params& params, const KvValues& x, const float* scale, const float* zero,
                             std::uint8_t* q, std::size_t q_stride, float* error) const noexcept = 0;
    // False where a value is infinite in x.type.
    [[nodiscard]] virtual bool decode_rows(const Params& params, const std::uint8_t* q, std::size_t q_stride,
                                           const float* scale, const float* zero, const KvOutput& x,
                                           float* error) const noexcept = 0;

private:
    class Encoder;
    class Decoder;
};

}  // namespace hetero::quant
