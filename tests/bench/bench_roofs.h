// What the machine can do at most, measured on one thread, to set the kernels' figures against.
#pragma once
#include <cstddef>

namespace hetero::bench {

// Runs `rounds` of independent f32 FMAs in registers; returns the floating-point operations done. lanes: 8 (AVX2),
// 16 (AVX-512).
double fma_rounds(int lanes, std::size_t rounds);

// Runs `rounds` of independent 8-bit dot products in registers; returns the operations done, 0 where the CPU has no
// such unit. unit: 1 (512 bits of VNNI), 2 (AMX tiles).
double int8_rounds(int unit, std::size_t rounds);

// The same of dot products of bf16, in f32.
double bf16_rounds(int unit, std::size_t rounds);

// Reads the buffer once, in 64-byte lines, four streams apart.
void read_bytes(const void* data, std::size_t bytes);

}  // namespace hetero::bench
