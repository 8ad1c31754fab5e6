// What the codecs with a scale per group share: the geometry of groups, packing of codes, rotation, checks and
// messages. A codec says what a code is.
#pragma once
#include "quant/groups.h"

namespace hetero::quant {

class GroupedCodec : public Codec {
public:
    [[nodiscard]] std::uint64_t row_elements(const Params& params, std::uint32_t head_dim) const noexcept override;
    [[nodiscard]] bool has_scale() const noexcept override { return true; }
    [[nodiscard]] Status check(const Params& params, std::uint32_t head_dim) const override;
    [[nodiscard]] std::uint64_t groups(const Params& params, const Shape& shape) const noexcept override;
    [[nodiscard]] std::array<std::uint64_t, 3> scale_shape(const Params& params,
                                                           const Shape& shape) const noexcept override;
    [[nodiscard]] std::uint64_t token_step(const Params& params) const noexcept override;
    [[nodiscard]] EncodedBytes bytes(const Params& params, const Shape& shape) const noexcept override;
    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override;
    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override;

protected:
    // Integer codes of the channel axis: the codes' range.
    struct Range {
        int low = 0, high = 0;
    };

    [[nodiscard]] virtual int bits() const noexcept = 0;  // of a code, 2 to 8
    [[nodiscard]] virtual GroupScale choose(const Params& params, float min, float max) const noexcept = 0;
    // What is stored of them: f16 values where the scale type is f16. Codes are made from what choose() gives.
    [[nodiscard]] virtual GroupScale stored(const GroupScale& chosen) const noexcept { return chosen; }
    [[nodiscard]] virtual Range range(const Params& params) const noexcept = 0;  // signed codes: low < 0
    // One group's n codes, a byte each.
    virtual void encode_run(const Params& params, const float* x, const GroupScale& group, std::uint8_t* q,
                            std::size_t n) const noexcept = 0;
    virtual void decode_run(const Params& params, const std::uint8_t* q, const GroupScale& group, float* x,
                            std::size_t n) const noexcept = 0;

private:
    struct Encoder;
    struct Decoder;
};

}  // namespace hetero::quant
