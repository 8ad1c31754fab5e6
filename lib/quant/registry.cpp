#include "quant/codec.h"

// Every codec: a file in codecs/ defines codec_NAME().
#define HETERO_CODECS(X) \
    X(f32)               \
    X(f16)               \
    X(bf16)              \
    X(int8)              \
    X(int6)              \
    X(int5)              \
    X(int4)              \
    X(int3)              \
    X(int2)              \
    X(wf9)               \
    X(wf8)               \
    X(wf6)               \
    X(wf5)               \
    X(wf4)               \
    X(wf3)               \
    X(wf2)               \
    X(fp8_e4m3fn)        \
    X(fp8_e4m3fnuz)      \
    X(fp8_e5m2)          \
    X(compat_q8_0)       \
    X(compat_q4_0)       \
    X(compat_q4_1)       \
    X(compat_lmdeploy8)  \
    X(compat_lmdeploy4)  \
    X(compat_vllm_fp8)

namespace hetero::quant {

#define HETERO_DECLARE(name) const Codec& codec_##name();
HETERO_CODECS(HETERO_DECLARE)

const std::vector<const Codec*>& codecs() {
#define HETERO_ENTRY(name) &codec_##name(),
    static const std::vector<const Codec*> table{HETERO_CODECS(HETERO_ENTRY)};
    return table;
}

const Codec* find_codec(std::string_view name) {
    for (const Codec* codec : codecs()) {
        if (codec->name() == name) return codec;
    }
    return nullptr;
}

const Codec& float_codec(DType type) {
    return type == DType::f32 ? codec_f32() : type == DType::f16 ? codec_f16() : codec_bf16();
}

std::string codec_names() {
    std::string names;
    for (const Codec* codec : codecs()) {
        if (!names.empty()) names += ", ";
        names += codec->name();
    }
    return names;
}

}  // namespace hetero::quant
