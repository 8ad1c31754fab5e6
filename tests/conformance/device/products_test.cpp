// Products, conversions and embeddings under the bounds of kernels/api/device.h.
#include <array>

#include "conformance/kernels/inputs.h"
#include "device.h"
#include "kernels/common/fp8.h"

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

TEST_CASE("gemv of matrices together has the bits of gemv of each") {
    on_device([](const Device& device) {
        Random random(8);
        const std::size_t all_rows[] = {9, 3, 6}, cols = 96, x_stride = cols + 4, most = 9;
        for (const WeightType& type : weight_types()) {
            if (type.type != DType::q8_0 && type.type != DType::bf16) continue;
            std::vector<float> x(most * x_stride), more(9);
            fill_normal(x, random);
            fill_normal(more, random);
            const auto dx = device.upload(x), dm = device.upload(more);
            std::vector<DeviceArray<std::uint8_t>> weights;
            for (const std::size_t rows : all_rows)
                weights.push_back(device.upload(random_weights(type, rows * cols, random)));
            for (const std::size_t n : {1, 2, 3})
                for (const std::size_t tokens : {1, 2, 3, 9}) {
                    std::vector<DeviceArray<float>> one_by_one, together;
                    DeviceProduct products[3];
                    for (std::size_t i = 0; i < n; ++i) {
                        const std::size_t rows = all_rows[i], y_stride = rows + i;
                        const DeviceMatrix w{type.type,
                                             weights[i].get(),
                                             rows,
                                             cols,
                                             dtype_bytes(type.type, cols),
                                             i == 1 ? dm.get() : nullptr,
                                             i != 1 ? dm.get() : nullptr};
                        for (auto* out : {&one_by_one, &together})
                            out->push_back(device.upload(std::vector<float>(tokens * y_stride, 0.5F)));
                        check(device.ops.gemv(device.stream, w, dx, x_stride, tokens, one_by_one[i], y_stride, false));
                        products[i] = {w, together[i], y_stride};
                    }
                    check(device.ops.gemv_together(device.stream, products, n, dx, x_stride, tokens));
                    for (std::size_t i = 0; i < n; ++i)
                        CHECK(count_differing(together[i].read(), one_by_one[i].read()) == 0);
                }
        }
        DeviceProduct unlike[2];
        for (DeviceProduct& one : unlike) one.w = {DType::f32, nullptr, 1, 4, 16, nullptr, nullptr};
        unlike[1].w.dtype = DType::bf16;
        CHECK(device.ops.gemv_together(device.stream, unlike, 2, nullptr, 4, 1).kind == DeviceFault::Kind::unsupported);
        unlike[1].w = {DType::f32, nullptr, 1, 8, 32, nullptr, nullptr};
        CHECK(device.ops.gemv_together(device.stream, unlike, 2, nullptr, 4, 1).kind == DeviceFault::Kind::unsupported);
        CHECK(device.ops.gemv_together(device.stream, unlike, 0, nullptr, 4, 1).kind == DeviceFault::Kind::unsupported);
    });
}

