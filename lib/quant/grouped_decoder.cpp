#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "quant/grouped_blocks.h"
#include "quant/grouped_codec.h"
#include "quant/place.h"
#include "quant/rotation.h"

namespace hetero::quant {

class GroupedCodec::Decoder {
public:
    Decoder(const GroupedCodec& codec, const Params& params, const Shape& shape, std::span<const std::byte> values,
            std::span<const std::byte> scale, std::span<const std::byte> zero, const FloatsOut& out, float* error)
        : codec_(codec),
          params_(params),
          shape_(shape),
          values_(values),
          scale_(scale),
          zero_(zero),
          type_(out.type),
          out_(out.bytes),
          streaming_(out.streaming),
          error_(error) {}

    // False: a value is infinite, or no number, in the output's type.
    Result<bool> run() {
        if (shape_.elements() == 0) return true;
        const std::size_t rows = shape_.tokens * shape_.heads;
        if (params_.axis == Axis::channel) {
            bool fits = true;
            for (std::uint64_t token = 0; token < shape_.tokens; token += params_.group) {
                const std::size_t tokens = std::min<std::uint64_t>(params_.group, shape_.tokens - token);
                HETERO_TRY(const bool fit, channels(token, tokens));
                fits = fits && fit;
            }
            return fits;
        }
        // What goes straight to the output waits nowhere but for its codes to be unpacked.
        const std::size_t values = !direct() && !rotates_directly() ? block_values
                                   : bits_ == 8                     ? 65536
                                                                    : 16384,
                          batch = std::max<std::size_t>(1, values / head_dim_);
        bool fits = true;
        for (std::size_t row = 0; row < rows; row += batch) {
            const std::size_t n = std::min(batch, rows - row);
            HETERO_TRY(const bool fit, params_.axis == Axis::token ? tokens(row, n) : heads(row, n));
            fits = fits && fit;
        }
        return fits;
    }

private:
    const std::uint8_t* codes(std::size_t row, std::size_t rows) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(values_.data()) + row * row_bytes_;
        if (bits_ == 8) return from;
        codes_.resize(rows * head_dim_);
        if (head_dim_ * static_cast<std::size_t>(bits_) == 8 * row_bytes_) {
            ops_.unpack_bits(bits_, is_signed_, from, codes_.data(), rows * head_dim_);
        } else {
            for (std::size_t r = 0; r < rows; ++r)
                ops_.unpack_bits(bits_, is_signed_, from + r * row_bytes_, codes_.data() + r * head_dim_, head_dim_);
        }
        return codes_.data();
    }

    void resize_groups(std::size_t n) {
        groups_.scale.resize(n);
        if (!params_.symmetric) groups_.zero.resize(n);
    }
    // n stored scales and zeros, from the index-th on, to those of groups_ from `at` on; `element`(i): the first
    // element that has the i-th, for a message.
    template <class Element>
    Status load(std::size_t index, std::size_t n, std::size_t at, Element element) {
        load_scales(params_, scale_, index, std::span(groups_.scale).subspan(at, n));
        if (!params_.symmetric) load_scales(params_, zero_, index, std::span(groups_.zero).subspan(at, n));
        constexpr float most = std::numeric_limits<float>::max();
        int fine = 1;  // of all, without a branch
        for (std::size_t i = 0; i < n; ++i) {
            const float scale = groups_.scale[at + i];
            fine &= static_cast<int>(scale >= 0) & static_cast<int>(scale <= most);
        }
        for (std::size_t i = 0; i < n && !params_.symmetric; ++i)
            fine &= static_cast<int>(std::fabs(groups_.zero[at + i]) <= most);
        for (std::size_t i = 0; i < n && fine == 0; ++i) {
            const float scale = groups_.scale[at + i], zero = params_.symmetric ? 0 : groups_.zero[at + i];
            if (scale >= 0 && std::isfinite(scale) && std::isfinite(zero)) continue;
            return fail(Errc::bad_input,
                        "{}: stored scale {}, zero {}: a scale is finite and not negative, a zero finite",
                        place_text(shape_, element(i)), scale, zero);
        }
        return {};
    }
    [[nodiscard]] const float* zeros() const { return params_.symmetric ? nullptr : groups_.zero.data(); }

