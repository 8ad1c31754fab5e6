#include "kernels/cpu/scratch.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <memory>
#include <new>

namespace hetero::kernels {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// One huge page: what lies there is read again and again, and would be more small pages than a core translates at once.
struct alignas(kHugePage) Buffer {
    float values[kLargeScratchFloats];
};

Buffer* make() noexcept {
    auto* buffer = new (std::nothrow) Buffer;
#ifdef __linux__
    if (buffer != nullptr) (void)madvise(buffer, sizeof *buffer, MADV_HUGEPAGE);  // a hint
#endif
    return buffer;
}

}  // namespace

float* thread_scratch() noexcept {
    thread_local const std::unique_ptr<Buffer> buffer(make());
    return buffer ? buffer->values : nullptr;
}

}  // namespace hetero::kernels
