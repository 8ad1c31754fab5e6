// Products, conversions and embeddings under the bounds of kernels/api/device.h.
#include "conformance/kernels/inputs.h"
#include "device.h"

using namespace hetero::kernels;
using namespace hetero::test;

namespace {

constexpr double u = 0x1p-24;

double norm_of(const float* x, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return std::sqrt(sum);
}

}  // namespace

TEST_CASE("gemv of every weight type keeps its bound, and a token its bits in any batch") {
    on_device([](const Device& device) {
        Random random(1);
        for (const WeightType& type : weight_types())
            for (const std::size_t cols : {256, 1280, 2304}) {
                const auto& info = dtype_info(type.type);
                CAPTURE(std::string(info.name));
                CAPTURE(cols);
                const bool plain = info.block_elems == 1;
                const std::size_t n = plain ? cols + 5 : cols, rows = 7, row_bytes = dtype_bytes(type.type, n);
                const std::vector<std::uint8_t> w = random_weights(type, rows * n, random);
                const std::vector<float> values = dequantized(type.type, w, rows * n);
                const std::size_t most = 9, x_stride = n + (n % 4 == 0 ? 4 : 3), y_stride = rows + 2;
                std::vector<float> x(most * x_stride), scale(rows), bias(rows);
                fill_normal(x, random);
                spoil_gaps(x, n, x_stride);
                fill_normal(scale, random);
                fill_normal(bias, random);
                const auto dw = device.upload(w);
                const auto dx = device.upload(x), ds = device.upload(scale), db = device.upload(bias);
                std::vector<float> all;
                for (const std::size_t tokens : {std::size_t{9}, std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
                    const bool add = tokens != 9;
                    const bool full = tokens != 2;  // with row_scale and bias
                    const DeviceMatrix m{
                        type.type, dw.get(), rows, n, row_bytes, full ? ds.get() : nullptr, full ? db.get() : nullptr};
                    const auto dy = device.upload(std::vector<float>(tokens * y_stride, 0.25F));
                    check(device.ops.gemv(device.stream, m, dx, x_stride, tokens, dy, y_stride, add));
                    const std::vector<float> y = dy.read();
                    if (tokens == 9) all = y;
                    std::size_t far = 0, other = 0;
                    for (std::size_t t = 0; t < tokens; ++t) {
                        for (std::size_t r = 0; r < rows; ++r) {
                            double sum = 0;
                            for (std::size_t c = 0; c < n; ++c)
                                sum +=
                                    static_cast<double>(values[r * n + c]) * static_cast<double>(x[t * x_stride + c]);
                            const double factor = full ? scale[r] : 1, more = full ? bias[r] : 0;
                            const double exact = sum * factor + more + (add ? 0.25 : 0);
                            const double bound = (2 * std::sqrt(n) + 8) * u * norm_of(&values[r * n], n) *
                                                     norm_of(&x[t * x_stride], n) * std::fabs(factor) +
                                                 3 * u * (std::fabs(exact) + std::fabs(more) + 0.25);
                            const float got = y[t * y_stride + r];
                            far += !(std::fabs(got - exact) <= bound);
                            if (full && add) other += got != 0.25F + all[t * y_stride + r];
                        }
                        far += y[t * y_stride + rows] != 0.25F;  // between the rows
                    }
                    CHECK(far == 0);
                    CHECK(other == 0);
                }
            }
    });
}

TEST_CASE("conversions and embeddings are exact") {
    on_device([](const Device& device) {
        Random random(2);
        for (const WeightType& type : weight_types()) {
            const auto& info = dtype_info(type.type);
            CAPTURE(std::string(info.name));
            const std::size_t rows = 5, n = info.block_elems == 1 ? 301 : 512, bytes = dtype_bytes(type.type, n);
            const std::size_t stride = bytes + 8 * info.block_bytes;
            std::vector<std::uint8_t> padded(rows * stride, 0xFF);
            const std::vector<std::uint8_t> w = random_weights(type, rows * n, random);
            for (std::size_t r = 0; r < rows; ++r)
                std::copy_n(w.begin() + static_cast<long>(r * bytes), bytes,
                            padded.begin() + static_cast<long>(r * stride));
            const std::vector<float> values = dequantized(type.type, w, rows * n);
            const auto dw = device.upload(padded);
            for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
                const std::size_t size = to == DType::f32 ? 4 : 2, y_stride = (n + 3) * size;
                const auto dy = device.upload(std::vector<std::uint8_t>(rows * y_stride, 0xEE));
                check(device.ops.convert(device.stream, type.type, dw.get(), stride, to, dy.get(), y_stride, rows, n));
                std::vector<std::uint8_t> expected(rows * y_stride, 0xEE);
                for (std::size_t r = 0; r < rows; ++r) {
                    void* at = expected.data() + r * y_stride;
                    if (to == DType::f32) std::memcpy(at, &values[r * n], 4 * n);
                    if (to == DType::f16) scalar().f32_to_f16(&values[r * n], static_cast<std::uint16_t*>(at), n);
                    if (to == DType::bf16) scalar().f32_to_bf16(&values[r * n], static_cast<std::uint16_t*>(at), n);
                }
                CHECK(count_differing(dy.read(), expected) == 0);
            }
            const std::vector<std::int32_t> ids = {4, 0, -1, 5, 2};
            const auto di = device.upload(ids);
            const auto out = device.upload(std::vector<float>(ids.size() * (n + 1), 9));
            check(device.ops.embed(device.stream, {type.type, dw.get(), rows, n, stride, nullptr, nullptr}, di,
                                   ids.size(), 1.5F, out, n + 1));
            std::vector<float> expected(ids.size() * (n + 1), 9);
            for (std::size_t t = 0; t < ids.size(); ++t)
                for (std::size_t i = 0; i < n; ++i)
                    expected[t * (n + 1) + i] =
                        ids[t] < 0 || ids[t] > 4 ? 0 : values[static_cast<std::size_t>(ids[t]) * n + i] * 1.5F;
            CHECK(count_differing(out.read(), expected) == 0);
        }
        // Values at the ends of what the types hold.
        const std::vector<float> special = special_values();
        const auto dx = device.upload(special);
        for (const DType to : {DType::f16, DType::bf16}) {
            const auto dy = device.allocate<std::uint16_t>(special.size());
            check(device.ops.convert(device.stream, DType::f32, dx.get(), 0, to, dy.get(), 0, 1, special.size()));
            std::vector<std::uint16_t> expected(special.size());
            (to == DType::f16 ? scalar().f32_to_f16 : scalar().f32_to_bf16)(special.data(), expected.data(),
                                                                            special.size());
            CHECK(count_differing(dy.read(), expected) == 0);
        }
    });
}

