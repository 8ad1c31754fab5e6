#include "kernels/registry.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/backends.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels {
namespace {

struct Backend {
    const char* name;
    const Ops* base;
    const PackedOps* packed;     // null: the base's own
    PrefillAttention attention;  // null: the base's is as fast
    const TileOps* tiles;        // null: none
    bool (*supported)();         // does this CPU (and its operating system) run it?
};

// From the plainest to the best: the last one that this CPU runs is the default.
constexpr Backend kBackends[] = {
    {"scalar", &ref::kOps, nullptr, nullptr, &ref::kTileOps, [] { return true; }},
#ifdef HETERO_KERNELS_X86
    {"avx2", &avx2::kOps, nullptr, nullptr, nullptr, avx2::supported},
    {"avx2_vnni", &avx2::kOps, &avx2_vnni::kPackedOps, nullptr, nullptr, avx2_vnni::supported},
    {"avx512", &avx512::kOps, nullptr, nullptr, nullptr, avx512::supported},
    {"avx512_vnni", &avx512::kOps, &avx512_vnni::kPackedOps, nullptr, nullptr, avx512_vnni::supported},
    {"avx512_bf16", &avx512::kOps, &avx512_vnni::kPackedOps, avx512_bf16::prefill_attention, nullptr,
     avx512_bf16::supported},
    {"amx", &avx512::kOps, &amx::kPackedOps, amx::prefill_attention, &amx::kTileOps, amx::supported},
#elif defined(HETERO_KERNELS_ARM)
    {"neon", &neon::kOps, nullptr, nullptr, nullptr, neon::supported},
    {"neon_dot", &neon::kOps, &neon_dot::kPackedOps, nullptr, nullptr, neon_dot::supported},
#endif
};
constexpr std::size_t kCount = std::size(kBackends);

struct Tables {
    std::array<Ops, kCount> ops{};
    std::array<const Ops*, kCount + 1> list{};  // null terminated

    Tables() {
        for (std::size_t i = 0; i < kCount; ++i) {
            ops[i] = *kBackends[i].base;
            ops[i].name = kBackends[i].name;
            if (const PackedOps* packed = kBackends[i].packed) {
                ops[i].quantize_activations = packed->quantize_activations;
                ops[i].packed_gemm = packed->packed_gemm;
                if (packed->attention_spans != nullptr) ops[i].attention_spans = packed->attention_spans;
            }
            list[i] = &ops[i];
        }
    }
};

const Tables& tables() noexcept {
    static const Tables made;
    return made;
}

// Null where it is none of these tables.
const Backend* backend_of(const Ops& ops) noexcept {
    for (std::size_t i = 0; i < kCount; ++i)
        if (&tables().ops[i] == &ops) return &kBackends[i];
    return nullptr;
}

// "scalar, avx2": all backends, or those that this CPU runs.
void list_backends(char* text, std::size_t size, bool all) {
    std::size_t used = 0;
    text[0] = '\0';
    for (const Backend& backend : kBackends) {
        if (!all && !backend.supported()) continue;
        const int n = std::snprintf(text + used, size - used, "%s%s", used ? ", " : "", backend.name);
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
    for (std::size_t i = 0; i < kCount; ++i)
        if (kBackends[i].supported()) best = &tables().ops[i];
    if (!wanted || !*wanted) return {best, nullptr};

    thread_local char error[256];
    char names[96];
    for (std::size_t i = 0; i < kCount; ++i) {
        if (std::strcmp(kBackends[i].name, wanted) != 0) continue;
        if (kBackends[i].supported()) return {&tables().ops[i], nullptr};
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

const Ops* const* all_backends() noexcept { return tables().list.data(); }

const TileOps* tile_ops(const Ops& backend) noexcept {
    const Backend* found = backend_of(backend);
    return found != nullptr ? found->tiles : nullptr;
}

PrefillAttention prefill_attention(const Ops& backend) noexcept {
    const Backend* found = backend_of(backend);
    return found != nullptr ? found->attention : nullptr;
}

bool backend_supported(const Ops& backend) noexcept {
    const Backend* found = backend_of(backend);
    return found != nullptr && found->supported();
}

}  // namespace hetero::kernels