TEST_CASE("gemv of heads has the bits of gemv of each") {
    on_device([](const Device& device) {
        Random random(7);
        const std::size_t heads = 3, rows = 5, cols = 96, tokens = 3;
        const std::size_t x_head = cols + 4, x_stride = heads * x_head + 1, y_head = rows + 1;
        const std::size_t y_stride = heads * y_head, row_bytes = dtype_bytes(DType::q8_0, cols);
        for (const WeightType& type : weight_types()) {
            if (type.type != DType::q8_0) continue;
            std::vector<float> x(tokens * x_stride), more(2 * heads * rows);
            fill_normal(x, random);
            fill_normal(more, random);
            const auto dw = device.upload(random_weights(type, heads * rows * cols, random));
            const auto dx = device.upload(x), dm = device.upload(more);
            const auto one_by_one = device.upload(std::vector<float>(tokens * y_stride, 0.5F));
            const auto together = device.upload(std::vector<float>(tokens * y_stride, 0.5F));
            const auto head = [&](std::size_t h) {
                return DeviceMatrix{DType::q8_0,         dw.get() + h * rows * row_bytes, rows, cols, row_bytes,
                                    dm.get() + h * rows, dm.get() + (heads + h) * rows};
            };
            for (std::size_t h = 0; h < heads; ++h) {
                check(device.ops.gemv(device.stream, head(h), dx.get() + h * x_head, x_stride, tokens,
                                      one_by_one.get() + h * y_head, y_stride, false));
            }
            check(device.ops.gemv_heads(device.stream, head(0), heads, dx, x_stride, x_head, tokens, together, y_stride,
                                        y_head));
            CHECK(count_differing(together.read(), one_by_one.read()) == 0);
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
                    scalar().quantize_fp8(Fp8::e4m3fn, {DType::f32, &x[r * stride], 1, cols, cols}, &expected_scale,
                                          expected.data(), cols, nullptr);
                else
                    scalar().quantize_i8(&x[r * stride], expected_scale,
                                         reinterpret_cast<std::int8_t*>(expected.data()), cols);
                CHECK(std::equal(expected.begin(), expected.end(), codes.begin() + static_cast<long>(r * cols)));
            }
        }
    });
}

namespace {

struct GemmCase {
    DType type;
    std::size_t rows, cols, tokens;
    bool aligned = false;  // rows are, as the fast paths want them
};

void gemm_holds(const Device& device, const GemmCase& one, DeviceInput input, Random& random) {
    const auto& [type, rows, cols, tokens, aligned] = one;
    CAPTURE(std::string(dtype_info(type).name));
    CAPTURE(rows);
    CAPTURE(cols);
    CAPTURE(tokens);
    CAPTURE(aligned);
    CAPTURE(static_cast<int>(input));
    const bool f16 = input == DeviceInput::f16;
    const auto round = f16 ? scalar().f32_to_f16 : scalar().f32_to_bf16;
    const auto widen = f16 ? scalar().f16_to_f32 : scalar().bf16_to_f32;
    const auto weight = std::find_if(weight_types().begin(), weight_types().end(),
                                     [&](const WeightType& w) { return w.type == one.type; });
    const std::vector<std::uint8_t> w = random_weights(*weight, rows * cols, random);
    const std::size_t bytes = dtype_bytes(type, cols), row_bytes = aligned ? (bytes + 15) / 16 * 16 : bytes;
    std::vector<std::uint8_t> padded(rows * row_bytes, 0xFF);
    for (std::size_t r = 0; r < rows; ++r)
        std::copy_n(w.begin() + static_cast<long>(r * bytes), bytes, padded.begin() + static_cast<long>(r * row_bytes));
    std::vector<float> values = dequantized(type, w, rows * cols);
    std::vector<std::uint16_t> bits(values.size());
    round(values.data(), bits.data(), bits.size());
    widen(bits.data(), values.data(), bits.size());  // a weight of another type is rounded
    const std::size_t x_stride = aligned ? (cols + 15) / 8 * 8 : cols + 9, y_stride = rows + 3;
    std::vector<float> x(tokens * x_stride), scale(rows), bias(rows);
    fill_normal(x, random);
    spoil_gaps(x, cols, x_stride);
    fill_normal(scale, random);
    fill_normal(bias, random);
    std::vector<std::uint16_t> x16(x.size());
    round(x.data(), x16.data(), x.size());
    widen(x16.data(), x.data(), x.size());
    const auto dw = device.upload(padded);
    const auto dx = device.upload(x16);
    const auto ds = device.upload(scale), db = device.upload(bias);
    const bool scaled = type == DType::i8 || type == DType::bf16;
    const DeviceMatrix m{type, dw.get(), rows, cols, row_bytes, scaled ? ds.get() : nullptr, db};
    const std::size_t scratch_bytes = device.ops.gemm_scratch_bytes(m, input, tokens);
    const auto scratch = device.allocate<std::uint8_t>(scratch_bytes);
    for (const bool add : {false, true}) {
        const auto dy = device.upload(std::vector<float>(tokens * y_stride, 2));
        check(device.ops.gemm(device.stream, m, {input, dx.get(), x_stride, nullptr}, tokens, dy, y_stride, add,
                              scratch.get(), scratch_bytes));
        const std::vector<float> y = dy.read();
        std::size_t far = 0;
        for (std::size_t t = 0; t < tokens; ++t) {
            for (std::size_t r = 0; r < rows; ++r) {
                double sum = 0;
                for (std::size_t c = 0; c < cols; ++c)
                    sum += static_cast<double>(values[r * cols + c]) * static_cast<double>(x[t * x_stride + c]);
                const double factor = scaled ? scale[r] : 1;
                const double exact = sum * factor + bias[r] + (add ? 2 : 0);
                const double bound = (2 * std::sqrt(cols) + 8) * u * norm_of(&values[r * cols], cols) *
                                         norm_of(&x[t * x_stride], cols) * std::fabs(factor) +
                                     3 * u * (std::fabs(exact) + std::fabs(bias[r]) + 2);
                far += !(std::fabs(y[t * y_stride + r] - exact) <= bound);
            }
            far += y[t * y_stride + rows] != 2;
        }
        CHECK(far == 0);
    }
}

}  // namespace

