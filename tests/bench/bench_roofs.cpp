#include "bench_roofs.h"

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>

namespace hetero::bench {
namespace {

__attribute__((target("avx2,fma"))) double fma_256(std::size_t rounds) {
    __m256 acc[12];
    for (auto& a : acc) a = _mm256_set1_ps(1);
    const __m256 x = _mm256_set1_ps(0.5F), y = _mm256_set1_ps(0.25F);
    for (std::size_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (auto& a : acc) {
            a = _mm256_fmadd_ps(a, x, y);
            asm volatile("" : "+x"(a));
        }
    return static_cast<double>(rounds) * 12 * 8 * 2;
}

__attribute__((target("avx512f"))) double fma_512(std::size_t rounds) {
    __m512 acc[12];
    for (auto& a : acc) a = _mm512_set1_ps(1);
    const __m512 x = _mm512_set1_ps(0.5F), y = _mm512_set1_ps(0.25F);
    for (std::size_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (auto& a : acc) {
            a = _mm512_fmadd_ps(a, x, y);
            asm volatile("" : "+v"(a));
        }
    return static_cast<double>(rounds) * 12 * 16 * 2;
}

__attribute__((target("avx2"))) void read_256(const char* data, std::size_t bytes) {
    __m256i sum[4] = {};
    const std::size_t quarter = bytes / 4 / 64 * 64;
    for (std::size_t i = 0; i < quarter; i += 64)
#pragma GCC unroll 4
        for (std::size_t s = 0; s < 4; ++s) {
            const char* p = data + s * quarter + i;
            sum[s] = _mm256_or_si256(sum[s], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
            sum[s] = _mm256_or_si256(sum[s], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)));
        }
    for (auto& s : sum) asm volatile("" : "+x"(s));
}

}  // namespace

double fma_rounds(int lanes, std::size_t rounds) {
    if (lanes == 16 && __builtin_cpu_supports("avx512f")) return fma_512(rounds);
    if (lanes == 8 && __builtin_cpu_supports("fma")) return fma_256(rounds);
    return 0;
}

void read_bytes(const void* data, std::size_t bytes) {
    if (__builtin_cpu_supports("avx2")) read_256(static_cast<const char*>(data), bytes);
}

}  // namespace hetero::bench

#else

namespace hetero::bench {

double fma_rounds(int, std::size_t) { return 0; }

void read_bytes(const void* data, std::size_t bytes) {
    const auto* words = static_cast<const std::uint64_t*>(data);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < bytes / 8; ++i) sum |= words[i];
    asm volatile("" : "+r"(sum));
}

}  // namespace hetero::bench
#endif
