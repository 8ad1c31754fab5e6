// Sustained memory bandwidth: read, and the triad of STREAM (J. D. McCalpin,
// https://www.cs.virginia.edu/stream/ref.html).
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "hw/probes/probes.h"
#include "hw/team.h"

namespace hetero::hw {
namespace {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Floats = std::unique_ptr<float[], Free>;

// Pages are left untouched: the thread that works on them touches them first.
Floats allocate(std::size_t n) {
    constexpr std::size_t page_bytes = 4096;
    return Floats(static_cast<float*>(
        std::aligned_alloc(page_bytes, (n * sizeof(float) + page_bytes - 1) / page_bytes * page_bytes)));
}

struct Arrays {
    Floats a, b, c;
    std::size_t n = 0;  // elements in each

    // Elements [begin, end) of a worker.
    [[nodiscard]] std::pair<std::size_t, std::size_t> part(int worker, int threads) const {
        const auto w = static_cast<std::size_t>(worker), t = static_cast<std::size_t>(threads);
        return {n / t * w, w + 1 == t ? n : n / t * (w + 1)};
    }
};

void fill(const Arrays& arrays, std::size_t begin, std::size_t end) {
    std::fill(arrays.a.get() + begin, arrays.a.get() + end, 0.0F);
    std::fill(arrays.b.get() + begin, arrays.b.get() + end, 1.0F);
    std::fill(arrays.c.get() + begin, arrays.c.get() + end, 2.0F);
}

void triad(const Arrays& arrays, std::size_t begin, std::size_t end) {
    float* __restrict a = arrays.a.get();
    const float* __restrict b = arrays.b.get(), * __restrict c = arrays.c.get();
    for (std::size_t i = begin; i < end; ++i) a[i] = b[i] + 3.0F * c[i];
}

// Sums the bit patterns (integer sums need no order), eight streams side by side: one alone does not keep enough cache
// lines on their way.
std::uint32_t read_all(const float* values, std::size_t n) {
    constexpr std::size_t streams = 8;
    const auto* words = reinterpret_cast<const std::uint32_t*>(values);
    const std::size_t stride = n / streams;
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < stride; ++i) {
        sum += words[i] + words[i + stride] + words[i + 2 * stride] + words[i + 3 * stride] + words[i + 4 * stride] +
               words[i + 5 * stride] + words[i + 6 * stride] + words[i + 7 * stride];
    }
    for (std::size_t i = stride * streams; i < n; ++i) sum += words[i];
    return sum;
}

Json measure(const Arrays& arrays, int threads, double budget_s) {
    auto setup = [&](int worker) {
        const auto [begin, end] = arrays.part(worker, threads);
        fill(arrays, begin, end);
    };
    const double triad_s = best_round_seconds(threads, budget_s, setup, [&](int worker) {
        const auto [begin, end] = arrays.part(worker, threads);
        triad(arrays, begin, end);
    });
    const double read_s = best_round_seconds(threads, budget_s, setup, [&](int worker) {
        const auto [begin, end] = arrays.part(worker, threads);
        for (const Floats* array : {&arrays.a, &arrays.b, &arrays.c}) {
            volatile std::uint32_t sink = read_all(array->get() + begin, end - begin);
            static_cast<void>(sink);
        }
    });
    const double bytes = 3.0 * sizeof(float) * static_cast<double>(arrays.n);
    Json entry;
    entry["threads"] = threads;
    entry["read_gb_per_s"] = rounded(bytes / read_s / 1e9);
    entry["triad_gb_per_s"] = rounded(bytes / triad_s / 1e9);
    return entry;
}

}  // namespace

Json probe_memory_bandwidth(const Context& context) {
    Json section;
    section["method"] =
        "read: sum of three f32 arrays, eight streams; triad: a = b + 3 c, 12 bytes an element (the line that a store "
        "reads first is "
        "not counted); best round; threads bound to CPUs";
    if (context.recorded() || !context.options.measure) {
        const char* reason = context.recorded() ? not_recorded : not_measured;
        put_unknown(section, "array_bytes", reason);
        put_unknown(section, "rates", reason);
        return section;
    }
    // Three arrays far larger than most caches, in an eighth of what is available.
    constexpr std::uint64_t wanted_bytes = 256ULL << 20;
    const std::uint64_t array_bytes = std::min(wanted_bytes, context.limits.memory_available_bytes / 24);
    Arrays arrays;
    arrays.n = array_bytes / sizeof(float);
    arrays.a = allocate(arrays.n);
    arrays.b = allocate(arrays.n);
    arrays.c = allocate(arrays.n);
    if (array_bytes < (1U << 20) || !arrays.a || !arrays.b || !arrays.c) {
        put_unknown(section, "array_bytes", "too little memory is available");
        put_unknown(section, "rates", "too little memory is available");
        return section;
    }
    section["array_bytes"] = array_bytes;
    Json rates = Json::array();
    const double budget_s = context.options.seconds_each / 2;
    rates.push_back(measure(arrays, 1, budget_s));
    if (context.threads > 1) rates.push_back(measure(arrays, context.threads, budget_s));
    section["rates"] = rates;
    return section;
}

}  // namespace hetero::hw
