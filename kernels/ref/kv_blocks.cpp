#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/codes.h"
#include "kernels/common/fp8.h"
#include "kernels/ref/kv_values.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

struct Extremes {
    float low = INFINITY, high = -INFINITY;
    bool finite = true;
    void add(float value) {
        finite = finite && std::isfinite(value);
        low = std::min(low, value);
        high = std::max(high, value);
    }
    bool give(std::size_t index, float* min, float* max) const {
        if (min != nullptr) min[index] = low;
        max[index] = min != nullptr ? high : std::max(std::fabs(low), std::fabs(high));
        return finite;
    }
};

KvValues row_of(const KvValues& x, std::size_t row) {
    const std::size_t bytes = dtype_info(x.type).block_bytes;
    return {x.type, static_cast<const std::byte*>(x.data) + row * x.stride * bytes, 1, x.stride, x.n};
}

// scale(row, i), zero(row, i)
template <class Scale, class Zero>
void quantize(const KvValues& x, Scale scale, Zero zero, bool is_signed, std::uint8_t* q, std::size_t q_stride,
              float* error) {
    for (std::size_t row = 0; row < x.rows; ++row) {
        for (std::size_t i = 0; i < x.n; ++i) {
            const float value = value_at(x, row, i), s = scale(row, i), z = zero(row, i);
            const float code = integer_code(value, s, z, is_signed);
            q[row * q_stride + i] = static_cast<std::uint8_t>(static_cast<int>(code));
            raise(error, std::fabs(coded_value(code, s, z) - value));
        }
    }
}

template <class Scale, class Zero>
bool dequantize(const std::uint8_t* q, std::size_t q_stride, bool is_signed, Scale scale, Zero zero, const KvOutput& x,
                float* error) {
    bool finite = true;
    for (std::size_t row = 0; row < x.rows; ++row) {
        for (std::size_t i = 0; i < x.n; ++i) {
            const std::uint8_t byte = q[row * q_stride + i];
            const int code = is_signed ? static_cast<std::int8_t>(byte) : byte;
            const float value = coded_value(static_cast<float>(code), scale(row, i), zero(row, i));
            const float stored = store_at(x, row, i, value);
            finite = finite && std::isfinite(stored);
            raise(error, std::fabs(stored - value));
        }
    }
    return finite;
}

// A row of codes as f32, rotated. `out`: x.n.
void rotated_row(const std::uint8_t* q, bool is_signed, float scale, float zero, std::size_t n, float* out) {
    const KvOutput row{DType::f32, out, 1, n, n};
    (void)dequantize_rows(q, n, is_signed, &scale, &zero, row, nullptr);
    const std::size_t block = n & (~n + 1);
    if (n != 0) hadamard(out, out, n / block, block);
}

auto by_row(const float* values) {
    return [values](std::size_t row, std::size_t) { return values == nullptr ? 0 : values[row]; };
}
auto by_column(const float* values) {
    return [values](std::size_t, std::size_t i) { return values == nullptr ? 0 : values[i]; };
}

}  // namespace

bool min_max_rows(const KvValues& x, float* min, float* max) {
    bool finite = true;
    for (std::size_t row = 0; row < x.rows; ++row) {
        Extremes found;
        for (std::size_t i = 0; i < x.n; ++i) found.add(value_at(x, row, i));
        finite = found.give(row, min, max) && finite;
    }
    return finite;
}

bool min_max_columns(const KvValues& x, float* min, float* max) {
    bool finite = true;
    for (std::size_t i = 0; i < x.n; ++i) {
        Extremes found;
        for (std::size_t row = 0; row < x.rows; ++row) found.add(value_at(x, row, i));
        finite = found.give(i, min, max) && finite;
    }
    return finite;
}

bool copy_finite(const KvValues& x, void* y, std::size_t y_stride) {
    bool finite = true;
    const std::size_t bytes = dtype_info(x.type).block_bytes;
    for (std::size_t row = 0; row < x.rows; ++row) {
        std::memcpy(static_cast<std::byte*>(y) + row * y_stride * bytes,
                    static_cast<const std::byte*>(x.data) + row * x.stride * bytes, x.n * bytes);
        for (std::size_t i = 0; i < x.n; ++i) finite = finite && std::isfinite(value_at(x, row, i));
    }
    return finite;
}

bool group_scales(const float* min, const float* max, std::size_t n, int levels, std::uint16_t* scale,
                  std::uint16_t* zero) {
    bool finite = true;
    for (std::size_t i = 0; i < n; ++i) {
        const GroupScale group = group_scale(zero != nullptr ? min[i] : 0, max[i], levels, zero != nullptr);
        scale[i] = group.scale;
        if (zero != nullptr) zero[i] = group.zero;
        finite = finite && group.finite;
    }
    return finite;
}

bool encode_rows(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                 std::size_t q_stride, float* error, bool /*streaming*/) {
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        const KvValues one = row_of(x, row);
        float min = 0, max = 0;
        if (!min_max_rows(one, zero != nullptr ? &min : nullptr, &max)) return false;
        if (!group_scales(&min, &max, 1, levels, scale + row, zero != nullptr ? zero + row : nullptr)) return false;
        const float s = f16_to_f32(scale[row]), z = zero != nullptr ? f16_to_f32(zero[row]) : 0;
        quantize_rows(one, &s, &z, zero == nullptr, q, q_stride, error);
    }
    return true;
}

