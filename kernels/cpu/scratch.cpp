#include "kernels/cpu/scratch.h"

#include <memory>
#include <new>

namespace hetero::kernels {
namespace {

struct alignas(64) Buffer {
    float values[kScratchFloats];
};

}  // namespace

float* thread_scratch() noexcept {
    thread_local std::unique_ptr<Buffer> buffer;
    if (!buffer) buffer.reset(new (std::nothrow) Buffer);
    return buffer ? buffer->values : nullptr;
}

}  // namespace hetero::kernels
