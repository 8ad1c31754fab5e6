// The x86-64 backends. Each is compiled from the same sources (see generic.h) for its own instruction set.
#pragma once
#include "kernels/api/ops.h"

namespace hetero::kernels {
namespace avx2 {
extern const Ops kOps;
bool supported();
}  // namespace avx2
namespace avx512 {
extern const Ops kOps;
bool supported();
}  // namespace avx512
}  // namespace hetero::kernels
