#include <algorithm>
#include <limits>
#include <new>

#include "base/stack_memory.h"
#include "quant/grouped_blocks.h"
#include "quant/grouped_codec.h"
#include "quant/place.h"
#include "quant/rotation.h"

namespace hetero::quant {
namespace {

constexpr std::size_t block_rows = 16;  // where each is read twice: few, so that reading memory never pauses
// Scratch that needs no heap: enough for a token, and for a group of 64 tokens of one head of 256.
constexpr std::size_t stack_bytes = std::size_t{24} << 10;

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
        if (params_.hadamard) {
            x_.resize(rows * head_dim_);
            ops_.rotate_rows(from, x_.data());
        } else {
            x_.resize(rows * head_dim_);
            widen(row, rows, x_);
        }
        return {DType::f32, x_.data(), rows, head_dim_, head_dim_};
    }

    void widen(std::size_t row, std::size_t rows, std::span<float> to) const {
        const std::size_t size = head_dim_ * kernels::dtype_info(type_).block_bytes;
        (void)float_codec(type_).decode({}, {rows, 1, shape_.head_dim}, values_.subspan(row * size, rows * size), {},
                                        {}, to);
    }

    // Where n f16 values are made: in their place, or in `scratch`, from where finish() takes them there; null for
    // none.
    struct StoredF16 {
        StoredF16(std::span<std::byte> all, std::size_t index, std::size_t n,
                  std::pmr::vector<std::uint16_t>& scratch) {
            if (n == 0) return;
            place = all.subspan(2 * index, 2 * n);
            if (reinterpret_cast<std::uintptr_t>(place.data()) % alignof(std::uint16_t) == 0) {
                bits = reinterpret_cast<std::uint16_t*>(place.data());
                return;
            }
            scratch.resize(n);
            bits = scratch.data();
        }
        void finish() const {
            if (bits != nullptr && reinterpret_cast<std::byte*>(bits) != place.data())
                std::memcpy(place.data(), bits, place.size());
        }
        std::uint16_t* bits = nullptr;
        std::span<std::byte> place;
    };

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
    // Encoding raises the error itself, or it is found by decoding what was stored.
    [[nodiscard]] float* fused_error() const { return params_.hadamard || !codec_.any_type() ? nullptr : error_; }
    [[nodiscard]] bool measures() const { return error_ != nullptr && fused_error() == nullptr; }

    bool choose(GroupScales& groups, std::size_t n) const {
        const float* min = params_.symmetric ? nullptr : groups.min.data();
        return codec_.choose(params_, min, groups.max.data(), n, groups.scale.data(), groups.zero.data());
    }
    // `groups` become what is stored of them.
    void store(GroupScales& groups, std::size_t index, std::size_t n) const {
        const std::span<float> scale = std::span(groups.scale).first(n), zero = std::span(groups.zero).first(n);
        codec_.round_to_stored(scale, zero);
        store_scales(params_, scale, out_.scale, index);
        if (!params_.symmetric) store_scales(params_, zero, out_.zero, index);
    }

    // `decode` fills back_.
    template <class Decode>
    void measure(std::size_t row, std::size_t rows, Decode decode) {
        if (!measures()) return;
        back_.resize(rows * head_dim_);
        decode(KvOutput{DType::f32, back_.data(), rows, head_dim_, head_dim_});
        if (params_.hadamard) rotate(back_, back_, shape_.head_dim);
        ops_.max_difference(source(row, rows), back_.data(), error_);
    }

