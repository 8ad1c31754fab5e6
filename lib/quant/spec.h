// The names that people give to codecs with their parameters, one grammar for options, files of presets and reports:
//
//   [had:]CODEC[:AXIS][:gN][:sym|:asym][:f16|:f32]      int8:channel:g32:asym   had:int4:token:g32   compat:q8_0
//
// What is left out is the codec's default. hetero-quant(7) describes it.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "quant/codec.h"

namespace hetero::quant {

struct Spec {
    std::string codec = "f16";  // a name in the registry
    Params params;
    friend bool operator==(const Spec&, const Spec&) = default;
};

// usage: names the word that is wrong and the nearest known one. Whether a head size fits is Codec::check()'s to say.
[[nodiscard]] Result<Spec> parse_spec(std::string_view text);
// Specs with commas between them.
[[nodiscard]] Result<std::vector<Spec>> parse_specs(std::string_view list);
// The shortest text that parse_spec() reads as `spec`, with the axis always named where the codec has one.
[[nodiscard]] std::string to_text(const Spec& spec);

[[nodiscard]] const char* axis_name(Axis axis) noexcept;  // "token", "channel", "head", "tensor"
[[nodiscard]] Result<Axis> axis_from_name(std::string_view name);

// K and V together, under a name.
struct Preset {
    std::string_view name, alias;  // alias may be empty
    std::string_view k, v;         // specs
    std::uint32_t sinks = 0;       // first tokens kept unquantized
    std::string_view use;          // one line for help texts
};
[[nodiscard]] std::span<const Preset> presets() noexcept;
// By name or alias; usage: names the nearest.
[[nodiscard]] Result<Preset> find_preset(std::string_view name);
[[nodiscard]] std::string preset_names();  // "int8-accurate (hk8), ..."

}  // namespace hetero::quant
