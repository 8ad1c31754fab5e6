// Matrix products with weights of each type, as the engine runs them: gemm (many tokens, prefill) and gemv (one token,
// decode). A type counts as executable only where its result agrees with the sum in double precision.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/threads.h"
#include "hw/probes/probes.h"
#include "kernels/api/ops.h"

namespace hetero::hw {
namespace {

using kernels::DType;

constexpr std::size_t cols = 2048, gemm_rows = 1024, gemm_tokens = 128;
constexpr std::size_t distinct_rows = 16;
constexpr std::size_t rows_per_task = 64;

struct Weights {
    DType type = DType::f32;
    std::size_t row_bytes = 0, rows = 0;
    std::vector<std::byte> bytes;  // [row]
};

// Random weights. Of quantized types the codes are random bytes, scale and minimum are small f16 numbers.
Weights make_weights(DType type, std::size_t rows) {
    const kernels::DTypeInfo& info = kernels::dtype_info(type);
    Weights weights{type, kernels::dtype_bytes(type, cols), rows, {}};
    weights.bytes.resize(weights.row_bytes * rows);
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const kernels::Ops& ops = kernels::ops();
    for (std::size_t row = 0; row < std::min(rows, distinct_rows); ++row) {
        std::byte* out = weights.bytes.data() + row * weights.row_bytes;
        if (info.block_elems == 1) {
            std::vector<float> values(cols);
            for (float& value : values) value = uniform(random);
            std::vector<std::uint16_t> words(cols);
            if (type == DType::f32) std::memcpy(out, values.data(), weights.row_bytes);
            if (type == DType::f16) ops.f32_to_f16(values.data(), words.data(), cols);
            if (type == DType::bf16) ops.f32_to_bf16(values.data(), words.data(), cols);
            if (type != DType::f32) std::memcpy(out, words.data(), weights.row_bytes);
            continue;
        }
        for (std::size_t i = 0; i < weights.row_bytes; ++i) out[i] = static_cast<std::byte>(random());
        const std::size_t f16_fields = type == DType::q4_1 ? 2 : 1;  // at the start of a block
        for (std::size_t block = 0; block < weights.row_bytes; block += info.block_bytes) {
            for (std::size_t field = 0; field < f16_fields; ++field) {
                const float value = uniform(random) / 64;
                std::uint16_t word = 0;
                ops.f32_to_f16(&value, &word, 1);
                std::memcpy(out + block + 2 * field, &word, sizeof word);
            }
        }
    }
    for (std::size_t row = distinct_rows; row < rows; ++row) {
        std::memcpy(weights.bytes.data() + row * weights.row_bytes,
                    weights.bytes.data() + row % distinct_rows * weights.row_bytes, weights.row_bytes);
    }
    return weights;
}

// Best time of a call of `run` within the budget, at least one.
template <class Run>
double best_seconds(double budget_s, Run run) {
    double best = std::numeric_limits<double>::infinity(), used = 0;
    do {
        const auto start = std::chrono::steady_clock::now();
        run();
        const double seconds = seconds_since(start);
        best = std::min(best, seconds);
        used += seconds;
    } while (used < budget_s);
    return best;
}

void gemm(ThreadPool& pool, const Weights& w, const std::vector<float>& x, std::vector<float>& y) {
    pool.parallel_for((gemm_rows + rows_per_task - 1) / rows_per_task, [&](std::size_t task, int) {
        const std::size_t begin = task * rows_per_task;
        kernels::ops().gemm(w.type, w.bytes.data(), w.row_bytes, begin, std::min(begin + rows_per_task, gemm_rows),
                            cols, x.data(), cols, gemm_tokens, y.data(), gemm_rows);
    });
}

void gemv(ThreadPool& pool, const Weights& w, const std::vector<float>& x, std::vector<float>& y) {
    const std::size_t tasks = (w.rows + rows_per_task - 1) / rows_per_task;
    pool.parallel_for(tasks, [&](std::size_t task, int) {
        const std::size_t begin = task * rows_per_task;
        kernels::ops().gemv(w.type, w.bytes.data(), w.row_bytes, begin, std::min(begin + rows_per_task, w.rows), cols,
                            x.data(), y.data());
    });
}

// The first rows of gemm and gemv against double precision, within the bound that kernels/api/ops.h gives for them.
bool agrees(const Weights& w, const std::vector<float>& x, const std::vector<float>& gemm_y,
            const std::vector<float>& gemv_y) {
    std::vector<float> row_values(cols);
    for (std::size_t row = 0; row < distinct_rows; ++row) {
        kernels::ops().dequantize(w.type, w.bytes.data() + row * w.row_bytes, row_values.data(), cols);
        for (const std::size_t token : {std::size_t{0}, gemm_tokens - 1}) {
            double sum = 0, w2 = 0, x2 = 0;
            for (std::size_t c = 0; c < cols; ++c) {
                const double a = row_values[c], b = x[token * cols + c];
                sum += a * b;
                w2 += a * a;
                x2 += b * b;
            }
            const double bound = (2 * std::sqrt(static_cast<double>(cols)) + 8) * std::sqrt(w2 * x2) * 0x1p-24;
            if (!(std::fabs(gemm_y[token * gemm_rows + row] - sum) <= bound)) return false;
            if (token == 0 && !(std::fabs(gemv_y[row] - sum) <= bound)) return false;
        }
    }
    return true;
}

Json measure(const Context& context, DType type, ThreadPool& pool, std::size_t gemv_bytes) {
    const std::size_t rows = std::max(gemm_rows, gemv_bytes / kernels::dtype_bytes(type, cols));
    const Weights weights = make_weights(type, rows);
    std::vector<float> x(cols * gemm_tokens), gemm_y(gemm_rows * gemm_tokens), gemv_y(rows);
    std::mt19937 random(2);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : x) value = uniform(random);

