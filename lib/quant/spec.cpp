#include "quant/spec.h"

#include <algorithm>
#include <charconv>

#include "base/config.h"
#include "base/printable.h"

namespace hetero::quant {
namespace {

constexpr std::array<const char*, 4> axis_names{"token", "channel", "head", "tensor"};
constexpr std::string_view rotated_prefix = "had:", compat_prefix = "compat:";

// "int8" of "int8:token"; "compat:q8_0" is one name.
std::string_view take_codec(std::string_view& text) {
    const std::size_t from = text.starts_with(compat_prefix) ? compat_prefix.size() : 0;
    const std::size_t end = std::min(text.find(':', from), text.size());
    const std::string_view name = text.substr(0, end);
    text.remove_prefix(end);
    return name;
}

// "did you mean NAME? ", where one is near.
std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
    const std::string_view meant = meant_name(word, known);
    return meant.empty() ? std::string() : fmt::format("did you mean {}? ", meant);
}

Status unknown_codec(std::string_view text, std::string_view name) {
    std::vector<std::string_view> known;
    for (const Codec* codec : codecs()) known.push_back(codec->name());
    return fail(Errc::usage, "'{}': unknown codec '{}'; {}there are {}", printable(text), printable(name),
                suggestion(name, known), codec_names());
}

// gN, a number of 1 to 2^32 - 1.
bool take_group(std::string_view word, std::uint32_t& group) {
    if (!word.starts_with('g')) return false;
    const char* end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data() + 1, end, group);
    return error == std::errc() && at == end && group != 0;
}

// Which field a word sets, so that none is set twice: 'a'xis, 'g'roup, 's'ymmetry, scale 'd'type; 0: none.
char apply(std::string_view word, Params& params) {
    for (std::size_t axis = 0; axis < axis_names.size(); ++axis) {
        if (word != axis_names[axis]) continue;
        params.axis = static_cast<Axis>(axis);
        return 'a';
    }
    if (word == "sym" || word == "asym") {
        params.symmetric = word == "sym";
        return 's';
    }
    if (word == "f16" || word == "f32") {
        params.scale_dtype = word == "f16" ? DType::f16 : DType::f32;
        return 'd';
    }
    return take_group(word, params.group) ? 'g' : '\0';
}

Status unknown_word(std::string_view text, std::string_view word) {
    static constexpr std::array<std::string_view, 9> known{"token", "channel", "head", "tensor", "g32",
                                                           "sym",   "asym",    "f16",  "f32"};
    return fail(Errc::usage,
                "'{}': '{}' is no option of a codec; {}there are an axis (token, channel, head, tensor), "
                "a group (gN), sym or asym, and f16 or f32 for the scales",
                printable(text), printable(word), suggestion(word, known));
}

// Data: hetero-quant(7) has the same table.
constexpr std::array<Preset, 7> table{{
    {"int8-strict", "", "wf9:channel:g64", "had:int8:token:asym", 4,
     "9.1 bits, every probability within 0.01 of f16's"},
    {"int8-accurate", "hk8", "wf8:channel:g64", "had:int8:token", 4, "8.4 bits, nearly f16's results"},
    {"int8-fast", "", "int8:channel:g64:asym", "int8:token", 0, "8.4 bits, the least work"},
    {"int8-int6", "", "wf8:channel:g64", "had:int6:token", 4, "7.4 bits"},
    {"int6-accurate", "", "wf6:channel:g64", "had:int6:token", 4, "6.4 bits"},
    {"int4-accurate", "hk4", "wf5:channel:g64", "had:int4:token:asym", 4, "5.1 bits"},
    {"int4-small", "", "wf4:channel:g64", "had:int4:token:asym", 4, "4.6 bits"},
}};

}  // namespace

const char* axis_name(Axis axis) noexcept { return axis_names[static_cast<std::size_t>(axis)]; }

Result<Axis> axis_from_name(std::string_view name) {
    for (std::size_t axis = 0; axis < axis_names.size(); ++axis) {
        if (name == axis_names[axis]) return static_cast<Axis>(axis);
    }
    return fail(Errc::usage, "'{}' is no axis; there are token, channel, head and tensor", printable(name));
}

Result<Spec> parse_spec(std::string_view text) {
    std::string_view rest = text;
    const bool rotated = rest.starts_with(rotated_prefix);
    if (rotated) rest.remove_prefix(rotated_prefix.size());
    const std::string_view name = take_codec(rest);
    const Codec* codec = find_codec(name);
    if (codec == nullptr) return tl::unexpected(unknown_codec(text, name).error());
    Spec spec{std::string(name), codec->default_params()};
    std::string seen;
    while (!rest.empty()) {
        rest.remove_prefix(1);  // the colon
        const std::size_t end = std::min(rest.find(':'), rest.size());
        const std::string_view word = rest.substr(0, end);
        rest.remove_prefix(end);
        const char field = apply(word, spec.params);
        if (field == '\0') return tl::unexpected(unknown_word(text, word).error());
        if (seen.find(field) != std::string::npos) {
            return fail(Errc::usage, "'{}': '{}' says again what was said before", printable(text), printable(word));
        }
        seen += field;
    }
    if ((rotated || !seen.empty()) && !codec->has_options()) {
        return fail(Errc::usage, "'{}': {} takes no options", printable(text), name);
    }
    spec.params.hadamard = rotated;
    return spec;
}

Result<std::vector<Spec>> parse_specs(std::string_view list) {
    std::vector<Spec> specs;
    while (true) {
        const std::size_t comma = list.find(',');
        HETERO_TRY(specs.emplace_back(), parse_spec(list.substr(0, comma)));
        if (comma == std::string_view::npos) return specs;
        list.remove_prefix(comma + 1);
    }
}

std::string to_text(const Spec& spec) {
    const Codec* codec = find_codec(spec.codec);
    if (codec == nullptr || !codec->has_options()) return spec.codec;
    const Params& params = spec.params;
    std::string text = params.hadamard ? std::string(rotated_prefix) : std::string();
    text += fmt::format("{}:{}", spec.codec, axis_name(params.axis));
    if (params.group != 0) text += fmt::format(":g{}", params.group);
    if (params.symmetric != codec->default_params().symmetric) text += params.symmetric ? ":sym" : ":asym";
    if (params.scale_dtype != DType::f16) text += ":f32";
    return text;
}

std::span<const Preset> presets() noexcept { return table; }

Result<Preset> find_preset(std::string_view name) {
    std::vector<std::string_view> known;
    for (const Preset& preset : table) {
        if (name == preset.name || (!preset.alias.empty() && name == preset.alias)) return preset;
        known.push_back(preset.name);
        if (!preset.alias.empty()) known.push_back(preset.alias);
    }
    return fail(Errc::usage, "unknown preset '{}'; {}there are {}", printable(name), suggestion(name, known),
                preset_names());
}

std::string preset_names() {
    std::string names;
    for (const Preset& preset : table) {
        if (!names.empty()) names += ", ";
        names += preset.name;
        if (!preset.alias.empty()) names += fmt::format(" ({})", preset.alias);
    }
    return names;
}

}  // namespace hetero::quant