TEST_CASE("gemm keeps its bound with weights of any type, in pieces, ragged, added to and scaled") {
    on_device([](const Device& device) {
        Random random(4);
        for (const GemmCase& one : {GemmCase{DType::bf16, 130, 96, 20},
                                    {DType::f16, 40, 37, 131},
                                    {DType::bf16, 129, 40, 129},
                                    {DType::q4_1, 200, 64, 65},
                                    {DType::q6_k, 16, 256, 70},
                                    {DType::f32, 300, 24, 66},
                                    {DType::i8, 20, 33, 4}})
            for (const DeviceInput input : {DeviceInput::bf16, DeviceInput::f16})
                gemm_holds(device, one, input, random);
    });
}

// 64 rows, 64 tokens (16 of f32) and 128 columns are done at a time; parts of the columns by blocks of their own.
TEST_CASE("gemm of up to 64 tokens decodes weights of every type on their way") {
    on_device([](const Device& device) {
        Random random(6);
        for (const WeightType& type : weight_types())
            for (const bool aligned : {true, false}) {
                const bool plain = dtype_info(type.type).block_elems == 1;
                const std::size_t block = dtype_info(type.type).block_elems, some = plain          ? 173
                                                                                    : block == 256 ? 256
                                                                                                   : 160;
                gemm_holds(device, {type.type, 70, some, 19, aligned}, DeviceInput::bf16, random);
                gemm_holds(device, {type.type, 33, plain ? 1540U : 1536U, 9, aligned}, DeviceInput::f16, random);
            }
        for (const std::size_t tokens : {1, 16, 17, 48, 63, 64})
            gemm_holds(device, {DType::q4_0, 65, 96, tokens, true}, DeviceInput::bf16, random);
        for (const std::size_t cols : {128, 256, 288, 640, 1152})
            for (const DType type : {DType::q8_0, DType::q4_k})
                if (cols % dtype_info(type).block_elems == 0)
                    gemm_holds(device, {type, 16, cols, 10, true}, DeviceInput::bf16, random);
    });
}

// Codes of 8 bits with a scale for each row of w [rows][cols], and for each token of x [tokens][cols].
template <class Code>
std::vector<float> scaled_gemm(const Device& device, DType type, DeviceInput input, const std::vector<Code>& w,
                               const std::vector<Code>& x, const std::vector<float>& row_scale,
                               const std::vector<float>& scale) {
    const std::size_t rows = row_scale.size(), cols = w.size() / rows, tokens = scale.size();
    const auto dw = device.upload(w), dx = device.upload(x);
    const auto ds = device.upload(row_scale), dt = device.upload(scale);
    const auto dy = device.allocate<float>(tokens * rows);
    const DeviceMatrix m{type, dw.get(), rows, cols, cols, ds, nullptr};
    const std::size_t bytes = device.ops.gemm_scratch_bytes(m, input, tokens);
    const auto scratch = device.allocate<std::uint8_t>(bytes);
    check(
        device.ops.gemm(device.stream, m, {input, dx.get(), cols, dt}, tokens, dy, rows, false, scratch.get(), bytes));
    return dy.read();
}

