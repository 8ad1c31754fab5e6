#include <algorithm>
#include <cmath>
#include <queue>
#include <vector>

#include "kernels/common/codes.h"
#include "kernels/ref/kv_values.h"

namespace hetero::kernels::ref {
namespace {

// Codes one after the other, lowest bit first.
class BitWriter {
public:
    explicit BitWriter(std::uint8_t* to) : to_(to) {}
    void put(std::uint32_t code, int width) {
        bits_ |= code << used_;
        for (used_ += width; used_ >= 8; used_ -= 8, bits_ >>= 8) *to_++ = static_cast<std::uint8_t>(bits_);
    }
    void finish(const std::uint8_t* end) {
        while (to_ != end) {
            *to_++ = static_cast<std::uint8_t>(bits_);
            bits_ = 0;
        }
    }

private:
    std::uint8_t* to_;
    std::uint32_t bits_ = 0;
    int used_ = 0;
};

class BitReader {
public:
    explicit BitReader(const std::uint8_t* from) : from_(from) {}
    std::uint32_t take(int width) {
        for (; held_ < width; held_ += 8) bits_ |= std::uint32_t{*from_++} << held_;
        const std::uint32_t code = bits_ & ((1U << width) - 1);
        bits_ >>= width;
        held_ -= width;
        return code;
    }

private:
    const std::uint8_t* from_;
    std::uint32_t bits_ = 0;
    int held_ = 0;
};

}  // namespace

void fill_widths(const float* range, std::size_t n, int mean_width, std::uint8_t* width, float* step) {
    const auto after = [step](std::size_t a, std::size_t b) {
        return step[a] < step[b] || (step[a] == step[b] && a > b);
    };
    std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(after)> columns(after);  // that may win a bit
    for (std::size_t c = 0; c < n; ++c) {
        width[c] = 1;
        step[c] = width_step(range[c], 1);
        columns.push(c);
    }
    for (std::size_t bits = n * static_cast<std::size_t>(mean_width - 1); bits > 0; --bits) {
        const std::size_t best = columns.top();
        columns.pop();
        step[best] = width_step(range[best], ++width[best]);
        if (width[best] < max_width) columns.push(best);
    }
}

void quantize_widths(const KvValues& x, const float* step, const float* zero, const std::uint8_t* width,
                     std::uint8_t* q, std::size_t q_stride, std::size_t row_bytes, float* error) {
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        BitWriter to(q);
        for (std::size_t c = 0; c < x.n; ++c) {
            const float value = value_at(x, row, c), top = static_cast<float>((1 << width[c]) - 1);
            const float code = step[c] == 0 ? 0 : std::clamp(std::nearbyint((value - zero[c]) / step[c]), 0.0F, top);
            to.put(static_cast<std::uint32_t>(code), width[c]);
            raise(error, std::fabs(code * step[c] + zero[c] - value));
        }
        to.finish(q + row_bytes);
    }
}

bool dequantize_widths(const std::uint8_t* q, std::size_t q_stride, std::size_t /*row_bytes*/, const float* step,
                       const float* zero, const std::uint8_t* width, const KvOutput& x, float* error) {
    bool finite = true;
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        BitReader from(q);
        for (std::size_t c = 0; c < x.n; ++c) {
            const float value = static_cast<float>(from.take(width[c])) * step[c] + zero[c];
            const float stored = store_at(x, row, c, value);
            finite = finite && std::isfinite(stored);
            raise(error, std::fabs(stored - value));
        }
    }
    return finite;
}

}  // namespace hetero::kernels::ref
