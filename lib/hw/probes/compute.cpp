// Matrix products with weights of each type, through the kernels that the engine uses, on its default path and on the
// precise one. A type counts as executable only where its results agree with sums in double precision.
#include "hw/probes/probes.h"
#include "hw/probes/products.h"
#include "kernels/api/ops.h"

namespace hetero::hw {
namespace {

using kernels::DType;
using Path = Products::Path;

struct Subject {
    const char* dtype;
    DType weights;
};
constexpr std::array subjects{Subject{"f32", DType::f32},   Subject{"f16", DType::f16},   Subject{"bf16", DType::bf16},
                              Subject{"int8", DType::q8_0}, Subject{"int4", DType::q4_0}, Subject{"int4", DType::q4_1}};

// What planners ask for and no kernel here has.
struct Lacking {
    const char *dtype, *reason;
};
constexpr std::array lacking{Lacking{"fp8_e4m3fn", "no kernel of this build multiplies fp8 weights"},
                             Lacking{"fp4_e2m1", "no kernel of this build multiplies fp4 weights"}};

constexpr std::size_t precise_gemm_tokens = 128;
constexpr std::size_t small_gemm_tokens = 32;

std::vector<std::size_t> batches(bool quick) {
    return quick ? std::vector<std::size_t>{4, 16} : std::vector<std::size_t>{2, 4, 8, 16, 32};
}

Json measure(const Context& context, const Subject& subject, Path path, std::span<std::byte> memory, ThreadPool& pool) {
    Products products(subject.weights, path, memory, pool);
    Json entry;
    entry["dtype"] = subject.dtype;
    entry["weights"] = std::string(kernels::dtype_info(subject.weights).name);
    entry["path"] = path == Path::fast ? "fast" : "precise";
    entry["threads"] = pool.size();
    if (const auto fault = products.fault()) return unsupported(std::move(entry), *fault);
    entry["executable"] = true;
    const bool quick = context.options.quick;
    const double budget_s = context.options.seconds_each / 8;
    std::size_t tokens = path == Path::fast ? Products::max_tokens : precise_gemm_tokens;
    if (quick && path == Path::precise) tokens = small_gemm_tokens;
    const auto gflop = [](std::size_t rows, std::size_t n) {
        return 2e-9 * static_cast<double>(rows) * Products::cols * static_cast<double>(n);
    };
    entry["bytes_per_weight"] = products.bytes_per_weight();
    entry["gemm_tokens"] = tokens;
    entry["gemm_gflop_per_s"] =
        rounded(gflop(Products::gemm_rows, tokens) / best_seconds(budget_s, [&] { products.gemm(tokens); }));
    entry["gemv_gb_per_s"] =
        rounded(static_cast<double>(products.bytes()) / 1e9 / best_seconds(budget_s, [&] { products.batch(1); }));
    if (path == Path::precise) return entry;
    Json sizes = Json::array(), rates = Json::array();
    for (const std::size_t n : batches(quick)) {
        sizes.push_back(n);
        rates.push_back(rounded(gflop(products.rows(), n) / best_seconds(budget_s, [&] { products.batch(n); })));
    }
    entry["batch_tokens"] = sizes;
    entry["batch_gflop_per_s"] = rates;
    return entry;
}

}  // namespace

Json probe_compute(const Context& context) {
    Json section;
    if (const char* reason = context.measures_nothing()) {
        put_unknown(section, "backend", reason);
        put_unknown(section, "rates", reason);
        return section;
    }
    section["backend"] = kernels::ops().name;
    const std::uint64_t wanted_bytes = (context.options.quick ? 16ULL : 256ULL) << 20;
    const std::uint64_t least_bytes = Products::gemm_rows * Products::cols * sizeof(float);
    const std::uint64_t bytes = std::min(wanted_bytes, context.limits.memory_available_bytes / 8);
    if (bytes < least_bytes) {
        put_unknown(section, "rates", "too little memory is available");
        return section;
    }
    section["method"] = fmt::format(
        "gemm: {} rows x {} columns; gemv and batches: {} bytes of weights, read once; inputs of gemm rounded "
        "beforehand; best call",
        Products::gemm_rows, Products::cols, bytes);
    const Aligned<std::byte> memory(bytes);
    Json rates = with_one_and_all_threads(context, [&](ThreadPool& pool) {
        std::vector<Json> entries;
        for (const Path path : {Path::fast, Path::precise}) {
            for (const Subject& subject : subjects) {
                if (path == Path::fast && subject.weights == DType::f32) continue;  // the engine does not pack them
                entries.push_back(measure(context, subject, path, memory.span(), pool));
            }
        }
        return entries;
    });
    for (const auto& [dtype, reason] : lacking) rates.push_back(unsupported(Json{{"dtype", dtype}}, reason));
    section["rates"] = rates;
    return section;
}

}  // namespace hetero::hw
