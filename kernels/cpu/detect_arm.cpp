// What this Arm CPU can run.
#ifdef __linux__
#include <sys/auxv.h>
#endif

#include "kernels/cpu/backends.h"

namespace hetero::kernels {

bool neon::supported() { return true; }

bool neon_dot::supported() {
#ifdef __linux__
    constexpr unsigned long kDotProduct = 1UL
                                          << 20;  // HWCAP_ASIMDDP (https://docs.kernel.org/arch/arm64/elf_hwcaps.html)
    return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#else
    return false;
#endif
}

}  // namespace hetero::kernels
