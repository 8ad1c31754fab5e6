// Sustained memory bandwidth: read, and the triad of STREAM (J. D. McCalpin,
// https://www.cs.virginia.edu/stream/ref.html).
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "base/cpus.h"
#include "base/errno_text.h"
#include "hw/probes/probes.h"
#include "hw/probes/timing.h"
#include "hw/team.h"

namespace hetero::hw {
namespace {

// Pages are left untouched: the thread that works on them touches them first, or a policy says where they lie.
class Floats {
public:
    explicit Floats(std::size_t n)
        : bytes_(n * sizeof(float)),
          memory_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        if (memory_ == MAP_FAILED) throw std::bad_alloc();
    }
    ~Floats() { ::munmap(memory_, bytes_); }
    Floats(const Floats&) = delete;
    Floats& operator=(const Floats&) = delete;
    [[nodiscard]] float* get() const { return static_cast<float*>(memory_); }

    // Pages that are touched from now on come from this NUMA node alone. False: the system does not allow it.
    [[nodiscard]] bool bind(unsigned node) const {
        constexpr int mpol_bind = 2;  // of linux/mempolicy.h
        constexpr unsigned bits = 8 * sizeof(unsigned long);
        std::array<unsigned long, 16> mask{};
        if (node >= bits * mask.size()) return false;
        mask[node / bits] = 1UL << node % bits;
        return ::syscall(SYS_mbind, memory_, bytes_, mpol_bind, mask.data(), bits * mask.size(), 0U) == 0;
    }

private:
    std::size_t bytes_;
    void* memory_;
};

struct Arrays {
    explicit Arrays(std::size_t elements) : a(elements), b(elements), c(elements), n(elements) {}
    Floats a, b, c;
    std::size_t n;  // elements in each

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

Json measure(const Arrays& arrays, int threads, double budget_s, const std::vector<int>& cpus = {}) {
    auto setup = [&](int worker) {
        const auto [begin, end] = arrays.part(worker, threads);
        fill(arrays, begin, end);
    };
    const double triad_s = best_round_seconds(
        threads, budget_s, setup,
        [&](int worker) {
            const auto [begin, end] = arrays.part(worker, threads);
            triad(arrays, begin, end);
        },
        cpus);
    const double read_s = best_round_seconds(
        threads, budget_s, setup,
        [&](int worker) {
            const auto [begin, end] = arrays.part(worker, threads);
            for (const Floats* array : {&arrays.a, &arrays.b, &arrays.c}) {
                volatile std::uint32_t sink = read_all(array->get() + begin, end - begin);
                static_cast<void>(sink);
            }
        },
        cpus);
    const double bytes = 3.0 * sizeof(float) * static_cast<double>(arrays.n);
    Json entry;
    entry["threads"] = threads;
    entry["read_gb_per_s"] = rounded(bytes / read_s / 1e9);
    entry["triad_gb_per_s"] = rounded(bytes / triad_s / 1e9);
    return entry;
}

// 1, 2, 4 ... and all.
std::vector<int> thread_counts(int all, bool quick) {
    std::vector<int> counts;
    for (int n = 1; n < all; n *= 2) {
        if (!quick || n == 1) counts.push_back(n);
    }
    counts.push_back(all);
    return counts;
}

// Every node's CPUs with every node's memory.
void put_node_rates(const Context& context, Json& section, std::size_t n) {
    const std::vector<NumaNode> nodes = numa_nodes(context.options.root);
    if (nodes.size() < 2) return put_unknown(section, "node_rates", "the system reports one NUMA node");
    if (context.options.quick) return put_unknown(section, "node_rates", "not measured: quick");
    Json rates = Json::array();
    for (const NumaNode& cpu : nodes) {
        if (cpu.cpus.empty()) continue;
        for (const NumaNode& memory : nodes) {
            const Arrays arrays(n);
            for (const Floats* array : {&arrays.a, &arrays.b, &arrays.c}) {
                if (!array->bind(static_cast<unsigned>(memory.id)))
                    return put_unknown(section, "node_rates", "mbind: " + errno_text(errno));
            }
            const int threads = std::min(context.threads, static_cast<int>(cpu.cpus.size()));
            Json entry = measure(arrays, threads, context.options.seconds_each / 4, cpu.cpus);
            entry["cpu_node"] = cpu.id;
            entry["memory_node"] = memory.id;
            rates.push_back(entry);
        }
    }
    put(section, "node_rates", rates.empty() ? std::nullopt : std::optional(rates),
        "this process may use no CPU of any node");
}

}  // namespace

Json probe_memory_bandwidth(const Context& context) {
    Json section;
    section["method"] =
        "read: sum of three f32 arrays, eight streams; triad: a = b + 3 c, 12 bytes an element (the line that a store "
        "reads first is "
        "not counted); best round; threads bound to CPUs";
    // Three arrays far larger than most caches, in an eighth of what is available.
    const std::uint64_t wanted_bytes = (context.options.quick ? 32ULL : 256ULL) << 20;
    const std::uint64_t array_bytes = std::min(wanted_bytes, context.limits.memory_available_bytes / 24);
    const char* reason = context.measures_nothing();
    if (reason == nullptr && array_bytes < (1U << 20)) reason = "too little memory is available";
    if (reason != nullptr) {
        for (const char* field : {"array_bytes", "rates", "node_rates"}) put_unknown(section, field, reason);
        return section;
    }
    const std::size_t n = array_bytes / sizeof(float);
    section["array_bytes"] = array_bytes;
    {
        const Arrays arrays(n);
        section["rates"] = measured_twice(context, [&] {
            std::vector<Json> rates;
            for (const int threads : thread_counts(context.threads, context.options.quick))
                rates.push_back(measure(arrays, threads, context.options.seconds_each / 4));
            return rates;
        });
    }
    put_node_rates(context, section, n);
    return section;
}

}  // namespace hetero::hw
