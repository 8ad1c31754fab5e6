// compat:lmdeploy8, compat:lmdeploy4: the KV formats of LMDeploy's quant_policy 8 and 4
// (https://github.com/InternLM/lmdeploy), per token and head: q = trunc(x / s + z + 1/2), x' = (q - z) * s, s = (max -
// min) / levels and z = -min / s, both stored as f16 after the codes were made. LMDeploy divides by zero where all
// values are equal; here s is 1 then.
#include <algorithm>
#include <cmath>

#include "kernels/api/ops.h"
#include "quant/grouped_codec.h"

namespace hetero::quant {
namespace {

template <int Bits>
class Lmdeploy final : public GroupedCodec {
public:
    [[nodiscard]] std::string_view name() const noexcept override {
        return Bits == 8 ? "compat:lmdeploy8" : "compat:lmdeploy4";
    }
    [[nodiscard]] DType value_dtype(const Params&) const noexcept override { return DType::u8; }
    [[nodiscard]] Params default_params() const noexcept override {
        Params params;
        params.symmetric = false;
        return params;
    }
    [[nodiscard]] bool has_options() const noexcept override { return false; }
    [[nodiscard]] Status check(const Params& params, std::uint32_t head_dim) const override {
        if (params != default_params()) {
            return fail(Errc::usage, "{} is one exact format: it takes no options", name());
        }
        return GroupedCodec::check(params, head_dim);
    }
    [[nodiscard]] double error_bound(const Params& params, double min, double max) const noexcept override {
        const GroupScale group = choose(params, static_cast<float>(min), static_cast<float>(max));
        if (!group.representable) return std::numeric_limits<double>::infinity();
        // Half a step; what f16 loses of s, in |q - z| steps, and of z, in one; and the roundings of x / s + z.
        const double steps = std::max(std::fabs(min), std::fabs(max)) / group.scale + 1;
        const double lost_scale = std::max(group.scale * 0x1p-11, 0x1p-25),
                     lost_zero = std::max(std::fabs(group.zero) * 0x1p-11, 0x1p-25) * (group.scale + lost_scale);
        return group.scale * (0.5 + 0x1p-20 * (steps + levels)) + steps * lost_scale + lost_zero;
    }

private:
    static constexpr int levels = (1 << Bits) - 1;

    [[nodiscard]] int bits() const noexcept override { return Bits; }
    [[nodiscard]] Range range(const Params&) const noexcept override { return {0, levels}; }
    // The unrounded parameters; storing them rounds them.
    [[nodiscard]] GroupScale choose(const Params&, float min, float max) const noexcept override {
        GroupScale group;
        group.scale = (max - min) / static_cast<float>(levels);
        if (group.scale == 0) group.scale = 1;
        group.zero = -min / group.scale;
        group.representable = std::fabs(group.zero) < f16_overflow && group.scale < f16_overflow;
        return group;
    }
    [[nodiscard]] GroupScale stored(const GroupScale& chosen) const noexcept override {
        std::array<float, 2> values{chosen.scale, chosen.zero};
        std::array<std::uint16_t, 2> bits{};
        kernels::ops().f32_to_f16(values.data(), bits.data(), 2);  // nearest
        return {f16_value(bits[0]), f16_value(bits[1]), true};
    }
    void encode_run(const Params&, const float* x, const GroupScale& group, std::uint8_t* q,
                    std::size_t n) const noexcept override {
        for (std::size_t i = 0; i < n; ++i) {
            const float code = x[i] / group.scale + group.zero + 0.5F;
            q[i] = static_cast<std::uint8_t>(std::clamp(code, 0.0F, static_cast<float>(levels)));
        }
    }
    void decode_run(const Params&, const std::uint8_t* q, const GroupScale& group, float* x,
                    std::size_t n) const noexcept override {
        for (std::size_t i = 0; i < n; ++i) x[i] = (static_cast<float>(q[i]) - group.zero) * group.scale;
    }

    static constexpr float f16_overflow = 65520;
};

}  // namespace

const Codec& codec_compat_lmdeploy8() {
    static const Lmdeploy<8> codec;
    return codec;
}
const Codec& codec_compat_lmdeploy4() {
    static const Lmdeploy<4> codec;
    return codec;
}

}  // namespace hetero::quant