    // Runs of a head.
    Status tokens() {
        const std::size_t length = token_group(params_, shape_.head_dim), per_row = ceil_div(head_dim_, length);
        if (head_dim_ % length == 0 && codec_.by_rows(params_) && runs(length)) return {};
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
                if (!choose(groups_, n)) {
                    return name_largest(row * head_dim_ + too_large(groups_, n) * length, length, 1, 0);
                }
                codec_.encode_rows(params_, runs, groups_.scale.data(), zeros(), q, length, fused_error());
                store(groups_, row * per_row, n);
                measure(row, rows, [&](const KvOutput& back) {
                    (void)codec_.decode_rows(params_, q, length, groups_.scale.data(), zeros(), split(back, length),
                                             nullptr);
                });
            }
            pack(row, rows);
        }
        return {};
    }

    // Runs of a head, all at once. False: some cannot be stored; tokens() says which.
    bool runs(std::size_t length) {
        const std::size_t per_row = head_dim_ / length, all = shape_.tokens * shape_.heads;
        const bool whole = params_.hadamard && per_row == 1,  // rotated and measured where its codes are made
            plain = bits_ == 8 && (whole || (!params_.hadamard && !measures()));
        const std::size_t batch = plain ? all : std::max<std::size_t>(1, block_values / head_dim_);
        const int levels = codec_.levels(params_);
        for (std::size_t row = 0; row < all; row += batch) {
            const std::size_t rows = std::min(batch, all - row), n = rows * per_row;
            std::uint8_t* q = codes(row, rows);
            const StoredF16 scales(out_.scale, row * per_row, n, scale_bits_);
            const StoredF16 zero_points(out_.zero, row * per_row, params_.symmetric ? 0 : n, zero_bits_);
            const bool streaming = out_.streaming && plain;
            if (!(whole ? ops_.encode_rotated(source(row, rows), levels, scales.bits, zero_points.bits, q, length,
                                              error_, streaming)
                        : ops_.encode_rows(split(block(row, rows), length), levels, scales.bits, zero_points.bits, q,
                                           length, fused_error(), streaming))) {
                return false;
            }
            scales.finish();
            zero_points.finish();
            if (measures() && !whole) {
                groups_.resize(n);
                ops_.f16_to_f32(scales.bits, groups_.scale.data(), n);
                if (!params_.symmetric) ops_.f16_to_f32(zero_points.bits, groups_.zero.data(), n);
                measure(row, rows, [&](const KvOutput& back) {
                    (void)codec_.decode_rows(params_, q, length, groups_.scale.data(), zeros(), split(back, length),
                                             nullptr);
                });
            }
            pack(row, rows);
        }
        return true;
    }

    // The last run of a head is shorter: one run of each row at a time.
    Status ragged(const KvValues& x, std::size_t length, std::size_t row, std::uint8_t* q) {
        const std::size_t per_row = ceil_div(head_dim_, length);
        std::vector<float> scale(x.rows * per_row), zero(scale.size());
        if (measures()) back_.resize(x.rows * head_dim_);
        for (std::size_t run = 0; run < per_row; ++run) {
            const std::size_t column = run * length, n = std::min(length, head_dim_ - column);
            const KvValues part = part_of(x, column, n);
            if (!ops_.min_max_rows(part, lows(), groups_.max.data())) return fail_finite();
            if (!choose(groups_, x.rows)) {
                return name_largest((row + too_large(groups_, x.rows)) * head_dim_ + column, n, 1, 0);
            }
            codec_.encode_rows(params_, part, groups_.scale.data(), zeros(), q + column, head_dim_, fused_error());
            codec_.round_to_stored(std::span(groups_.scale).first(x.rows), std::span(groups_.zero).first(x.rows));
            if (measures()) {
                (void)codec_.decode_rows(params_, q + column, head_dim_, groups_.scale.data(), zeros(),
                                         {DType::f32, back_.data() + column, x.rows, head_dim_, n}, nullptr);
            }
            for (std::size_t r = 0; r < x.rows; ++r) {
                scale[r * per_row + run] = groups_.scale[r];
                zero[r * per_row + run] = groups_.zero[r];
            }
        }
        measure(row, x.rows, [](const KvOutput&) {});
        store_scales(params_, scale, out_.scale, row * per_row);
        if (!params_.symmetric) store_scales(params_, zero, out_.zero, row * per_row);
        return {};
    }

    // Groups of whole heads over tokens: of each head, or of all. First their extremes, then their codes.
    Status heads() {
        const std::size_t heads = shape_.heads, groups = params_.axis == Axis::head ? heads : 1;
        const std::uint64_t step = group_tokens(params_, shape_.tokens);
        const std::size_t batch = std::max<std::size_t>(1, block_values / (heads * head_dim_)) * heads;
        groups_.resize(batch);
        GroupScales made, stored;  // of the heads: what codes are made from, and what is kept of it
        made.resize(groups);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape_.tokens; token += step, index += groups) {
            const std::size_t begin = token * heads, end = std::min(token + step, shape_.tokens) * heads;
            std::fill(made.min.begin(), made.min.end(), std::numeric_limits<float>::infinity());
            std::fill(made.max.begin(), made.max.end(), -std::numeric_limits<float>::infinity());
            for (std::size_t row = begin; row < end; row += batch) {
                const KvValues x = block(row, std::min(batch, end - row));
                if (!ops_.min_max_rows(x, lows(), groups_.max.data())) return fail_finite();
                for (std::size_t r = 0; r < x.rows; ++r) {
                    float &min = made.min[r % groups], &max = made.max[r % groups];
                    if (!params_.symmetric) min = std::min(min, groups_.min[r]);
                    max = std::max(max, groups_.max[r]);
                }
            }
            if (!choose(made, groups)) {
                return name_largest((begin + too_large(made, groups)) * head_dim_, head_dim_, (end - begin) / groups,
                                    groups * head_dim_);
            }
            stored = made;
            store(stored, index, groups);
            for (std::size_t row = begin; row < end; row += batch) {
                const KvValues x = block(row, std::min(batch, end - row));
                spread(made, x.rows);
                std::uint8_t* q = codes(row, x.rows);
                codec_.encode_rows(params_, x, groups_.scale.data(), zeros(), q, head_dim_, fused_error());
                measure(row, x.rows, [&](const KvOutput& back) {
                    spread(stored, x.rows);
                    (void)codec_.decode_rows(params_, q, head_dim_, groups_.scale.data(), zeros(), back, nullptr);
                });
                pack(row, x.rows);
            }
        }
        return {};
    }
    // To each of `rows` rows the scale of its head.
    void spread(const GroupScales& heads, std::size_t rows) {
        const std::size_t n = heads.scale.size();
        for (std::size_t r = 0, head = 0; r < rows; ++r, head = head + 1 < n ? head + 1 : 0) {
            groups_.scale[r] = heads.scale[head];
            groups_.zero[r] = heads.zero[head];
        }
    }

    // Channels of a token group, side by side: all heads at once, so that memory is read in order.
    Status channels() {
        const bool is_signed = codec_.is_signed(params_), at_once = codec_.by_rows(params_) && !params_.hadamard;
        const std::size_t heads = shape_.heads, width = heads * head_dim_;
        groups_.resize(width);
        std::size_t index = 0;
        for (std::uint64_t token = 0; token < shape_.tokens; token += params_.group, index += width) {
            const std::size_t tokens = std::min<std::uint64_t>(params_.group, shape_.tokens - token);
            const std::size_t row = token * heads, rows = tokens * heads;
            KvValues x = block(row, rows);
            x = {x.type, x.data, tokens, width, width};
            std::uint8_t* q = codes(row, rows);
            if (at_once && columns(x, index, q)) {
                pack(row, rows);
                continue;
            }
            if (!ops_.min_max_columns(x, lows(), groups_.max.data())) return fail_finite();
            if (!choose(groups_, width)) {
                return name_largest(row * head_dim_ + too_large(groups_, width), 1, tokens, width);
            }
            ops_.quantize_columns(x, groups_.scale.data(), zeros(), is_signed, q, width, fused_error());
            store(groups_, index, width);
            measure(row, rows, [&](const KvOutput& back) {
                (void)ops_.dequantize_columns(q, width, is_signed, groups_.scale.data(), zeros(),
                                              {back.type, back.data, tokens, width, width}, nullptr);
            });
            pack(row, rows);
        }
        return {};
    }
    // False: some cannot be stored; channels() says which.
    bool columns(const KvValues& x, std::size_t index, std::uint8_t* q) {
        const StoredF16 scales(out_.scale, index, x.n, scale_bits_);
        const StoredF16 zero_points(out_.zero, index, params_.symmetric ? 0 : x.n, zero_bits_);
        if (!ops_.encode_columns(x, codec_.levels(params_), scales.bits, zero_points.bits, q, x.n, fused_error(),
                                 out_.streaming && bits_ == 8)) {
            return false;
        }
        scales.finish();
        zero_points.finish();
        return true;
    }

    // ---- what went wrong: found again in f32, at leisure

    [[nodiscard]] std::vector<float> all_values() const {
        std::vector<float> values(shape_.elements());
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

    // The first of n groups that cannot be represented; one of them cannot.
    [[nodiscard]] std::size_t too_large(const GroupScales& groups, std::size_t n) const {
        for (std::size_t group = 0; group + 1 < n; ++group) {
            const float* min = params_.symmetric ? nullptr : &groups.min[group];
            float scale = 0, zero = 0;
            if (!codec_.choose(params_, min, &groups.max[group], 1, &scale, &zero)) return group;
        }
        return n - 1;
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
    StackMemory<stack_bytes> memory_;
    GroupScales groups_{memory_.get()};
    std::pmr::vector<float> x_{memory_.get()}, back_{memory_.get()};
    std::pmr::vector<std::uint8_t> codes_{memory_.get()};
    std::pmr::vector<std::uint16_t> scale_bits_{memory_.get()}, zero_bits_{memory_.get()};
};

Status GroupedCodec::encode_into(const Params& params, const Shape& shape, std::span<const float> values,
                                 const EncodedSpans& out) const {
    return encode_from(params, shape, DType::f32, std::as_bytes(values), out, nullptr);
}

Status GroupedCodec::encode_from(const Params& params, const Shape& shape, DType type,
                                 std::span<const std::byte> values, const EncodedSpans& out, float* error) const try {
    HETERO_CHECK(check(params, shape.head_dim));
    HETERO_CHECK(check_sizes(*this, params, shape, values.size() / kernels::dtype_info(type).block_bytes,
                             {out.values.size(), out.scale.size(), out.zero.size()}));
    HETERO_CHECK(check_bytes(type, shape, values.size()));
    return Encoder(*this, params, shape, type, values, out, error).run();
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: scratch for {} bytes", values.size());
}

}  // namespace hetero::quant
