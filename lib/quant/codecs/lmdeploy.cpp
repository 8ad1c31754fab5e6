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
        const auto low = static_cast<float>(min), high = static_cast<float>(max);
        GroupScale group;
        if (!choose(params, &low, &high, 1, &group.scale, &group.zero)) return std::numeric_limits<double>::infinity();
        // Half a step; what f16 loses of s, in |q - z| steps, and of z, in one; and the roundings of x / s + z.
        const double steps = std::max(std::fabs(min), std::fabs(max)) / group.scale + 1;
        const double lost_scale = std::max(group.scale * 0x1p-11, 0x1p-25),
                     lost_zero = std::max(std::fabs(group.zero) * 0x1p-11, 0x1p-25) * (group.scale + lost_scale);
        return group.scale * (0.5 + 0x1p-20 * (steps + levels)) + steps * lost_scale + lost_zero;
    }

private:
    static constexpr int levels = (1 << Bits) - 1;

    [[nodiscard]] int bits() const noexcept override { return Bits; }
    // The unrounded parameters; storing them rounds them.
    [[nodiscard]] bool choose(const Params&, const float* min, const float* max, std::size_t n, float* scale,
                              float* zero) const noexcept override {
        bool representable = true;
        for (std::size_t i = 0; i < n; ++i) {
            scale[i] = (max[i] - min[i]) / static_cast<float>(levels);
            if (scale[i] == 0) scale[i] = 1;
            zero[i] = -min[i] / scale[i];
            representable = representable && std::fabs(zero[i]) < f16_overflow && scale[i] < f16_overflow;
        }
        return representable;
    }
    void round_to_stored(std::span<float> scale, std::span<float> zero) const noexcept override {
        std::array<std::uint16_t, 64> bits{};
        for (const std::span<float> array : {scale, zero}) {
            for (std::size_t first = 0; first < array.size(); first += bits.size()) {
                const std::size_t n = std::min(bits.size(), array.size() - first);
                kernels::ops().f32_to_f16(array.data() + first, bits.data(), n);  // nearest
                kernels::ops().f16_to_f32(bits.data(), array.data() + first, n);
                for (float& value : array.subspan(first, n)) value += 0.0F;  // -0 becomes +0
            }
        }
    }
    void encode_rows(const Params&, const KvValues& x, const float* scale, const float* zero, std::uint8_t* q,
                     std::size_t q_stride, float*) const noexcept override {
        for (std::size_t row = 0; row < x.rows; ++row) {
            const float* from = static_cast<const float*>(x.data) + row * x.stride;
            for (std::size_t i = 0; i < x.n; ++i) {
                const float code = from[i] / scale[row] + zero[row] + 0.5F;
                q[row * q_stride + i] = static_cast<std::uint8_t>(std::clamp(code, 0.0F, static_cast<float>(levels)));
            }
        }
    }
    [[nodiscard]] bool decode_rows(const Params&, const std::uint8_t* q, std::size_t q_stride, const float* scale,
                                   const float* zero, const KvOutput& x, float*) const noexcept override {
        bool finite = true;
        for (std::size_t row = 0; row < x.rows; ++row) {
            float* to = static_cast<float*>(x.data) + row * x.stride;
            for (std::size_t i = 0; i < x.n; ++i) {
                to[i] = (static_cast<float>(q[row * q_stride + i]) - zero[row]) * scale[row];
                finite = finite && std::isfinite(to[i]);
            }
        }
        return finite;
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