    // Heads with one scale each, by a kernel that decodes and rotates.
    [[nodiscard]] bool rotates_directly() const {
        return params_.hadamard && params_.axis == Axis::token &&
               token_group(params_, shape_.head_dim) == shape_.head_dim && codec_.by_rows(params_);
    }
    // Straight to the output, or over f32 where more is to be done.
    [[nodiscard]] bool direct() const { return !params_.hadamard && (codec_.any_type() || type_ == DType::f32); }
    KvOutput output(std::size_t row, std::size_t rows) {
        std::byte* to = out_.data() + row * head_dim_ * kernels::dtype_info(type_).block_bytes;
        return {type_, to, rows, head_dim_, head_dim_, streaming_};
    }
    KvOutput target(std::size_t row, std::size_t rows) {
        if (direct()) return output(row, rows);
        x_.resize(rows * head_dim_);
        return {DType::f32, x_.data(), rows, head_dim_, head_dim_};
    }
    [[nodiscard]] float* fused_error() const { return direct() && codec_.any_type() ? error_ : nullptr; }
    Result<bool> finish(std::size_t row, std::size_t rows, bool fits) {
        if (direct()) return fits;
        if (params_.hadamard) rotate(x_, x_, shape_.head_dim);
        const std::size_t size = head_dim_ * kernels::dtype_info(type_).block_bytes;
        const std::span<std::byte> to = out_.subspan(row * size, rows * size);
        if (!float_codec(type_).encode_into({}, {rows, 1, shape_.head_dim}, x_, {to, {}, {}})) {
            if (type_ == DType::f32) std::memcpy(to.data(), x_.data(), to.size());  // decode() lets all values pass
            return false;
        }
        if (error_ != nullptr) ops_.max_difference({type_, to.data(), rows, head_dim_, head_dim_}, x_.data(), error_);
        return fits;
    }

    // Rows that have a scale each.
    Result<bool> heads(std::size_t row, std::size_t rows) {
        const std::size_t heads = shape_.heads, groups = params_.axis == Axis::tensor ? 1 : heads;
        const std::uint64_t step = group_tokens(params_, shape_.tokens);
        resize_groups(rows + groups);  // those of a token group wait behind those of the rows
        for (std::size_t r = 0, end = 0; r < rows; r = end) {
            const std::uint64_t token_group = (row + r) / heads / step;
            const std::uint64_t left = shape_.tokens - token_group * step;
            end = std::min<std::uint64_t>(rows, (token_group * step + std::min(step, left)) * heads - row);
            HETERO_CHECK(load(token_group * groups, groups, rows,
                              [&](std::size_t i) { return (token_group * step * heads + i) * head_dim_; }));
            for (std::size_t i = r, group = (row + r) % groups; i < end;
                 ++i, group = group + 1 < groups ? group + 1 : 0) {
                groups_.scale[i] = groups_.scale[rows + group];
                if (!params_.symmetric) groups_.zero[i] = groups_.zero[rows + group];
            }
        }
        const std::uint8_t* q = codes(row, rows);
        const KvOutput x = target(row, rows);
        return finish(row, rows,
                      codec_.decode_rows(params_, q, head_dim_, groups_.scale.data(), zeros(), x, fused_error()));
    }

