// Columns whose codes have unlike widths, to the bits of ref/kv_widths.cpp. Included by generic.h after kv_blocks.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

constexpr std::size_t kMaxColumns = 512;  // of a head; the tables lie on the stack
constexpr std::size_t kFewestBytes = 16;  // of a row
constexpr int kMaxWidth = 12;

HETERO_INLINE std::int32_t bits_of(float value) {
    std::int32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    return bits;
}
HETERO_INLINE float float_of(std::int32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return value;
}
HETERO_INLINE float step_of(float range, std::int32_t width) { return range / static_cast<float>((1 << width) - 1); }

// ---- widths

// A column is given a bit as long as its step is above a level that is common to all: the level is searched, and what
// is then left, a bit or two, is done as the definition says. Steps are not negative: their bits have their order.
struct Filling {
    const float* range;
    std::int32_t n;
    std::int32_t width[kMaxColumns];
    std::int32_t next[kMaxColumns];  // the step that the next bit would end; -1: there is none
    std::int32_t last[kMaxColumns];  // the step that the last bit ended; the largest number: there is none

    // Bits above the first that columns get whose step is above `level`, but for rounding.
    HETERO_INLINE std::int32_t fill(float level) {
        const float inverse = 1 / level;
        std::int32_t sum = 0;
        for (std::int32_t c = 0; c < n; ++c) {
            const std::int32_t exponent = (bits_of(range[c] * inverse + 1) >> 23) - 127;
            const std::int32_t more = exponent < kMaxWidth - 1 ? exponent : kMaxWidth - 1;
            width[c] = 1 + more;
            sum += more;
        }
        return sum;
    }
    HETERO_INLINE void find_steps() {
        for (std::int32_t c = 0; c < n; ++c) {
            const std::int32_t now = bits_of(step_of(range[c], width[c])),
                               before = bits_of(step_of(range[c], width[c] > 1 ? width[c] - 1 : 1));
            next[c] = width[c] < kMaxWidth ? now : -1;
            last[c] = width[c] > 1 ? before : 0x7fffffff;
        }
    }
    HETERO_INLINE void change(std::int32_t c, std::int32_t by) {
        width[c] += by;
        next[c] = width[c] < kMaxWidth ? bits_of(step_of(range[c], width[c])) : -1;
        last[c] = width[c] > 1 ? bits_of(step_of(range[c], width[c] - 1)) : 0x7fffffff;
    }
    HETERO_INLINE std::int32_t first_to_win() const {
        std::int32_t largest = -1, found = n;
        for (std::int32_t c = 0; c < n; ++c) largest = next[c] > largest ? next[c] : largest;
        for (std::int32_t c = 0; c < n; ++c) {
            const std::int32_t at = next[c] == largest ? c : n;
            found = at < found ? at : found;
        }
        return found;
    }
    HETERO_INLINE std::int32_t first_to_lose() const {
        std::int32_t smallest = 0x7fffffff, found = 0;
        for (std::int32_t c = 0; c < n; ++c) smallest = last[c] < smallest ? last[c] : smallest;
        for (std::int32_t c = 0; c < n; ++c) {
            const std::int32_t at = last[c] == smallest ? c : 0;
            found = at > found ? at : found;
        }
        return found;
    }
};

void fill_widths(const float* range, std::size_t n, int mean_width, std::uint8_t* width, float* step) {
    if (n > kMaxColumns) return ref::fill_widths(range, n, mean_width, width, step);
    Filling filling;
    filling.range = range;
    filling.n = static_cast<std::int32_t>(n);
    const std::int32_t bits = filling.n * (mean_width - 1);
    std::int32_t positive = 0, lowest = 0x7f7fffff, highest = 0;
    for (std::int32_t c = 0; c < filling.n; ++c) {
        const std::int32_t now = bits_of(range[c]), other = now > 0 ? now : 0x7f7fffff;
        positive += now > 0 ? 1 : 0;
        lowest = other < lowest ? other : lowest;
        highest = now > highest ? now : highest;
    }
    if ((kMaxWidth - 1) * positive <= bits) {  // they win all they can, the others are equal
        std::int32_t left = bits - (kMaxWidth - 1) * positive;
        for (std::int32_t c = 0; c < filling.n; ++c) {
            std::int32_t more = kMaxWidth - 1;
            if (!(range[c] > 0)) {
                more = left < more ? left : more;
                left -= more;
            }
            filling.width[c] = 1 + more;
        }
    } else {
        constexpr std::int32_t octave = 1 << 23;
        std::int32_t low = bits_of(float_of(lowest) * 0x1p-13F), high = highest,
                     level = highest - octave * (mean_width - 1);
        if (level <= low) level = low + (high - low) / 2;
        std::int32_t sum = filling.fill(float_of(level));
        for (int i = 0; i < 16; ++i) {
            const std::int32_t off = sum - bits;
            if (off >= -1 && off <= 1) break;
            (off > 0 ? low : high) = level;
            const std::int64_t guess = level + std::int64_t{off} * octave / positive;
            level = guess > low && guess < high ? static_cast<std::int32_t>(guess) : low + (high - low) / 2;
            sum = filling.fill(float_of(level));
        }
        filling.find_steps();
        while (true) {
            const std::int32_t best = sum <= bits ? filling.first_to_win() : 0,
                               worst = sum >= bits ? filling.first_to_lose() : 0;
            if (sum == bits) {
                const std::int32_t won = filling.next[best], lost = filling.last[worst];
                if (won < lost || (won == lost && best >= worst)) break;
            }
            const bool gives = sum <= bits, takes = sum >= bits;
            if (gives) filling.change(best, 1);
            if (takes) filling.change(worst, -1);
            sum += (gives ? 1 : 0) - (takes ? 1 : 0);
        }
    }
    for (std::int32_t c = 0; c < filling.n; ++c) {
        step[c] = step_of(range[c], filling.width[c]);
        width[c] = static_cast<std::uint8_t>(filling.width[c]);
    }
}

