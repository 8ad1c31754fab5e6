#include "hw/probes/products.h"

#include <cmath>
#include <cstring>
#include <random>

namespace hetero::hw {
namespace {

using kernels::DType;
using kernels::RowProduct;

constexpr std::size_t distinct_tokens = 8;
constexpr std::size_t distinct_rows = kernels::packed_rows;  // one group of packed weights

// Random weights. Of quantized types the codes are random bytes, scale and minimum are small f16 numbers.
std::vector<std::byte> random_rows(DType type, std::size_t row_bytes) {
    constexpr std::size_t n = distinct_rows * Products::cols;
    const kernels::DTypeInfo& info = kernels::dtype_info(type);
    const kernels::Ops& ops = kernels::ops();
    std::vector<std::byte> out(distinct_rows * row_bytes);
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    if (info.block_elems == 1) {
        std::vector<float> values(n);
        for (float& value : values) value = uniform(random);
        std::vector<std::uint16_t> words(n);
        if (type == DType::f16) ops.f32_to_f16(values.data(), words.data(), n);
        if (type == DType::bf16) ops.f32_to_bf16(values.data(), words.data(), n);
        const void* from = type == DType::f32 ? static_cast<const void*>(values.data()) : words.data();
        std::memcpy(out.data(), from, out.size());
        return out;
    }
    for (std::byte& byte : out) byte = static_cast<std::byte>(random());
    const std::size_t f16_fields = type == DType::q4_1 ? 2 : 1;  // at the start of a block
    for (std::size_t block = 0; block < out.size(); block += info.block_bytes) {
        for (std::size_t field = 0; field < f16_fields; ++field) {
            const float value = uniform(random) / 64;
            std::uint16_t word = 0;
            ops.f32_to_f16(&value, &word, 1);
            std::memcpy(out.data() + block + 2 * field, &word, sizeof word);
        }
    }
    return out;
}

}  // namespace

Products::Products(DType type, Path path, std::span<std::byte> memory, ThreadPool& pool)
    : type_(type),
      path_(path),
      pool_(pool),
      packing_(kernels::packing_of(type)),
      tiles_(path == Path::fast ? kernels::tile_ops() : nullptr),
      row_bytes_(kernels::dtype_bytes(type, cols)),
      group_bytes_(path == Path::fast ? kernels::packed_bytes(packing_, distinct_rows, cols)
                                      : distinct_rows * row_bytes_),
      weights_(memory.data()),
      distinct_(random_rows(type, row_bytes_)),
      x_(max_tokens * cols),
      quantized_(kernels::activation_bytes(max_tokens + max_batch, cols)),
      tiles_of_x_(kernels::tiles_size(max_tokens, cols)) {
    fill(memory);
    y_.resize(std::max(max_tokens * gemm_rows, max_batch * rows_));
    std::mt19937 random(2);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto distinct = x_.begin() + distinct_tokens * cols;
    std::generate(x_.begin(), distinct, [&] { return uniform(random); });
    for (auto at = distinct; at != x_.end(); at += distinct_tokens * cols) std::copy(x_.begin(), distinct, at);
    round_inputs();
}

double Products::bytes_per_weight() const {
    return static_cast<double>(group_bytes_) / static_cast<double>(distinct_rows * cols);
}
std::size_t Products::bytes() const { return rows_ / distinct_rows * group_bytes_; }

void Products::fill(std::span<std::byte> memory) {
    std::vector<std::byte> group = distinct_;
    if (path_ == Path::fast) {
        group.resize(group_bytes_);
        kernels::pack(type_, distinct_.data(), row_bytes_, distinct_rows, cols, 0, 1, group.data());
    }
    const std::size_t groups = memory.size() / group.size();
    rows_ = groups * distinct_rows;
    pool_.parallel_for(groups, [&](std::size_t index, int) {
        std::memcpy(weights_ + index * group.size(), group.data(), group.size());
    });
}

// The first max_batch tokens are quantized apart too: tiles of activations depend on the number of tokens.
void Products::round_inputs() {
    if (path_ == Path::precise) return;
    if (tiles_ != nullptr) {
        tiles_->round(x_.data(), cols, max_tokens, {tiles_of_x_.data(), cols, 0, cols});
    } else {
        kernels::ops().quantize_activations(x_.data(), cols, max_tokens, cols, quantized_.data(), nullptr);
    }
}

RowProduct Products::how(bool tiled) const {
    if (path_ == Path::precise) return RowProduct::unpacked;
    return tiled ? RowProduct::tiles : RowProduct::packed;
}

void Products::gemm(std::size_t n_tokens) {
    const auto threads = static_cast<std::size_t>(pool_.size());
    const RowProduct way = how(tiles_ != nullptr);
    const std::size_t tokens = kernels::tokens_per_task(n_tokens, threads, way);
    const std::size_t parts = (n_tokens + tokens - 1) / tokens;
    const std::size_t step = std::min(gemm_rows, kernels::rows_per_task(gemm_rows * parts, threads, way));
    const std::size_t blocks = (gemm_rows + step - 1) / step;
    const kernels::Ops& ops = kernels::ops();
    pool_.parallel_for(parts * blocks, [&](std::size_t task, int) {
        const std::size_t begin = task % blocks * step, end = std::min(begin + step, gemm_rows);
        const std::size_t first = task / blocks * tokens, count = std::min(tokens, n_tokens - first);
        float* y = y_.data() + first * gemm_rows;
        if (way == RowProduct::unpacked) {
            ops.gemm(type_, weights_, row_bytes_, begin, end, cols, x_.data() + first * cols, cols, count, y,
                     gemm_rows);
        } else if (way == RowProduct::tiles) {
            tiles_->gemm(packing_, weights_, begin, end, cols, tiles_of_x_.data(), count, false, y + begin, gemm_rows);
        } else {
            ops.packed_gemm(packing_, weights_, begin, end, cols,
                            quantized_.data() + kernels::activation_bytes(first, cols), nullptr, count, y, gemm_rows);
        }
    });
}

void Products::batch_of(std::size_t rows, std::size_t tokens) {
    const std::size_t step = kernels::rows_per_task(rows, static_cast<std::size_t>(pool_.size()), how(false));
    const kernels::Ops& ops = kernels::ops();
    std::byte* quantized = quantized_.data() + kernels::activation_bytes(max_tokens, cols);
    if (path_ == Path::fast) ops.quantize_activations(x_.data(), cols, tokens, cols, quantized, nullptr);
    pool_.parallel_for((rows + step - 1) / step, [&](std::size_t task, int) {
        const std::size_t begin = task * step, end = std::min(begin + step, rows);
        if (path_ == Path::fast) {
            ops.packed_gemm(packing_, weights_, begin, end, cols, quantized, nullptr, tokens, y_.data(), rows_);
        } else if (tokens == 1) {
            ops.gemv(type_, weights_, row_bytes_, begin, end, cols, x_.data(), y_.data());
        } else {
            ops.gemm(type_, weights_, row_bytes_, begin, end, cols, x_.data(), cols, tokens, y_.data(), rows_);
        }
    });
}

std::size_t Products::wrong_rows(const float* y, std::size_t y_stride, std::size_t token, bool tiled) const {
    constexpr std::size_t block = kernels::packed_cols;
    const bool rounds_weights = path_ == Path::fast && kernels::dtype_info(type_).block_elems == 1;
    const float* x = x_.data() + token * cols;
    std::vector<float> w(cols);
    std::size_t wrong = 0;
    for (std::size_t row = 0; row < distinct_rows; ++row) {
        kernels::ops().dequantize(type_, distinct_.data() + row * row_bytes_, w.data(), cols);
        double sum = 0, w2 = 0, x2 = 0, rounding = 0;
        for (std::size_t b = 0; b < cols; b += block) {
            double w_max = 0, x_max = 0;
            for (std::size_t c = b; c < b + block; ++c) {
                w_max = std::max(w_max, std::fabs(double{w[c]}));
                x_max = std::max(x_max, std::fabs(double{x[c]}));
            }
            // Of one operand: to 8 bits by block (half a step, and the scale in f16), or to bf16.
            const double w_error = rounds_weights ? w_max * (0.5 / 127 + 0x1p-11) : 0;
            for (std::size_t c = b; c < b + block; ++c) {
                const double a = w[c], v = x[c];
                sum += a * v;
                w2 += a * a;
                x2 += v * v;
                const double a_error = w_error + (tiled ? (std::fabs(a) + w_error) * 0x1p-8 : 0);
                const double v_error = path_ == Path::precise ? 0 : tiled ? std::fabs(v) * 0x1p-8 : x_max * 0.5 / 127;
                rounding += (std::fabs(a) + a_error) * v_error + a_error * std::fabs(v);
            }
        }
        const double bound = rounding + (2 * std::sqrt(static_cast<double>(cols)) + 8) * std::sqrt(w2 * x2) * 0x1p-23;
        if (!(std::fabs(y[token * y_stride + row] - sum) <= bound)) ++wrong;
    }
    return wrong;
}

std::optional<std::string> Products::fault() {
    std::size_t wrong = 0, looked_at = 0;
    const auto look = [&](std::size_t stride, std::size_t tokens, bool tiled) {
        for (const std::size_t token : {std::size_t{0}, tokens / 2, tokens - 1}) {
            wrong += wrong_rows(y_.data(), stride, token, tiled);
            looked_at += distinct_rows;
        }
    };
    constexpr std::size_t rows = 10 * distinct_rows, few_tokens = 2 * kernels::tile_tokens;
    for (const std::size_t tokens : {std::size_t{1}, max_batch}) {
        batch_of(rows, tokens);
        look(rows_, tokens, false);
    }
    gemm(few_tokens);
    look(gemm_rows, few_tokens, tiles_ != nullptr);
    if (wrong == 0) return std::nullopt;
    return fmt::format("{} of {} results of a test differ from sums in double precision", wrong, looked_at);
}

}  // namespace hetero::hw
