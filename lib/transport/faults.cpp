#include "transport/faults.h"

#include <algorithm>
#include <array>

#include "base/units.h"

namespace hetero::transport {
namespace {

Result<double> parse_number(std::string_view name, std::string_view text, double max, bool whole) {
    const auto number = parse_finite(text);
    if (!number || *number < 0 || *number > max ||
        (whole && *number != static_cast<double>(static_cast<std::int64_t>(*number))))
        return fail(Errc::usage, "{}={}: takes {} from 0 to {}", name, text, whole ? "a whole number" : "a number",
                    max);
    return *number;
}

}  // namespace

bool Faults::any() const noexcept {
    return drop > 0 || duplicate > 0 || reorder > 0 || flip > 0 || flip_header > 0 || truncate > 0 || max_delay_s > 0 ||
           stall_after >= 0 || die_after >= 0;
}

Result<Faults> parse_faults(std::string_view text) {
    Faults out;
    double delay_ms = 0, stall = -1, die = -1, seed = out.seed;
    struct Key {
        std::string_view name;
        double* value;
        double max;
        bool whole;
        bool given = false;
    };
    constexpr double max_frames = 4294967295.0;
    std::array keys = {Key{"drop", &out.drop, 1, false},       Key{"dup", &out.duplicate, 1, false},
                       Key{"reorder", &out.reorder, 1, false}, Key{"flip", &out.flip, 1, false},
                       Key{"delay", &delay_ms, 60000, false},  Key{"stall", &stall, max_frames, true},
                       Key{"die", &die, max_frames, true},     Key{"seed", &seed, max_frames, true}};
    for (std::size_t at = 0; at <= text.size();) {
        const std::string_view item = text.substr(at, text.find(',', at) - at);
        at += item.size() + 1;
        const std::size_t equals = item.find('=');
        const std::string_view name = item.substr(0, equals);
        const auto key = std::find_if(keys.begin(), keys.end(), [&](const Key& one) { return one.name == name; });
        if (equals == std::string_view::npos || key == keys.end())
            return fail(Errc::usage,
                        "'{}' is not a fault; there are drop=P, dup=P, reorder=P, flip=P, delay=MS, stall=AFTER, "
                        "die=AFTER and seed=N",
                        item);
        if (key->given) return fail(Errc::usage, "{} is given twice", name);
        key->given = true;
        HETERO_TRY(*key->value, parse_number(name, item.substr(equals + 1), key->max, key->whole));
    }
    out.max_delay_s = delay_ms / 1e3;
    out.stall_after = static_cast<std::int64_t>(stall);
    out.die_after = static_cast<std::int64_t>(die);
    out.seed = static_cast<std::uint32_t>(seed);
    return out;
}

}  // namespace hetero::transport
