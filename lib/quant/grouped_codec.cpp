#include "quant/grouped_codec.h"

#include <algorithm>
#include <new>

#include "quant/place.h"
#include "quant/rotation.h"

namespace hetero::quant {
namespace {

constexpr std::size_t block_values = 4096;  // worked on at once
constexpr std::size_t block_rows = 16;      // where each is read twice: few, so that reading memory never pauses

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) noexcept { return a / b + (a % b != 0 ? 1 : 0); }

// Tokens of a group on the axes other than token; `tokens` where all share it.
std::uint64_t group_tokens(const Params& params, std::uint64_t tokens) noexcept {
    return params.group == 0 ? std::max<std::uint64_t>(tokens, 1) : params.group;
}

template <class Values>
Values part_of(Values block, std::size_t column, std::size_t n) {
    const std::size_t bytes = kernels::dtype_info(block.type).block_bytes;
    using Pointer = std::conditional_t<std::is_same_v<Values, KvValues>, const std::byte*, std::byte*>;
    block.data = static_cast<Pointer>(block.data) + column * bytes;
    block.n = n;
    return block;
}

// Runs of `length` in rows that have no gaps and are multiples of it.
template <class Values>
Values split(const Values& block, std::size_t length) {
    return {block.type, block.data, block.rows * block.n / length, length, length};
}

// Scales and zeros of a block's groups on their way to or from the stored arrays.
struct GroupScales {
    std::vector<float> min, max, scale, zero;
    std::vector<std::uint16_t> half;

    void resize(std::size_t n) {
        for (auto* array : {&min, &max, &scale, &zero}) array->resize(n);
        half.resize(n);
    }
    void store_array(const Params& params, std::span<std::byte> to, std::size_t index, std::span<float> from) {
        if (params.scale_dtype == DType::f32) {
            std::memcpy(to.data() + 4 * index, from.data(), from.size_bytes());
            return;
        }
        for (float& value : from) value += 0.0F;  // -0 is stored as +0
        kernels::ops().f32_to_f16(from.data(), half.data(), from.size());
        std::memcpy(to.data() + 2 * index, half.data(), 2 * from.size());
    }
    void load_array(const Params& params, std::span<const std::byte> from, std::size_t index, std::span<float> to) {
        if (params.scale_dtype == DType::f32) {
            std::memcpy(to.data(), from.data() + 4 * index, to.size_bytes());
            return;
        }
        std::memcpy(half.data(), from.data() + 2 * index, 2 * to.size());
        kernels::ops().f16_to_f32(half.data(), to.data(), to.size());
    }
};

}  // namespace

// A range of tokens on its way to codes. Rows are heads of a token, [token][head].
class GroupedCodec::Encoder {
public:
    Encoder(const GroupedCodec& codec, const Params& params, const Shape& shape, DType type,
            std::span<const std::byte> values, const EncodedSpans& out, float* error)
        : codec_(codec), params_(params), shape_(shape), type_(type), values_(values), out_(out), error_(error) {}

    Status run() {
        if (shape_.elements() == 0) return {};
        switch (params_.axis) {
            case Axis::token:
                return tokens();
            case Axis::channel:
                return channels();
            default:
                return heads();
        }
    }

private:
    [[nodiscard]] KvValues source(std::size_t row, std::size_t rows) const {
        return {type_, values_.data() + row * head_dim_ * kernels::dtype_info(type_).block_bytes, rows, head_dim_,
                head_dim_};
    }

    // What is quantized: the values where they lie, or in f32, rotated where that is asked for.
    KvValues block(std::size_t row, std::size_t rows) {
        const KvValues from = source(row, rows);
        if (!params_.hadamard && (codec_.any_type() || type_ == DType::f32)) return from;
        widen(row, rows, x_);
        if (params_.hadamard) rotate(x_, x_, shape_.head_dim);
        return {DType::f32, x_.data(), rows, head_dim_, head_dim_};
    }

