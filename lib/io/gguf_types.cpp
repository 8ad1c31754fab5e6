#include "io/gguf_types.h"

#include <algorithm>
#include <array>

namespace hetero::io {
namespace {

using kernels::DType;

constexpr std::array ggml_types{
    GgmlType{0, "F32", 1, 4, DType::f32},
    GgmlType{1, "F16", 1, 2, DType::f16},
    GgmlType{2, "Q4_0", 32, 18, DType::q4_0},
    GgmlType{3, "Q4_1", 32, 20, DType::q4_1},
    GgmlType{6, "Q5_0", 32, 22, DType::q5_0},
    GgmlType{7, "Q5_1", 32, 24, DType::q5_1},
    GgmlType{8, "Q8_0", 32, 34, DType::q8_0},
    GgmlType{9, "Q8_1", 32, 36, std::nullopt},
    GgmlType{10, "Q2_K", 256, 84, DType::q2_k},
    GgmlType{11, "Q3_K", 256, 110, DType::q3_k},
    GgmlType{12, "Q4_K", 256, 144, DType::q4_k},
    GgmlType{13, "Q5_K", 256, 176, DType::q5_k},
    GgmlType{14, "Q6_K", 256, 210, DType::q6_k},
    GgmlType{15, "Q8_K", 256, 292, std::nullopt},
    GgmlType{16, "IQ2_XXS", 256, 66, std::nullopt},
    GgmlType{17, "IQ2_XS", 256, 74, std::nullopt},
    GgmlType{18, "IQ3_XXS", 256, 98, std::nullopt},
    GgmlType{19, "IQ1_S", 256, 50, std::nullopt},
    GgmlType{20, "IQ4_NL", 32, 18, DType::iq4_nl},
    GgmlType{21, "IQ3_S", 256, 110, std::nullopt},
    GgmlType{22, "IQ2_S", 256, 82, std::nullopt},
    GgmlType{23, "IQ4_XS", 256, 136, std::nullopt},
    GgmlType{24, "I8", 1, 1, DType::i8},
    GgmlType{25, "I16", 1, 2, std::nullopt},
    GgmlType{26, "I32", 1, 4, DType::i32},
    GgmlType{27, "I64", 1, 8, std::nullopt},
    GgmlType{28, "F64", 1, 8, std::nullopt},
    GgmlType{29, "IQ1_M", 256, 56, std::nullopt},
    GgmlType{30, "BF16", 1, 2, DType::bf16},
    GgmlType{34, "TQ1_0", 256, 54, std::nullopt},
    GgmlType{35, "TQ2_0", 256, 66, std::nullopt},
    GgmlType{39, "MXFP4", 32, 17, std::nullopt},
    GgmlType{40, "NVFP4", 64, 36, std::nullopt},
};

}  // namespace

const GgmlType* ggml_type(std::uint32_t id) noexcept {
    const auto* found =
        std::find_if(ggml_types.begin(), ggml_types.end(), [id](const GgmlType& t) { return t.id == id; });
    return found == ggml_types.end() ? nullptr : found;
}

const GgmlType* ggml_type(kernels::DType dtype) noexcept {
    const auto* found =
        std::find_if(ggml_types.begin(), ggml_types.end(), [dtype](const GgmlType& t) { return t.dtype == dtype; });
    return found == ggml_types.end() ? nullptr : found;
}

}  // namespace hetero::io