TEST_CASE("gemm of 8-bit integers is exact but for its scales") {
    on_device([](const Device& device) {
        Random random(5);
        const std::size_t rows = 70, cols = 80, tokens = 9;
        std::vector<std::int8_t> w(rows * cols), x(tokens * cols);
        for (auto& one : w) one = static_cast<std::int8_t>(random.bits());
        for (auto& one : x) one = static_cast<std::int8_t>(random.bits());
        std::vector<float> row_scale(rows), scale(tokens);
        fill_normal(row_scale, random);
        fill_normal(scale, random);
        const std::vector<float> y = scaled_gemm(device, DType::i8, DeviceInput::i8, w, x, row_scale, scale);
        std::vector<float> expected(tokens * rows);
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t r = 0; r < rows; ++r) {
                std::int32_t sum = 0;
                for (std::size_t c = 0; c < cols; ++c) sum += w[r * cols + c] * x[t * cols + c];
                expected[t * rows + r] = static_cast<float>(sum) * scale[t] * row_scale[r];
            }
        CHECK(count_differing(y, expected) == 0);
    });
}

TEST_CASE("gemm of 8-bit floats keeps the bound of their codes, whatever the sizes") {
    on_device([](const Device& device) {
        Random random(9);
        for (const auto& [rows, cols, tokens] : {std::array<std::size_t, 3>{130, 75, 9}, {32, 64, 16}}) {
            std::vector<std::uint8_t> w(rows * cols), x(tokens * cols);
            for (auto* codes : {&w, &x})
                for (std::uint8_t& code : *codes) {
                    code = static_cast<std::uint8_t>(random.bits());
                    if ((code & 0x7F) == 0x7F) code = 0;  // NaN
                }
            std::vector<float> row_scale(rows), scale(tokens);
            fill_normal(row_scale, random);
            fill_normal(scale, random);
            const std::vector<float> y = scaled_gemm(device, DType::u8, DeviceInput::e4m3fn, w, x, row_scale, scale);
            std::size_t far = 0;
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t r = 0; r < rows; ++r) {
                    double sum = 0, ww = 0, xx = 0;
                    for (std::size_t c = 0; c < cols; ++c) {
                        const auto a = static_cast<double>(e4m3fn_to_f32(w[r * cols + c])),
                                   b = static_cast<double>(e4m3fn_to_f32(x[t * cols + c]));
                        sum += a * b;
                        ww += a * a;
                        xx += b * b;
                    }
                    const double factor = static_cast<double>(scale[t]) * static_cast<double>(row_scale[r]);
                    const double bound =
                        ((2 * std::sqrt(cols) + 8) * std::sqrt(ww * xx) + 3 * std::fabs(sum)) * u * std::fabs(factor);
                    far += !(std::fabs(static_cast<double>(y[t * rows + r]) - sum * factor) <= bound);
                }
            CHECK(far == 0);
        }
    });
}

TEST_CASE("what no kernel is for is refused with its shapes, before anything runs") {
    on_device([](const Device& device) {
        const auto dw = device.allocate<std::uint8_t>(4096);
        const auto dx = device.allocate<float>(256), dy = device.allocate<float>(256);
        DeviceFault fault = device.ops.gemv(device.stream, {DType::q4_k, dw.get(), 2, 100, 144, nullptr, nullptr}, dx,
                                            100, 1, dy, 2, false);
        CHECK(fault.kind == DeviceFault::Kind::unsupported);
        CHECK(fault.message().find("gemv") != std::string::npos);
        CHECK(fault.message().find("cols 100") != std::string::npos);
        fault = device.ops.gemm(device.stream, {DType::q8_0, dw.get(), 2, 32, 34, nullptr, nullptr},
                                {DeviceInput::bf16, dx.get(), 32, nullptr}, 65, dy, 2, false, nullptr, 0);
        CHECK(fault.kind == DeviceFault::Kind::unsupported);
        CHECK(fault.message().find("scratch") != std::string::npos);
    });
}
