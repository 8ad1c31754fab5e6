#include "kernels/registry.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/backends.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels {
namespace {

// From the plainest to the best: the last one that this CPU runs is the default.
constexpr Backend kBackends[] = {
    {&ref::kOps, [] { return true; }},
#ifdef HETERO_KERNELS_X86
    {&avx2::kOps, avx2::supported},
    {&avx512::kOps, avx512::supported},
#endif
};
constexpr std::size_t kCount = std::size(kBackends);

constexpr auto kTable = [] {
    std::array<const Ops*, kCount + 1> table{};
    for (std::size_t i = 0; i < kCount; ++i) table[i] = kBackends[i].ops;
    return table;
}();

// "scalar, avx2": all backends, or those that this CPU runs.
void list_backends(char* text, std::size_t size, bool all) {
    std::size_t used = 0;
    text[0] = '\0';
    for (const Backend& backend : kBackends) {
        if (!all && !backend.supported()) continue;
        const int n = std::snprintf(text + used, size - used, "%s%s", used ? ", " : "", backend.ops->name);
        if (n < 0 || static_cast<std::size_t>(n) >= size - used) return;
        used += static_cast<std::size_t>(n);
    }
}

const BackendChoice& environment_choice() noexcept {
    struct Kept {
        BackendChoice choice;
        char error[256] = {};
    };
    static const Kept kept = [] {
        Kept k{choose_backend(std::getenv("HETERO_BACKEND"))};
        if (k.choice.error) std::snprintf(k.error, sizeof k.error, "%s", k.choice.error);
        return k;
    }();
    static const BackendChoice choice{kept.choice.ops, kept.choice.error ? kept.error : nullptr};
    return choice;
}

}  // namespace

BackendChoice choose_backend(const char* wanted) noexcept {
    const Ops* best = nullptr;
    for (const Backend& backend : kBackends)
        if (backend.supported()) best = backend.ops;
    if (!wanted || !*wanted) return {best, nullptr};

    thread_local char error[256];
    char names[96];
    for (const Backend& backend : kBackends) {
        if (std::strcmp(backend.ops->name, wanted) != 0) continue;
        if (backend.supported()) return {backend.ops, nullptr};
        list_backends(names, sizeof names, false);
        std::snprintf(error, sizeof error, "HETERO_BACKEND=%s: this CPU cannot run it; it runs %s", wanted, names);
        return {best, error};
    }
    list_backends(names, sizeof names, true);
    std::snprintf(error, sizeof error, "HETERO_BACKEND=%.64s: no such backend; use one of %s", wanted, names);
    return {best, error};
}

const Ops& ops() noexcept { return *environment_choice().ops; }
const char* backend_error() noexcept { return environment_choice().error; }

const Ops* const* all_backends() noexcept { return kTable.data(); }

bool backend_supported(const Ops& wanted) noexcept {
    for (const Backend& backend : kBackends)
        if (backend.ops == &wanted) return backend.supported();
    return false;
}

}  // namespace hetero::kernels