    void widen(std::size_t row, std::size_t rows, std::vector<float>& to) const {
        to.resize(rows * head_dim_);
        const std::size_t size = head_dim_ * kernels::dtype_info(type_).block_bytes;
        (void)float_codec(type_).decode({}, {rows, 1, shape_.head_dim}, values_.subspan(row * size, rows * size), {},
                                        {}, to);
    }

    // Where the codes of a block of rows go, a byte each; finish() packs them where they are narrower.
    std::uint8_t* codes(std::size_t row, std::size_t rows) {
        if (bits_ == 8) return reinterpret_cast<std::uint8_t*>(out_.values.data()) + row * row_bytes_;
        codes_.resize(rows * head_dim_);
        return codes_.data();
    }
    void pack(std::size_t row, std::size_t rows) {
        if (bits_ == 8) return;
        auto* to = reinterpret_cast<std::uint8_t*>(out_.values.data()) + row * row_bytes_;
        if (head_dim_ * static_cast<std::size_t>(bits_) == 8 * row_bytes_)
            return ops_.pack_bits(bits_, codes_.data(), to, rows * head_dim_);
        const std::size_t used = (head_dim_ * static_cast<std::size_t>(bits_) + 7) / 8;
        for (std::size_t r = 0; r < rows; ++r, to += row_bytes_) {
            ops_.pack_bits(bits_, codes_.data() + r * head_dim_, to, head_dim_);
            std::memset(to + used, 0, row_bytes_ - used);
        }
    }

    [[nodiscard]] const float* zeros() const { return params_.symmetric ? nullptr : groups_.zero.data(); }
    [[nodiscard]] float* lows() { return params_.symmetric ? nullptr : groups_.min.data(); }
    [[nodiscard]] float* fused_error() const { return params_.hadamard || !codec_.any_type() ? nullptr : error_; }

    bool choose(std::size_t n) {
        return codec_.choose(params_, lows(), groups_.max.data(), n, groups_.scale.data(), groups_.zero.data());
    }
    void store(std::size_t index, std::size_t n) {
        const std::span<float> scale = std::span(groups_.scale).first(n), zero = std::span(groups_.zero).first(n);
        codec_.round_to_stored(scale, zero);
        groups_.store_array(params_, out_.scale, index, scale);
        if (!params_.symmetric) groups_.store_array(params_, out_.zero, index, zero);
    }

    // Raises the error where encode_rows() did not: by decoding what was stored. `decode` fills back_.
    template <class Decode>
    void measure(std::size_t row, std::size_t rows, Decode decode) {
        if (error_ == nullptr || fused_error() != nullptr) return;
        back_.resize(rows * head_dim_);
        decode(KvOutput{DType::f32, back_.data(), rows, head_dim_, head_dim_});
        if (params_.hadamard) rotate(back_, back_, shape_.head_dim);
        ops_.max_difference(source(row, rows), back_.data(), error_);
    }

    // Runs of a head.
    Status tokens() {
        const std::size_t length = token_group(params_, shape_.head_dim), per_row = ceil_div(head_dim_, length);
        const std::size_t all = shape_.tokens * shape_.heads, batch = block_rows;
        groups_.resize(batch * per_row);
        for (std::size_t row = 0; row < all; row += batch) {
            const std::size_t rows = std::min(batch, all - row), n = rows * per_row;
            const KvValues x = block(row, rows);
            std::uint8_t* q = codes(row, rows);
            if (head_dim_ % length != 0) {
                HETERO_CHECK(ragged(x, length, row, q));
            } else {
                const KvValues runs = split(x, length);
                if (!ops_.min_max_rows(runs, lows(), groups_.max.data())) return fail_finite();
                if (!choose(n)) return fail_scale(row * head_dim_, length, n);
                codec_.encode_rows(params_, runs, groups_.scale.data(), zeros(), q, length, fused_error());
                store(row * per_row, n);
                measure(row, rows, [&](const KvOutput& back) {
                    (void)codec_.decode_rows(params_, q, length, groups_.scale.data(), zeros(), split(back, length),
                                             nullptr);
                });
            }
            pack(row, rows);
        }
        return {};
    }

