// f32: the values themselves.
#include <algorithm>
#include <cstring>

#include "kernels/api/ops.h"
#include "quant/place.h"

namespace hetero::quant {
namespace {

class F32 final : public Codec {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "f32"; }
    [[nodiscard]] DType value_dtype(const Params&) const noexcept override { return DType::f32; }
    [[nodiscard]] bool has_scale() const noexcept override { return false; }
    [[nodiscard]] Status check(const Params& params, std::uint32_t) const override {
        return check_no_params(*this, params);
    }
    [[nodiscard]] std::uint64_t groups(const Params&, const Shape&) const noexcept override { return 0; }
    [[nodiscard]] EncodedBytes bytes(const Params&, const Shape& shape) const noexcept override {
        return {shape.elements() * sizeof(float), 0, 0};
    }

    Status encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                       const EncodedSpans& out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(
            check_sizes(*this, params, shape, values.size(), {out.values.size(), out.scale.size(), out.zero.size()}));
        if (values.empty()) return {};
        float min = 0, max = 0;
        if (!kernels::ops().min_max(values.data(), values.size(), &min, &max)) return fail_nonfinite(shape, values, 0);
        std::memcpy(out.values.data(), values.data(), out.values.size());
        return {};
    }

    Status decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                  std::span<const std::byte> scale, std::span<const std::byte> zero,
                  std::span<float> out) const override {
        HETERO_CHECK(check(params, shape.head_dim));
        HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
        if (!out.empty()) std::memcpy(out.data(), values.data(), values.size());
        return {};
    }

    [[nodiscard]] double error_bound(const Params&, double, double) const noexcept override { return 0; }
};

}  // namespace

const Codec& codec_f32() {
    static const F32 codec;
    return codec;
}

}  // namespace hetero::quant
