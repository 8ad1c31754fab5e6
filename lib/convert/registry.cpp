#include "convert/family.h"

namespace hetero::convert {

// One line per family; each is defined in its own file as NAME_conversion.
#define HETERO_CONVERSIONS(X) \
    X(llama)                  \
    X(qwen2)                  \
    X(qwen3)                  \
    X(gemma2)                 \
    X(gemma3)                 \
    X(phi3)                   \
    X(gpt_neox)               \
    X(mixtral)                \
    X(qwen3_moe)              \
    X(deepseek_v2)            \
    X(deepseek_v3)

#define HETERO_DECLARE(name) extern const Conversion name##_conversion;
HETERO_CONVERSIONS(HETERO_DECLARE)

const std::vector<const Conversion*>& conversions() {
#define HETERO_ADDRESS(name) &name##_conversion,
    static const std::vector<const Conversion*> table = {HETERO_CONVERSIONS(HETERO_ADDRESS)};
    return table;
}

}  // namespace hetero::convert
