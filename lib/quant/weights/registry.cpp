#include "quant/weights/weight_format.h"

// Every format: weights/NAME.cpp defines weights_NAME().
#define HETERO_WEIGHT_FORMATS(X) \
    X(f32)                       \
    X(f16)                       \
    X(bf16)                      \
    X(q8_0)                      \
    X(q4_0)                      \
    X(q4_1)                      \
    X(q4_k)                      \
    X(int8_channel)

namespace hetero::quant {

#define HETERO_DECLARE(name) const WeightFormat& weights_##name();
HETERO_WEIGHT_FORMATS(HETERO_DECLARE)

const std::vector<const WeightFormat*>& weight_formats() {
#define HETERO_ENTRY(name) &weights_##name(),
    static const std::vector<const WeightFormat*> table{HETERO_WEIGHT_FORMATS(HETERO_ENTRY)};
    return table;
}

const WeightFormat* find_weight_format(std::string_view name) {
    for (const WeightFormat* format : weight_formats()) {
        if (format->name() == name) return format;
    }
    return nullptr;
}

std::string weight_format_names() {
    std::string names;
    for (const WeightFormat* format : weight_formats()) {
        if (!names.empty()) names += ", ";
        names += format->name();
    }
    return names;
}

}  // namespace hetero::quant
