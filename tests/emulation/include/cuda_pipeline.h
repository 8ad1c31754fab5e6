// Copies to shared memory that a thread does not wait for (CUDA C++ Programming Guide, "Pipeline Primitives
// Interface").
#pragma once
#include "cuda_runtime.h"

inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros = 0) {
    hetero::emulation::begin_copy(to, from, bytes, zeros);
}
inline void __pipeline_commit() { hetero::emulation::end_copy_group(); }
inline void __pipeline_wait_prior(std::size_t groups) { hetero::emulation::wait_for_copies(groups); }
