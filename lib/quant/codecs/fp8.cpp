// fp8_e4m3fn, fp8_e4m3fnuz, fp8_e5m2: x / scale as an 8-bit float, nearest even, with a scale per token and head, per
// head or per tensor that puts the largest value at the format's largest. compat:vllm_fp8: the same with a scale of 1
// for all, as vLLM stores KV that was not calibrated (https://docs.vllm.ai, quantized KV cache), larger values
// saturated.
#include "quant/fp8.h"

#include <algorithm>
#include <cmath>

#include "quant/grouped_codec.h"
#include "quant/place.h"

namespace hetero::quant {
namespace {

class Fp8Codec final : public GroupedCodec {
public:
    // fixed: the scale of all groups; 0: that of the largest value
    Fp8Codec(Fp8 format, std::string_view name, float fixed = 0) : format_(format), name_(name), fixed_(fixed) {}

    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] DType value_dtype(const Params&) const noexcept override { return DType::u8; }
    [[nodiscard]] Params default_params() const noexcept override {
        if (fixed_ == 0) return {};
        Params params;
        params.axis = Axis::tensor;
        params.scale_dtype = DType::f32;
        return params;
    }
    [[nodiscard]] bool has_options() const noexcept override { return fixed_ == 0; }
    [[nodiscard]] Status check(const Params& params, std::uint32_t head_dim) const override {
        if (fixed_ != 0 && params != default_params()) {
            return fail(Errc::usage, "{} has one f32 scale per tensor and takes no options", name_);
        }
        if (!params.symmetric) return fail(Errc::usage, "{} is symmetric: it has no zero", name_);
        if (params.axis == Axis::channel) {
            return fail(Errc::usage, "{} has no channel axis; there are token, head and tensor", name_);
        }
        return GroupedCodec::check(params, head_dim);
    }
    [[nodiscard]] double error_bound(const Params& params, double min, double max) const noexcept override {
        const Fp8Info& info = fp8_info(format_);
        const double magnitude = std::max(std::fabs(min), std::fabs(max));
        const auto largest = static_cast<float>(magnitude);
        GroupScale group;
        if (!choose(params, nullptr, &largest, 1, &group.scale, nullptr))
            return std::numeric_limits<double>::infinity();
        const double beyond = std::max(0.0, magnitude - info.largest * group.scale);  // saturated
        const double half_unit =
            std::max(std::ldexp(magnitude, -info.mantissa_bits - 1), group.scale * info.smallest() / 2);
        return half_unit + beyond + magnitude * 0x1p-22 + 0x1p-148;  // quotient and product are rounded to f32
    }

private:
    [[nodiscard]] int bits() const noexcept override { return 8; }
    [[nodiscard]] bool any_type() const noexcept override { return true; }
    [[nodiscard]] bool choose(const Params& params, const float* min, const float* max, std::size_t n, float* scale,
                              float* zero) const noexcept override {
        if (fixed_ == 0) {
            return choose_scales(params, static_cast<int>(fp8_info(format_).largest), min, max, n, scale, zero);
        }
        std::fill_n(scale, n, fixed_);
        return true;
    }
    void encode_rows(const Params&, const KvValues& x, const float* scale, const float*, std::uint8_t* q,
                     std::size_t q_stride, float* error) const noexcept override {
        kernels::ops().quantize_fp8(format_, x, scale, q, q_stride, error);
    }
    [[nodiscard]] bool decode_rows(const Params&, const std::uint8_t* q, std::size_t q_stride, const float* scale,
                                   const float*, const KvOutput& x, float* error) const noexcept override {
        return kernels::ops().dequantize_fp8(format_, q, q_stride, scale, x, error);
    }

    Fp8 format_;
    std::string_view name_;
    float fixed_;
};

}  // namespace

const Codec& codec_fp8_e4m3fn() {
    static const Fp8Codec codec(Fp8::e4m3fn, "fp8_e4m3fn");
    return codec;
}
const Codec& codec_fp8_e4m3fnuz() {
    static const Fp8Codec codec(Fp8::e4m3fnuz, "fp8_e4m3fnuz");
    return codec;
}
const Codec& codec_fp8_e5m2() {
    static const Fp8Codec codec(Fp8::e5m2, "fp8_e5m2");
    return codec;
}
const Codec& codec_compat_vllm_fp8() {
    static const Fp8Codec codec(Fp8::e4m3fn, "compat:vllm_fp8", 1);
    return codec;
}

}  // namespace hetero::quant
