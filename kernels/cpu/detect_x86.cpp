// What this CPU and its operating system can run. Compiled for the plainest CPU.
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/backends.h"

namespace hetero::kernels {
namespace {

struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
    Leaf out;
    __get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx);
    return out;
}

// Tiles are 8 KiB of state that a Linux process must ask for, once, before it uses them
// (https://docs.kernel.org/arch/x86/xstate.html).
bool tiles_permitted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool permitted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    return permitted;
#else
    return false;
#endif
}

}  // namespace

bool avx2::supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool avx2_vnni::supported() {
    constexpr unsigned kAvxVnni = 1u << 4;  // of leaf 7.1 EAX
    return avx2::supported() && (cpuid(7, 1).eax & kAvxVnni) != 0;
}

bool avx512::supported() {
    return avx2::supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool avx512_vnni::supported() { return avx512::supported() && __builtin_cpu_supports("avx512vnni"); }

bool avx512_bf16::supported() { return avx512_vnni::supported() && __builtin_cpu_supports("avx512bf16"); }

bool amx::supported() {
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;  // of leaf 7.0 EDX
    return avx512_bf16::supported() && (~cpuid(7, 0).edx & (kBf16 | kTile | kInt8)) == 0 && tiles_permitted();
}

}  // namespace hetero::kernels