    // The last run of a head is shorter: one run of each row at a time.
    Status ragged(const KvValues& x, std::size_t length, std::size_t row, std::uint8_t* q) {
        const std::size_t per_row = ceil_div(head_dim_, length);
        std::vector<float> scale(x.rows * per_row), zero(scale.size());
        if (error_ != nullptr && fused_error() == nullptr) back_.resize(x.rows * head_dim_);
        for (std::size_t run = 0; run < per_row; ++run) {
            const std::size_t column = run * length, n = std::min(length, head_dim_ - column);
            const KvValues part = part_of(x, column, n);
            if (!ops_.min_max_rows(part, lows(), groups_.max.data())) return fail_finite();
            if (!choose(x.rows)) return fail_scale(row * head_dim_ + column, n, x.rows, head_dim_);
            codec_.encode_rows(params_, part, groups_.scale.data(), zeros(), q + column, head_dim_, fused_error());
            codec_.round_to_stored(std::span(groups_.scale).first(x.rows), std::span(groups_.zero).first(x.rows));
            if (error_ != nullptr && fused_error() == nullptr) {
                (void)codec_.decode_rows(params_, q + column, head_dim_, groups_.scale.data(), zeros(),
                                         {DType::f32, back_.data() + column, x.rows, head_dim_, n}, nullptr);
            }
            for (std::size_t r = 0; r < x.rows; ++r) {
                scale[r * per_row + run] = groups_.scale[r];
                zero[r * per_row + run] = groups_.zero[r];
            }
        }
        measure(row, x.rows, [](const KvOutput&) {});
        groups_.store_array(params_, out_.scale, row * per_row, scale);
        if (!params_.symmetric) groups_.store_array(params_, out_.zero, row * per_row, zero);
        return {};
    }

