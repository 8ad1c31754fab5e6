#include "kernels/common/blocks.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels::ref {
namespace {

using blocks::Byte;
using blocks::half_at;

template <class Format>
void decode(DType type, const Byte* src, float* dst, std::size_t n) {
    const DTypeInfo& info = dtype_info(type);
    const auto elements = static_cast<int>(info.block_elems);
    for (std::size_t i = 0; i + info.block_elems <= n; i += info.block_elems, src += info.block_bytes)
        for (int element = 0; element < elements; ++element)
            dst[i + static_cast<std::size_t>(element)] = Format::value(src, element);
}

template <class T>
void plain(const Byte* src, float* dst, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) dst[i] = static_cast<float>(load<T>(src + i * sizeof(T)));
}

}  // namespace

void dequantize(DType type, const void* src, float* dst, std::size_t n) {
    const auto* bytes = static_cast<const Byte*>(src);
    switch (type) {
        case DType::f32:
            if (n > 0) std::memcpy(dst, src, n * sizeof(float));
            return;
        case DType::f16:
            for (std::size_t i = 0; i < n; ++i) dst[i] = half_at(bytes + 2 * i);
            return;
        case DType::bf16:
            for (std::size_t i = 0; i < n; ++i) dst[i] = bf16_to_f32(load<std::uint16_t>(bytes + 2 * i));
            return;
        case DType::i8:
            return plain<std::int8_t>(bytes, dst, n);
        case DType::u8:
            return plain<std::uint8_t>(bytes, dst, n);
        case DType::i32:
            return plain<std::int32_t>(bytes, dst, n);
        case DType::q8_0:
            return decode<blocks::Q8_0>(type, bytes, dst, n);
        case DType::q4_0:
            return decode<blocks::Q4_0>(type, bytes, dst, n);
        case DType::q4_1:
            return decode<blocks::Q4_1>(type, bytes, dst, n);
        case DType::q5_0:
            return decode<blocks::Q5_0>(type, bytes, dst, n);
        case DType::q5_1:
            return decode<blocks::Q5_1>(type, bytes, dst, n);
        case DType::q2_k:
            return decode<blocks::Q2K>(type, bytes, dst, n);
        case DType::q3_k:
            return decode<blocks::Q3K>(type, bytes, dst, n);
        case DType::q4_k:
            return decode<blocks::Q4K>(type, bytes, dst, n);
        case DType::q5_k:
            return decode<blocks::Q5K>(type, bytes, dst, n);
        case DType::q6_k:
            return decode<blocks::Q6K>(type, bytes, dst, n);
        case DType::iq4_nl:
            return decode<blocks::Iq4Nl>(type, bytes, dst, n);
        case DType::count_:
            break;
    }
}

}  // namespace hetero::kernels::ref