    gemm(pool, weights, x, gemm_y);
    gemv(pool, weights, x, gemv_y);
    Json entry;
    entry["dtype"] = std::string(kernels::dtype_info(type).name);
    entry["threads"] = pool.size();
    const bool executable = agrees(weights, x, gemm_y, gemv_y);
    entry["executable"] = executable;
    if (!executable) {
        put_unknown(entry, "gemm_gflop_per_s", "the result is wrong");
        put_unknown(entry, "gemv_gb_per_s", "the result is wrong");
        return entry;
    }
    const double budget_s = context.options.seconds_each / 4;  // two products, with one and with all threads
    const double gemm_s = best_seconds(budget_s, [&] { gemm(pool, weights, x, gemm_y); });
    const double gemv_s = best_seconds(budget_s, [&] { gemv(pool, weights, x, gemv_y); });
    entry["gemm_gflop_per_s"] = rounded(2.0 * gemm_rows * cols * gemm_tokens / gemm_s / 1e9);
    entry["gemv_gb_per_s"] = rounded(static_cast<double>(weights.bytes.size()) / gemv_s / 1e9);
    return entry;
}

}  // namespace

Json probe_compute(const Context& context) {
    Json section;
    if (context.recorded() || !context.options.measure) {
        const char* reason = context.recorded() ? not_recorded : not_measured;
        put_unknown(section, "backend", reason);
        put_unknown(section, "rates", reason);
        return section;
    }
    section["backend"] = kernels::ops().name;
    const std::size_t gemv_bytes = std::min<std::uint64_t>(64ULL << 20, context.limits.memory_available_bytes / 8);
    section["method"] = fmt::format(
        "gemm: {} rows x {} columns, {} tokens; gemv: {} bytes of weights, read once; f32 activations and sums; best "
        "call",
        gemm_rows, cols, gemm_tokens, gemv_bytes);
    Json rates = Json::array();
    for (const int threads : {1, context.threads}) {
        if (threads == 1 && !rates.empty()) break;
        ThreadPool pool(threads);
        for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1}) {
            rates.push_back(measure(context, type, pool, gemv_bytes));
        }
    }
    section["rates"] = rates;
    return section;
}

}  // namespace hetero::hw