TEST_CASE("rows to 8 bits have the bits of the reference") {
    on_device([](const Device& device) {
        Random random(3);
        const std::size_t rows = 4, cols = 1100, stride = 1104;
        std::vector<float> x(rows * stride);
        fill_normal(x, random);
        for (std::size_t i = 0; i < cols; ++i) x[stride + i] = 0;
        x[2 * stride + 700] = std::numeric_limits<float>::infinity();
        const auto dx = device.upload(x);
        for (const bool fp8 : {false, true}) {
            const auto q = device.allocate<std::uint8_t>(rows * cols);
            const auto scale = device.allocate<float>(rows);
            check(device.ops.quantize_rows(device.stream, dx, stride, rows, cols,
                                           fp8 ? DeviceInput::e4m3fn : DeviceInput::i8, q.get(), cols, scale));
            const std::vector<std::uint8_t> codes = q.read();
            const std::vector<float> scales = scale.read();
            CHECK(scales[1] == 0);
            CHECK(std::isnan(scales[2]));
            for (const std::size_t r : {0, 1, 3}) {
                float largest = 0;
                for (std::size_t i = 0; i < cols; ++i) largest = std::max(largest, std::fabs(x[r * stride + i]));
                const float expected_scale = largest / (fp8 ? 448.0F : 127.0F);
                CHECK(scales[r] == expected_scale);
                std::vector<std::uint8_t> expected(cols);
                if (fp8)
                    scalar().quantize_fp8(Fp8::e4m3fn, &x[r * stride], expected_scale, expected.data(), cols);
                else
                    scalar().quantize_i8(&x[r * stride], expected_scale,
                                         reinterpret_cast<std::int8_t*>(expected.data()), cols);
                CHECK(std::equal(expected.begin(), expected.end(), codes.begin() + static_cast<long>(r * cols)));
            }
        }
    });
}