bool encode_columns(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                    std::size_t q_stride, float* error, bool /*streaming*/) {
    std::vector<float> min(x.n), max(x.n), s(x.n), z(x.n);
    if (!min_max_columns(x, zero != nullptr ? min.data() : nullptr, max.data())) return false;
    if (!group_scales(min.data(), max.data(), x.n, levels, scale, zero)) return false;
    for (std::size_t i = 0; i < x.n; ++i) {
        s[i] = f16_to_f32(scale[i]);
        z[i] = zero != nullptr ? f16_to_f32(zero[i]) : 0;
    }
    quantize_columns(x, s.data(), z.data(), zero == nullptr, q, q_stride, error);
    return true;
}

void quantize_rows(const KvValues& x, const float* scale, const float* zero, bool is_signed, std::uint8_t* q,
                   std::size_t q_stride, float* error) {
    quantize(x, by_row(scale), by_row(zero), is_signed, q, q_stride, error);
}

void quantize_columns(const KvValues& x, const float* scale, const float* zero, bool is_signed, std::uint8_t* q,
                      std::size_t q_stride, float* error) {
    quantize(x, by_column(scale), by_column(zero), is_signed, q, q_stride, error);
}

bool dequantize_rows(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale, const float* zero,
                     const KvOutput& x, float* error) {
    return dequantize(q, q_stride, is_signed, by_row(scale), by_row(zero), x, error);
}

bool dequantize_columns(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero, const KvOutput& x, float* error) {
    return dequantize(q, q_stride, is_signed, by_column(scale), by_column(zero), x, error);
}

void rotate_rows(const KvValues& x, float* y) {
    for (std::size_t row = 0; row < x.rows; ++row)
        for (std::size_t i = 0; i < x.n; ++i) y[row * x.n + i] = value_at(x, row, i);
    const std::size_t block = x.n & (~x.n + 1);
    if (x.n != 0) hadamard(y, y, x.rows * x.n / block, block);
}

bool dequantize_rotated(const std::uint8_t* q, std::size_t q_stride, bool is_signed, const float* scale,
                        const float* zero, const KvOutput& x, float* error) {
    bool finite = true;
    std::vector<float> values(x.n);
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        rotated_row(q, is_signed, scale[row], zero == nullptr ? 0 : zero[row], x.n, values.data());
        for (std::size_t i = 0; i < x.n; ++i) {
            const float stored = store_at(x, row, i, values[i]);
            finite = finite && std::isfinite(stored);
            raise(error, std::fabs(stored - values[i]));
        }
    }
    return finite;
}

bool encode_rotated(const KvValues& x, int levels, std::uint16_t* scale, std::uint16_t* zero, std::uint8_t* q,
                    std::size_t q_stride, float* error, bool /*streaming*/) {
    std::vector<float> values(x.n);
    for (std::size_t row = 0; row < x.rows; ++row, q += q_stride) {
        const KvValues one = row_of(x, row);
        rotate_rows(one, values.data());
        std::uint16_t* zero_of = zero != nullptr ? zero + row : nullptr;
        if (!encode_rows({DType::f32, values.data(), 1, x.n, x.n}, levels, scale + row, zero_of, q, q_stride, nullptr,
                         false))
            return false;
        rotated_row(q, zero == nullptr, f16_to_f32(scale[row]), zero != nullptr ? f16_to_f32(*zero_of) : 0, x.n,
                    values.data());
        max_difference(one, values.data(), error);
    }
    return true;
}

void quantize_fp8(Fp8 format, const KvValues& x, const float* scale, std::uint8_t* q, std::size_t q_stride,
                  float* error) {
    const Fp8Layout layout = fp8_layout(format);
    for (std::size_t row = 0; row < x.rows; ++row) {
        for (std::size_t i = 0; i < x.n; ++i) {
            const float value = value_at(x, row, i);
            const std::uint8_t code = fp8_code(layout, value, scale[row]);
            q[row * q_stride + i] = code;
            raise(error, std::fabs(fp8_to_f32(layout, code) * scale[row] - value));
        }
    }
}

bool dequantize_fp8(Fp8 format, const std::uint8_t* q, std::size_t q_stride, const float* scale, const KvOutput& x,
                    float* error) {
    const Fp8Layout layout = fp8_layout(format);
    bool finite = true;
    for (std::size_t row = 0; row < x.rows; ++row) {
        for (std::size_t i = 0; i < x.n; ++i) {
            const float value = fp8_to_f32(layout, q[row * q_stride + i]) * scale[row];
            const float stored = store_at(x, row, i, value);
            finite = finite && std::isfinite(stored);
            raise(error, std::fabs(stored - value));
        }
    }
    return finite;
}

void max_difference(const KvValues& x, const float* y, float* error) {
    for (std::size_t row = 0; row < x.rows; ++row)
        for (std::size_t i = 0; i < x.n; ++i) raise(error, std::fabs(value_at(x, row, i) - y[row * x.n + i]));
}

void copy_streaming(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace hetero::kernels::ref