// ---- codes

// Of n columns, made up to a multiple of 32 by such as have no bits.
struct Columns {
    alignas(64) float step[kMaxColumns], zero_point[kMaxColumns], reciprocal[kMaxColumns], margin[kMaxColumns];
    std::int32_t at[kMaxColumns], width[kMaxColumns];  // at: first bit in a row
    std::size_t padded;

    HETERO_INLINE Columns(std::size_t n, const float* steps, const float* zeros, const std::uint8_t* widths) {
        padded = (n + 31) / 32 * 32;
        std::int32_t begin = 0;
        for (std::size_t c = 0; c < padded; ++c) {
            const bool is_there = c < n;
            step[c] = is_there ? steps[c] : 0;
            zero_point[c] = is_there ? zeros[c] : 0;
            width[c] = is_there ? widths[c] : 0;
            at[c] = begin;
            begin += width[c];
        }
    }
};

// How the codes of 32 columns, four by four, get to their place in a row.
struct Places {
    alignas(64) std::int16_t factor[kMaxColumns];
    std::uint64_t shift[kMaxColumns / 4], place[kMaxColumns / 4];  // in the order of join_fours()
    std::uint32_t byte[kMaxColumns / 4], drop[kMaxColumns / 4];    // in that of the columns

    static HETERO_INLINE std::size_t order(std::size_t four) { return 2 * (four % 4) + four / 4; }

    // A four is stored with the bits of its first byte that belong to those before it, in eight bytes within the row.
    HETERO_INLINE Places(const Columns& columns, std::size_t row_bytes) {
        const auto last = static_cast<std::int32_t>(row_bytes) - 8;
        std::int32_t before = 0;
        for (std::size_t c = 0; c < columns.padded; c += 4) {
            const std::int32_t *width = columns.width + c, wanted = columns.at[c] / 8,
                               begin = wanted < last ? wanted : last;
            const std::size_t four = c / 4, base = c / 32 * 32, to = order(c % 32 / 4);
            std::int16_t* factors = factor + base + 4 * to;
            factors[0] = factors[2] = 1;
            factors[1] = static_cast<std::int16_t>(1 << width[0]);
            factors[3] = static_cast<std::int16_t>(1 << width[2]);
            shift[base / 4 + to] = static_cast<std::uint64_t>(width[0] + width[1]);
            place[base / 4 + to] = static_cast<std::uint64_t>(columns.at[c] - 8 * begin);
            byte[four] = static_cast<std::uint32_t>(begin);
            drop[four] = static_cast<std::uint32_t>(8 * (begin - before));
            before = begin;
        }
    }
};

template <class T, bool Error>
HETERO_INLINE void quantize_widths_as(const KvValues& x, const Columns& columns, const Places& places, bool divide,
                                      std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, float* error) {
    F32x16 worst = zero();
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        const Byte* p = row_of<T>(x, row);
        prefetch_some(p, x.n * T::kBytes, x.rows * x.stride * T::kBytes);
        std::memset(q + row_bytes - 4, 0, 4);
        std::uint64_t held = 0;
        for (std::size_t i = 0; i < columns.padded; i += 2 * kLanes) {
            F32x16 v[2], d[2], off[2];
            I32x16 k[2];
#pragma GCC unroll 2
            for (std::size_t j = 0; j < 2; ++j) {
                const std::size_t c = i + j * kLanes;
                v[j] = get_some<T>(p, c, x.n);
                d[j] = v[j] - load(columns.zero_point + c);
                const F32x16 product = d[j] * load(columns.reciprocal + c);
                k[j] = round_to_int(product);
                off[j] = abs(from_integer(product)) + load(columns.margin + c);
            }
            if (__builtin_expect(divide || any_greater(max(off[0], off[1]), splat(0.5F)), 0)) {
#pragma GCC unroll 2
                for (std::size_t j = 0; j < 2; ++j)
                    k[j] = round_to_int(exact_quotient(d[j], load(columns.step + i + j * kLanes)));
            }
            if (Error) {
#pragma GCC unroll 2
                for (std::size_t j = 0; j < 2; ++j) {
                    const std::size_t c = i + j * kLanes;
                    worst =
                        max_abs(worst, to_float(k[j]) * load(columns.step + c) + load(columns.zero_point + c) - v[j]);
                }
            }
            alignas(64) std::uint64_t fours[8];
            join_fours(k[0], k[1], places.factor + i, places.shift + i / 4, places.place + i / 4, fours);
            __asm__("" : "+m"(fours));  // kept in memory: taking a vector apart would cost more than all the rest
#pragma GCC unroll 8
            for (std::size_t four = 0; four < 8; ++four) {
                held = (held >> places.drop[i / 4 + four]) | fours[Places::order(four)];
                std::memcpy(q + places.byte[i / 4 + four], &held, 8);
            }
        }
    }
    if (Error) raise(error, worst);
}

