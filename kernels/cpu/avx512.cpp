// AVX-512 F, BW, VL, DQ: from Skylake-SP (2017) and Zen 4 (2022).
#define HETERO_ISA avx512
#include "kernels/cpu/vec_avx512.h"
//
#include "kernels/cpu/dot_avx512.h"
//
#include "kernels/cpu/generic.h"

namespace hetero::kernels::avx512 {

bool can_widen(const KvView& view, std::size_t dims) { return can_convert(view, dims); }
void widen_page(const KvView& view, std::size_t page, std::size_t rows, std::size_t dims, float* out) {
    convert_tile(view, page, rows, dims, out);
}

}  // namespace hetero::kernels::avx512
