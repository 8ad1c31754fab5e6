#include "bench_roofs.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

__attribute__((target("avx512f,avx512vnni"))) double vnni_512(std::size_t rounds) {
    __m512i acc[12] = {};
    const __m512i x = _mm512_set1_epi32(0x01020304), y = _mm512_set1_epi32(0x04030201);
    for (std::size_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (auto& a : acc) {
            a = _mm512_dpbusd_epi32(a, x, y);
            asm volatile("" : "+v"(a));
        }
    return static_cast<double>(rounds) * 12 * 64 * 2;
}

struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

__attribute__((target("amx-tile"))) void configure_tiles() {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
        config.rows[i] = 16;
        config.row_bytes[i] = 64;
    }
    asm volatile("" ::"r"(&config) : "memory");  // the intrinsic reads more than it tells the compiler
    _tile_loadconfig(&config);
}

__attribute__((target("amx-tile,amx-int8"))) double tiles(std::size_t rounds) {
    configure_tiles();
    _tile_zero(4);
    _tile_zero(5);
    for (std::size_t i = 0; i < rounds / 16; ++i) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_release();
    return static_cast<double>(rounds / 16) * 4 * 16 * 16 * 64 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_512(std::size_t rounds) {
    __m512 acc[12] = {};
    __m512i ones = _mm512_set1_epi16(0x3f80);
    const auto x = reinterpret_cast<__m512bh>(ones);
    for (std::size_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (auto& a : acc) {
            a = _mm512_dpbf16_ps(a, x, x);
            asm volatile("" : "+v"(a));
        }
    return static_cast<double>(rounds) * 12 * 32 * 2;
}

__attribute__((target("amx-tile,amx-bf16"))) double bf16_tiles(std::size_t rounds) {
    configure_tiles();
    _tile_zero(4);
    _tile_zero(5);
    for (std::size_t i = 0; i < rounds / 16; ++i) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_release();
    return static_cast<double>(rounds / 16) * 4 * 16 * 16 * 32 * 2;
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

constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;  // of CPUID leaf 7.0 EDX

// The CPU has tiles of this type, and Linux lets this process use them.
bool tiles_usable(unsigned type) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (~d & (kTile | type)) != 0) return false;
#if defined(__linux__)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
#else
    return false;
#endif
}

}  // namespace

double fma_rounds(int lanes, std::size_t rounds) {
    if (lanes == 16 && __builtin_cpu_supports("avx512f")) return fma_512(rounds);
    if (lanes == 8 && __builtin_cpu_supports("fma")) return fma_256(rounds);
    return 0;
}

double int8_rounds(int unit, std::size_t rounds) {
    if (unit == 1 && __builtin_cpu_supports("avx512vnni")) return vnni_512(rounds);
    if (unit == 2 && tiles_usable(kInt8)) return tiles(rounds);
    return 0;
}

double bf16_rounds(int unit, std::size_t rounds) {
    if (unit == 1 && __builtin_cpu_supports("avx512bf16")) return bf16_512(rounds);
    if (unit == 2 && tiles_usable(kBf16)) return bf16_tiles(rounds);
    return 0;
}

void read_bytes(const void* data, std::size_t bytes) {
    if (__builtin_cpu_supports("avx2")) read_256(static_cast<const char*>(data), bytes);
}

}  // namespace hetero::bench

#else

namespace hetero::bench {

double fma_rounds(int, std::size_t) { return 0; }

double int8_rounds(int, std::size_t) { return 0; }

double bf16_rounds(int, std::size_t) { return 0; }

void read_bytes(const void* data, std::size_t bytes) {
    const auto* words = static_cast<const std::uint64_t*>(data);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < bytes / 8; ++i) sum |= words[i];
    asm volatile("" : "+r"(sum));
}

}  // namespace hetero::bench
#endif