template <class T, bool Checked>
bool dequantize_widths_as(const std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, const float* step,
                          const float* zero_point, const std::uint8_t* width, const KvOutput& x, float* error) {
    const Columns columns(x.n, step, zero_point, width);
    BitFields fields[kMaxColumns / kLanes];
    for (std::size_t i = 0; i < x.n; i += kLanes)
        fields[i / kLanes] = bit_fields(columns.at + i, columns.width + i, row_bytes);
    F32x16 worst = zero(), largest = zero();
    auto* out = static_cast<Byte*>(x.data);
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride, out += x.stride * T::kBytes) {
        prefetch_some(reinterpret_cast<const Byte*>(q), row_bytes, x.rows * q_stride);
        std::size_t i = 0;
        for (; i + kLanes <= x.n; i += kLanes) {
            const F32x16 value =
                to_float(take_fields(q, fields[i / kLanes])) * load(columns.step + i) + load(columns.zero_point + i);
            T::put(out + i * T::kBytes, value);
            if (!Checked) continue;
            largest = max_abs(largest, value);
            worst = max_abs(worst, T::get(out + i * T::kBytes) - value);
        }
        if (i == x.n) continue;
        const F32x16 value =
            to_float(take_fields(q, fields[i / kLanes])) * load(columns.step + i) + load(columns.zero_point + i);
        Byte stored[kLanes * T::kBytes];
        T::put(stored, value);
        std::memcpy(out + i * T::kBytes, stored, (x.n - i) * T::kBytes);
        largest = max_abs(largest, value);
        worst = max_abs(worst, T::get(stored) - value);
    }
    if (error != nullptr) raise(error, worst);
    return max_lane(largest) < T::kBeyond;
}

void quantize_widths(const KvValues& x, const float* step, const float* zero_point, const std::uint8_t* width,
                     std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, float* error) {
    if (x.n > kMaxColumns || row_bytes < kFewestBytes)
        return ref::quantize_widths(x, step, zero_point, width, q, q_stride, row_bytes, error);
    Columns columns(x.n, step, zero_point, width);
    const Places places(columns, row_bytes);
    bool divide = false;
    float largest = 0;
    for (std::size_t c = 0; c < x.n; ++c) {
        divide |= needs_division(step[c]);
        // Half a step, and what f32 rounds on the way.
        const float one = step[c] * 0.5F + (step[c] * (1 << kMaxWidth) + __builtin_fabsf(zero_point[c])) * 0x1p-21F;
        largest = one > largest ? one : largest;
    }
    for (std::size_t c = 0; c < columns.padded; c += kLanes)
        store(columns.reciprocal + c, reciprocal_of(load(columns.step + c)));
    // Product and quotient differ by less than this: 2^-22 of the largest code.
    for (std::size_t c = 0; c < columns.padded; ++c)
        columns.margin[c] = static_cast<float>(1 << columns.width[c]) * 0x1p-21F;
    const bool measured = error != nullptr && largest > *error;
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        measured ? quantize_widths_as<T, true>(x, columns, places, divide, q, q_stride, row_bytes, error)
                 : quantize_widths_as<T, false>(x, columns, places, divide, q, q_stride, row_bytes, error);
    });
}

bool dequantize_widths(const std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, const float* step,
                       const float* zero_point, const std::uint8_t* width, const KvOutput& x, float* error) {
    if (x.n > kMaxColumns || row_bytes < kFewestBytes)
        return ref::dequantize_widths(q, q_stride, row_bytes, step, zero_point, width, x, error);
    float largest = 0;
    for (std::size_t c = 0; c < x.n; ++c) {
        const float top = static_cast<float>((1 << width[c]) - 1);
        const float low = __builtin_fabsf(zero_point[c]), high = __builtin_fabsf(zero_point[c] + top * step[c]);
        const float one = (low > high ? low : high) * (1 + 0x1p-20F);
        largest = one > largest ? one : largest;
    }
    return with_type(x.type, [&](auto type) {
        using T = decltype(type);
        return matters<T>(largest, error)
                   ? dequantize_widths_as<T, true>(q, q_stride, row_bytes, step, zero_point, width, x, error)
                   : dequantize_widths_as<T, false>(q, q_stride, row_bytes, step, zero_point, width, x, error);
    });
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
