// Q4_K: 256 values in 8 groups of 32, x = d * scale * q - dmin * min; q has 4 bits, scale and min of a group 6 bits, d
// and dmin of the block 16. The layout is ggml's; the search is our own: each group is fitted by least squares over a
// range of steps, then the 6-bit scales and mins are tried around their nearest values with the d and dmin that are
// stored, and the smallest squared error wins.
#include <algorithm>
#include <array>
#include <limits>

#include "kernels/api/ggml_scale.h"
#include "quant/weights/blocks.h"

namespace hetero::quant {
namespace {

constexpr int group_size = 32, groups = 8, max_six = 63;
constexpr float max_code = 15;
using Codes = std::array<float, group_size>;

// x is about scale * q + low, low <= 0.
struct Line {
    float scale = 0, low = 0;
};

// Four values at once on every machine, so that the bits are the same on all: the compiler has no freedom in the order
// of the sums.
using Four = float __attribute__((vector_size(16)));
using FourInts = int __attribute__((vector_size(16)));

Four load(const float* at) {
    Four four;
    std::memcpy(&four, at, sizeof four);
    return four;
}
float sum(Four four) { return (four[0] + four[2]) + (four[1] + four[3]); }

// The nearest codes of a line; returns the squared error.
float nearest_codes(const float* x, Line line, Codes& codes) {
    const float inverse = kernels::ggml_reciprocal(line.scale);
    const Four zero{}, top = zero + max_code;
    Four error{};
    for (std::size_t i = 0; i < group_size; i += 4) {
        const Four values = load(x + i), raw = (values - line.low) * inverse;
        const Four low = raw > zero ? raw : zero, at = low < top ? low : top;
        const Four code = __builtin_convertvector(__builtin_convertvector(at + 0.5F, FourInts), Four);
        std::memcpy(&codes[i], &code, sizeof code);
        const Four off = line.scale * code + line.low - values;
        error += off * off;
    }
    return sum(error);
}

// The line that fits x best in the sense of least squares, given the codes.
Line fit(const float* x, float sum_x, const Codes& codes) {
    Four q_sum{}, qq_sum{}, xq_sum{};
    for (std::size_t i = 0; i < group_size; i += 4) {
        const Four code = load(&codes[i]);
        q_sum += code;
        qq_sum += code * code;
        xq_sum += load(x + i) * code;
    }
    const float q = sum(q_sum), qq = sum(qq_sum), xq = sum(xq_sum);
    const float determinant = group_size * qq - q * q;
    Line line;
    if (determinant > 0) {
        line.scale = (group_size * xq - q * sum_x) / determinant;
        line.low = (qq * sum_x - q * xq) / determinant;
    }
    if (line.low > 0 || determinant <= 0) line = {qq > 0 ? xq / qq : 0, 0};
    return line;
}

Line best_line(const float* x) {
    const float low = std::min(*std::min_element(x, x + group_size), 0.0F);
    const float high = *std::max_element(x, x + group_size);
    if (!(high > low)) return {0, low};
    Line best{(high - low) / max_code, low};
    Codes codes;
    float least = nearest_codes(x, best, codes);
    float sum_x = 0;
    for (int i = 0; i < group_size; ++i) sum_x += x[i];
    // Starts that leave the extremes out, or codes unused; each is improved as in Lloyd's algorithm, line and codes in
    // turn (https://doi.org/10.1109/TIT.1982.1056489).
    for (const float part : {1.0F, 0.5F}) {
        for (float steps = max_code - 2; steps <= max_code + 2; steps += 0.5F) {
            Line line{(high - part * low) / steps, part * low};
            if (!(line.scale > 0)) continue;
            nearest_codes(x, line, codes);
            for (int round = 0; round < 2; ++round) {
                line = fit(x, sum_x, codes);
                if (!(line.scale > 0)) break;
                const float error = nearest_codes(x, line, codes);
                if (error < least) {
                    least = error;
                    best = line;
                }
            }
        }
    }
    return best;
}

struct Six {
    int scale = 0, min = 0;
};

// The 6-bit scale and min near those of `line` that leave the smallest error, given the 16-bit d and dmin.
Six best_six(const float* x, Line line, float d, float dmin, Codes& best_codes) {
    const auto nearest = [](float value, float step) {
        return std::clamp(step > 0 ? static_cast<int>(value / step + 0.5F) : 0, 0, max_six);
    };
    const Six centre{nearest(line.scale, d), nearest(-line.low, dmin)};
    Six best = centre;
    float least = std::numeric_limits<float>::infinity();
    Codes codes;
    for (int min = std::max(centre.min - 1, 0); min <= std::min(centre.min + 1, max_six); ++min) {
        for (int scale = std::max(centre.scale - 2, 0); scale <= std::min(centre.scale + 2, max_six); ++scale) {
            const float error =
                nearest_codes(x, {d * static_cast<float>(scale), -dmin * static_cast<float>(min)}, codes);
            if (error < least) {
                least = error;
                best = {scale, min};
                best_codes = codes;
            }
        }
    }
    return best;
}

bool encode_block(const float* x, std::byte* block) {
    std::array<Line, groups> lines;
    float largest_scale = 0, largest_min = 0;
    for (std::size_t g = 0; g < groups; ++g) {
        lines[g] = best_line(x + g * group_size);
        largest_scale = std::max(largest_scale, lines[g].scale);
        largest_min = std::max(largest_min, -lines[g].low);
    }
    if (!kernels::store_ggml_scale(largest_scale / max_six, block) ||
        !kernels::store_ggml_scale(largest_min / max_six, block + 2))
        return false;
    std::uint16_t halves[2];
    std::memcpy(halves, block, sizeof halves);
    const float d = from_half(halves[0]), dmin = from_half(halves[1]);

    std::array<std::uint8_t, 12> packed{};  // low 6 bits of groups 0..3, then the rest in nibbles and spare bits
    std::fill(block + 16, block + 144, std::byte{0});
    for (std::size_t g = 0; g < groups; ++g) {
        Codes codes{};
        const Six six = best_six(x + g * group_size, lines[g], d, dmin, codes);
        if (g < 4) {
            packed[g] = static_cast<std::uint8_t>(packed[g] | six.scale);
            packed[g + 4] = static_cast<std::uint8_t>(packed[g + 4] | six.min);
        } else {
            packed[g + 4] = static_cast<std::uint8_t>((six.scale & 0xf) | (six.min & 0xf) << 4);
            packed[g - 4] = static_cast<std::uint8_t>(packed[g - 4] | (six.scale >> 4) << 6);
            packed[g] = static_cast<std::uint8_t>(packed[g] | (six.min >> 4) << 6);
        }
        // Two groups share 32 bytes: low nibbles, then high ones.
        for (std::size_t i = 0; i < group_size; ++i) {
            block[16 + g / 2 * group_size + i] |= static_cast<std::byte>(static_cast<int>(codes[i]) << (g % 2 * 4));
        }
    }
    std::memcpy(block + 4, packed.data(), packed.size());
    return true;
}

class Q4_K final : public WeightFormat {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "q4_k"; }
    [[nodiscard]] kernels::DType dtype() const noexcept override { return kernels::DType::q4_k; }
    [[nodiscard]] RowProblem encode(std::span<const float> row, std::byte* out, float*) const override {
        return encode_blocks(row, dtype(), out, encode_block);
    }
};

}  // namespace

const WeightFormat& weights_q4_k() {
    static const Q4_K format;
    return format;
}

}  // namespace hetero::quant