    // Runs of a head.
    Result<bool> tokens(std::size_t row, std::size_t rows) {
        const std::size_t length = token_group(params_, shape_.head_dim), per_row = ceil_div(head_dim_, length);
        resize_groups(rows * per_row);
        HETERO_CHECK(load(row * per_row, rows * per_row, 0,
                          [&](std::size_t i) { return (row + i / per_row) * head_dim_ + i % per_row * length; }));
        const std::uint8_t* q = codes(row, rows);
        if (rotates_directly()) {
            return ops_.dequantize_rotated(q, head_dim_, is_signed_, groups_.scale.data(), zeros(), output(row, rows),
                                           error_);
        }
        const KvOutput x = target(row, rows);
        const bool fits = head_dim_ % length != 0 ? ragged(x, length, q)
                                                  : codec_.decode_rows(params_, q, length, groups_.scale.data(),
                                                                       zeros(), split(x, length), fused_error());
        return finish(row, rows, fits);
    }

    // The last run of a head is shorter: one run of each row at a time.
    bool ragged(const KvOutput& x, std::size_t length, const std::uint8_t* q) const {
        const std::size_t per_row = ceil_div(head_dim_, length);
        std::vector<float> scale(x.rows), zero(x.rows);
        bool fits = true;
        for (std::size_t run = 0; run < per_row; ++run) {
            for (std::size_t r = 0; r < x.rows; ++r) {
                scale[r] = groups_.scale[r * per_row + run];
                if (!params_.symmetric) zero[r] = groups_.zero[r * per_row + run];
            }
            const std::size_t column = run * length;
            fits = codec_.decode_rows(params_, q + column, head_dim_, scale.data(),
                                      params_.symmetric ? nullptr : zero.data(),
                                      part_of(x, column, std::min(length, head_dim_ - column)), fused_error()) &&
                   fits;
        }
        return fits;
    }

    Result<bool> channels(std::uint64_t token, std::size_t tokens) {
        const std::size_t heads = shape_.heads, width = heads * head_dim_, row = token * heads;
        resize_groups(width);
        HETERO_CHECK(load(token / params_.group * width, width, 0, [&](std::size_t i) { return token * width + i; }));
        const std::uint8_t* q = codes(row, tokens * heads);
        KvOutput x = target(row, tokens * heads);
        x = {x.type, x.data, tokens, width, width, x.streaming};
        const bool fits =
            ops_.dequantize_columns(q, width, is_signed_, groups_.scale.data(), zeros(), x, fused_error());
        return finish(row, tokens * heads, fits);
    }

    const GroupedCodec& codec_;
    const Params& params_;
    const Shape& shape_;
    std::span<const std::byte> values_, scale_, zero_;
    DType type_;
    std::span<std::byte> out_;
    bool streaming_;
    float* error_;

    const kernels::Ops& ops_ = kernels::ops();
    const std::size_t head_dim_ = shape_.head_dim, row_bytes_ = codec_.row_elements(params_, shape_.head_dim);
    const int bits_ = codec_.bits();
    const bool is_signed_ = codec_.is_signed(params_);
    GroupScales groups_;
    std::vector<float> x_;
    std::vector<std::uint8_t> codes_;
};

Status GroupedCodec::decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                            std::span<const std::byte> scale, std::span<const std::byte> zero,
                            std::span<float> out) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
    Decoder decoder(*this, params, shape, values, scale, zero, {DType::f32, std::as_writable_bytes(out)}, nullptr);
    return decoder.run().map([](bool) {});
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} values", out.size());
}

Status GroupedCodec::decode_to(const Params& params, const Shape& shape, std::span<const std::byte> values,
                               std::span<const std::byte> scale, std::span<const std::byte> zero, const FloatsOut& out,
                               float* error) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_sizes(*this, params, shape, out.bytes.size() / kernels::dtype_info(out.type).block_bytes,
                             {values.size(), scale.size(), zero.size()}));
    HETERO_CHECK(check_bytes(out.type, shape, out.bytes.size()));
    HETERO_TRY(const bool fits, Decoder(*this, params, shape, values, scale, zero, out, error).run());
    if (fits) return {};
    return Codec::decode_to(params, shape, values, scale, zero, out, error);  // which finds the place
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} bytes", out.bytes.size());
}

}  // namespace hetero::quant
