// What a command line asks of how KV is stored, as schemes of a state's layers.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/tool.h"
#include "kv/convert.h"
#include "kv/precision_plan.h"
#include "quant/spec.h"

namespace hetero::tool {

// One codec for K and one for V in every layer, or a plan, which has its own for each.
struct Specs {
    quant::Spec k, v;
    std::uint32_t sinks = 0, window = 0;  // of quantized layers
    std::optional<kv::PrecisionPlan> plan;
    std::string plan_path;
};
// Of kv-calibrate, or what a deployment plan of hetero-plan says of KV.
Result<Specs> read_plan(const std::string& path);
Result<Specs> specs_of_preset(std::string_view name);  // usage
// The name of a preset, or one codec for K and V alike: usage.
Result<Specs> specs_of_name(std::string_view text);
// That the specs are for states of this identity; a plan of other weights of the same source is said in a note.
Status check_specs(Tool& tool, const Specs& specs, const kv::Identity& identity);

struct Schemes {
    std::vector<kv::Scheme> k, v;  // [n_layers]
    [[nodiscard]] const std::vector<kv::Scheme>& of(kv::PartId part) const noexcept {
        return part == kv::PartId::k ? k : v;
    }
};
[[nodiscard]] Schemes schemes_of(const Specs& specs, const kv::Header& header);
[[nodiscard]] Schemes schemes_of(const kv::Header& header);
// As `header` is once a state is stored so.
[[nodiscard]] kv::Header with_schemes(kv::Header header, const Schemes& schemes);
[[nodiscard]] bool is_quantized(const kv::Header& header);      // any part of it
[[nodiscard]] double bits_per_value(const kv::Header& header);  // scales, zeros and kept tokens counted

// For people: "int8, axis token, ...", of all layers where they are alike, else of each with the layers that have it.
[[nodiscard]] std::string describe(const Schemes& schemes);
// codec, k, v, sinks, window and scheme, and of a plan its name and whether it was made with the same weights.
void report_schemes(Json& report, const Specs& specs, const Schemes& schemes, const kv::Identity& identity);

}  // namespace hetero::tool