    // Groups of whole heads over tokens: of each head, or of all. First their extremes, then their codes.
    Status heads() {
        const std::size_t heads = shape_.heads, groups = params_.axis == Axis::head ? heads : 1;
        const std::uint64_t step = group_tokens(params_, shape_.tokens);
        const std::size_t batch = std::max<std::size_t>(1, block_values / (heads * head_dim_)) * heads;
        groups_.resize(std::max(batch, groups));
        std::vector<float> lowest(groups), highest(groups);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape_.tokens; token += step, index += groups) {
            const std::size_t begin = token * heads, end = std::min(token + step, shape_.tokens) * heads;
            for (std::size_t row = begin; row < end; row += batch) {
                const KvValues x = block(row, std::min(batch, end - row));
                if (!ops_.min_max_rows(x, lows(), groups_.max.data())) return fail_finite();
                for (std::size_t r = 0; r < x.rows; ++r) {
                    const std::size_t g = groups == 1 ? 0 : r % heads;
                    const bool first = row == begin && r < groups;
                    if (!params_.symmetric) lowest[g] = first ? groups_.min[r] : std::min(lowest[g], groups_.min[r]);
                    highest[g] = first ? groups_.max[r] : std::max(highest[g], groups_.max[r]);
                }
            }
            std::copy(lowest.begin(), lowest.end(), groups_.min.begin());
            std::copy(highest.begin(), highest.end(), groups_.max.begin());
            if (!choose(groups)) return fail_heads(begin, end, groups);
            const std::vector<float> scale(groups_.scale.begin(), groups_.scale.begin() + static_cast<long>(groups)),
                zero(groups_.zero.begin(), groups_.zero.begin() + static_cast<long>(groups));
            store(index, groups);
            const std::vector<float> stored_scale = groups_.scale, stored_zero = groups_.zero;
            for (std::size_t row = begin; row < end; row += batch) {
                const KvValues x = block(row, std::min(batch, end - row));
                spread(scale, zero, x.rows);
                std::uint8_t* q = codes(row, x.rows);
                codec_.encode_rows(params_, x, groups_.scale.data(), zeros(), q, head_dim_, fused_error());
                measure(row, x.rows, [&](const KvOutput& back) {
                    spread(std::span(stored_scale).first(groups), std::span(stored_zero).first(groups), x.rows);
                    (void)codec_.decode_rows(params_, q, head_dim_, groups_.scale.data(), zeros(), back, nullptr);
                });
                pack(row, x.rows);
            }
        }
        return {};
    }
    // To each of `rows` rows the scale of its head.
    void spread(std::span<const float> scale, std::span<const float> zero, std::size_t rows) {
        for (std::size_t r = 0; r < rows; ++r) {
            groups_.scale[r] = scale[r % scale.size()];
            groups_.zero[r] = zero[r % scale.size()];
        }
    }

    // Channels of a token group, side by side: all heads at once, so that memory is read in order.
    Status channels() {
        const Range range = codec_.range(params_);
        const std::size_t heads = shape_.heads, width = heads * head_dim_;
        groups_.resize(width);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape_.tokens; token += params_.group, index += width) {
            const std::size_t tokens = std::min<std::uint64_t>(params_.group, shape_.tokens - token);
            const std::size_t row = token * heads, rows = tokens * heads;
            KvValues x = block(row, rows);
            x = {x.type, x.data, tokens, width, width};
            if (!ops_.min_max_columns(x, lows(), groups_.max.data())) return fail_finite();
            if (!choose(width)) return fail_columns(row * head_dim_, tokens);
            std::uint8_t* q = codes(row, rows);
            ops_.quantize_columns(x, groups_.scale.data(), zeros(), range.low < 0, q, width, fused_error());
            store(index, width);
            measure(row, rows, [&](const KvOutput& back) {
                (void)ops_.dequantize_columns(q, width, range.low < 0, groups_.scale.data(), zeros(),
                                              {back.type, back.data, tokens, width, width}, nullptr);
            });
            pack(row, rows);
        }
        return {};
    }

    // ---- what went wrong: found again in f32, at leisure

    [[nodiscard]] std::vector<float> all_values() const {
        std::vector<float> values;
        widen(0, shape_.tokens * shape_.heads, values);
        return values;
    }

    [[nodiscard]] tl::unexpected<Error> fail_finite() const {
        std::vector<float> values = all_values();
        if (first_nonfinite(values) < values.size()) return fail_nonfinite(shape_, values, 0);
        rotate(values, values, shape_.head_dim);
        return fail(Errc::bad_input, "{}: values of this head are too large to be rotated; store it as f32",
                    place_text(shape_, first_nonfinite(values)));
    }

    [[nodiscard]] bool representable(std::size_t group) {
        const float* min = lows();
        float scale = 0, zero = 0;
        return codec_.choose(params_, min == nullptr ? nullptr : min + group, &groups_.max[group], 1, &scale, &zero);
    }
    // One of n groups of `length` values; they start at `begin`, `stride` apart (0: one after the other).
    [[nodiscard]] tl::unexpected<Error> fail_scale(std::size_t begin, std::size_t length, std::size_t n,
                                                   std::size_t stride = 0) {
        std::size_t group = 0;
        while (group + 1 < n && representable(group)) ++group;
        return name_largest(begin + group * (stride == 0 ? length : stride), length, 1, 0);
    }
    [[nodiscard]] tl::unexpected<Error> fail_columns(std::size_t begin, std::size_t tokens) {
        std::size_t group = 0;
        while (group + 1 < groups_.scale.size() && representable(group)) ++group;
        return name_largest(begin + group, 1, tokens, std::size_t{shape_.heads} * head_dim_);
    }
    [[nodiscard]] tl::unexpected<Error> fail_heads(std::size_t begin, std::size_t end, std::size_t groups) {
        std::size_t group = 0;
        while (group + 1 < groups && representable(group)) ++group;
        return name_largest((begin + group) * head_dim_, head_dim_, (end - begin) / groups, groups * head_dim_);
    }
    // The largest value of a group: `rows` runs of n, `stride` apart. Of rotated heads, in the group's heads, since
    // what is stored has no place of its own.
    [[nodiscard]] tl::unexpected<Error> name_largest(std::size_t begin, std::size_t n, std::size_t rows,
                                                     std::size_t stride) const {
        const std::vector<float> values = all_values();
        if (params_.hadamard) {
            begin -= begin % head_dim_;
            n = std::max(n, head_dim_);
        }
        std::size_t worst = begin;
        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t i = 0; i < n; ++i) {
                const std::size_t index = begin + row * stride + i;
                if (std::fabs(values[index]) > std::fabs(values[worst])) worst = index;
            }
        }
        Params wide = params_;
        wide.scale_dtype = DType::f32;
        const bool half = params_.scale_dtype == DType::f16, remedy = half && codec_.check(wide, shape_.head_dim);
        return fail(Errc::bad_input, "{}: value {} needs a scale{} beyond {}; {}", place_text(shape_, worst),
                    values[worst], params_.symmetric ? "" : " or zero", half ? "f16" : "f32",
                    remedy ? "use f32 scales" : "store it as f32 or bf16");
    }

    const GroupedCodec& codec_;
    const Params& params_;
    const Shape& shape_;
    DType type_;
    std::span<const std::byte> values_;
    const EncodedSpans& out_;
    float* error_;

    const kernels::Ops& ops_ = kernels::ops();
    const std::size_t head_dim_ = shape_.head_dim, row_bytes_ = codec_.row_elements(params_, shape_.head_dim);
    const int bits_ = codec_.bits();
    GroupScales groups_;
    std::vector<float> x_, back_;
    std::vector<std::uint8_t> codes_;
};

class GroupedCodec::Decoder {
public:
    Decoder(const GroupedCodec& codec, const Params& params, const Shape& shape, std::span<const std::byte> values,
            std::span<const std::byte> scale, std::span<const std::byte> zero, DType type, std::span<std::byte> out,
            float* error)
        : codec_(codec),
          params_(params),
          shape_(shape),
          values_(values),
          scale_(scale),
          zero_(zero),
          type_(type),
          out_(out),
          error_(error) {}

    // False: a value is infinite, or no number, in the output's type.
    Result<bool> run() {
        if (shape_.elements() == 0) return true;
        const std::size_t heads = shape_.heads, rows = shape_.tokens * heads;
        if (params_.axis == Axis::channel) {
            bool fits = true;
            for (std::uint64_t token = 0; token < shape_.tokens; token += params_.group) {
                const std::size_t tokens = std::min<std::uint64_t>(params_.group, shape_.tokens - token);
                HETERO_TRY(const bool fit, channels(token, tokens));
                fits = fits && fit;
            }
            return fits;
        }
        const std::size_t batch = std::max<std::size_t>(1, block_values / head_dim_);
        bool fits = true;
        for (std::size_t row = 0; row < rows; row += batch) {
            HETERO_TRY(const bool fit, block(row, std::min(batch, rows - row)));
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

    // n scales and zeros; `element`(i): the first element that has the i-th, for a message.
    template <class Element>
    Status load(std::size_t index, std::size_t n, Element element) {
        groups_.load_array(params_, scale_, index, std::span(groups_.scale).first(n));
        if (!params_.symmetric) groups_.load_array(params_, zero_, index, std::span(groups_.zero).first(n));
        for (std::size_t i = 0; i < n; ++i) {
            const float scale = groups_.scale[i], zero = params_.symmetric ? 0 : groups_.zero[i];
            if (scale >= 0 && std::isfinite(scale) && std::isfinite(zero)) continue;
            return fail(Errc::bad_input,
                        "{}: stored scale {}, zero {}: a scale is finite and not negative, a zero finite",
                        place_text(shape_, element(i)), scale, zero);
        }
        return {};
    }
    [[nodiscard]] const float* zeros() const { return params_.symmetric ? nullptr : groups_.zero.data(); }

    // Straight to the output, or over f32 where more is to be done.
    [[nodiscard]] bool direct() const { return !params_.hadamard && (codec_.any_type() || type_ == DType::f32); }
    KvOutput target(std::size_t row, std::size_t rows) {
        if (direct()) {
            return {type_, out_.data() + row * head_dim_ * kernels::dtype_info(type_).block_bytes, rows, head_dim_,
                    head_dim_};
        }
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

    // Token, head and tensor axes.
    Result<bool> block(std::size_t row, std::size_t rows) {
        const std::uint8_t* q = codes(row, rows);
        const KvOutput x = target(row, rows);
        bool fits = true;
        if (params_.axis != Axis::token) {
            const std::size_t heads = shape_.heads;
            const std::uint64_t step = group_tokens(params_, shape_.tokens);
            groups_.resize(rows);
            for (std::size_t r = 0; r < rows; ++r) {
                const std::size_t token_group = (row + r) / heads / step;
                const std::size_t index =
                    params_.axis == Axis::tensor ? token_group : token_group * heads + (row + r) % heads;
                HETERO_CHECK(load_one(index, r, (row + r) * head_dim_));
            }
            fits = codec_.decode_rows(params_, q, head_dim_, groups_.scale.data(), zeros(), x, fused_error());
            return finish(row, rows, fits);
        }
        const std::size_t length = token_group(params_, shape_.head_dim), per_row = ceil_div(head_dim_, length);
        groups_.resize(rows * per_row);
        HETERO_CHECK(load(row * per_row, rows * per_row,
                          [&](std::size_t i) { return (row + i / per_row) * head_dim_ + i % per_row * length; }));
        if (head_dim_ % length == 0) {
            fits =
                codec_.decode_rows(params_, q, length, groups_.scale.data(), zeros(), split(x, length), fused_error());
            return finish(row, rows, fits);
        }
        std::vector<float> scale(rows), zero(rows);
        for (std::size_t run = 0; run < per_row; ++run) {
            for (std::size_t r = 0; r < rows; ++r) {
                scale[r] = groups_.scale[r * per_row + run];
                zero[r] = groups_.zero[r * per_row + run];
            }
            const std::size_t column = run * length;
            fits = codec_.decode_rows(params_, q + column, head_dim_, scale.data(),
                                      params_.symmetric ? nullptr : zero.data(),
                                      part_of(x, column, std::min(length, head_dim_ - column)), fused_error()) &&
                   fits;
        }
        return finish(row, rows, fits);
    }
    Status load_one(std::size_t index, std::size_t at, std::size_t element) {
        std::swap(groups_.scale[0], groups_.scale[at]);
        std::swap(groups_.zero[0], groups_.zero[at]);
        HETERO_CHECK(load(index, 1, [&](std::size_t) { return element; }));
        std::swap(groups_.scale[0], groups_.scale[at]);
        std::swap(groups_.zero[0], groups_.zero[at]);
        return {};
    }

    Result<bool> channels(std::uint64_t token, std::size_t tokens) {
        const std::size_t heads = shape_.heads, width = heads * head_dim_, row = token * heads;
        groups_.resize(width);
        HETERO_CHECK(load(token / params_.group * width, width, [&](std::size_t i) { return token * width + i; }));
        const std::uint8_t* q = codes(row, tokens * heads);
        KvOutput x = target(row, tokens * heads);
        x = {x.type, x.data, tokens, width, width};
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
    float* error_;

    const kernels::Ops& ops_ = kernels::ops();
    const std::size_t head_dim_ = shape_.head_dim, row_bytes_ = codec_.row_elements(params_, shape_.head_dim);
    const int bits_ = codec_.bits();
    const bool is_signed_ = codec_.range(params_).low < 0;
    GroupScales groups_;
    std::vector<float> x_;
    std::vector<std::uint8_t> codes_;
};

std::uint64_t GroupedCodec::row_elements(const Params&, std::uint32_t head_dim) const noexcept {
    const auto width = static_cast<std::uint64_t>(bits());
    if (width == 8) return head_dim;
    return width == 4 ? ceil_div(head_dim, 2) : 4 * ceil_div(head_dim * width, 32);
}

Status GroupedCodec::check(const Params& params, std::uint32_t head_dim) const {
    return check_group_params(name(), params, head_dim);
}

std::uint64_t GroupedCodec::groups(const Params& params, const Shape& shape) const noexcept {
    if (params.axis == Axis::token) {
        const std::uint64_t group = token_group(params, shape.head_dim);
        return group == 0 ? 0 : ceil_div(shape.head_dim, group);
    }
    return ceil_div(shape.tokens, group_tokens(params, shape.tokens));
}

std::array<std::uint64_t, 3> GroupedCodec::scale_shape(const Params& params, const Shape& shape) const noexcept {
    const std::uint64_t n = groups(params, shape);
    switch (params.axis) {
        case Axis::token:
            return {shape.tokens, shape.heads, n};
        case Axis::channel:
            return {n, shape.heads, shape.head_dim};
        case Axis::head:
            return {n, shape.heads, 1};
        default:
            return {n, 1, 1};
    }
}

std::uint64_t GroupedCodec::token_step(const Params& params) const noexcept {
    return params.axis == Axis::token ? 1 : params.group;
}

EncodedBytes GroupedCodec::bytes(const Params& params, const Shape& shape) const noexcept {
    const auto extents = scale_shape(params, shape);
    const std::uint64_t scale = extents[0] * extents[1] * extents[2] * scale_bytes(params);
    return {shape.tokens * shape.heads * row_elements(params, shape.head_dim), scale, params.symmetric ? 0 : scale};
}

Status GroupedCodec::encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                                 const EncodedSpans& out) const {
    return encode_from(params, shape, DType::f32, std::as_bytes(values), out, nullptr);
}

Status GroupedCodec::decode(const Params& params, const Shape& shape, std::span<const std::byte> values,
                            std::span<const std::byte> scale, std::span<const std::byte> zero,
                            std::span<float> out) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_sizes(*this, params, shape, out.size(), {values.size(), scale.size(), zero.size()}));
    Decoder decoder(*this, params, shape, values, scale, zero, DType::f32, std::as_writable_bytes(out), nullptr);
    return decoder.run().map([](bool) {});
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} values", out.size());
}

Status GroupedCodec::encode_from(const Params& params, const Shape& shape, DType type,
                                 std::span<const std::byte> values, const EncodedSpans& out, float* error) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_sizes(*this, params, shape, values.size() / kernels::dtype_info(type).block_bytes,
                             {out.values.size(), out.scale.size(), out.zero.size()}));
    return Encoder(*this, params, shape, type, values, out, error).run();
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} bytes", values.size());
}

Status GroupedCodec::decode_to(const Params& params, const Shape& shape, std::span<const std::byte> values,
                               std::span<const std::byte> scale, std::span<const std::byte> zero, DType type,
                               std::span<std::byte> out, float* error) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_sizes(*this, params, shape, out.size() / kernels::dtype_info(type).block_bytes,
                             {values.size(), scale.size(), zero.size()}));
    HETERO_TRY(const bool fits, Decoder(*this, params, shape, values, scale, zero, type, out, error).run());
    if (fits) return {};
    return Codec::decode_to(params, shape, values, scale, zero, type, out, error);  // which finds the place
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} bytes", out.size());
}

}  // namespace hetero::quant
