// Which keys a profile has and what they hold: the table that hetero-hw(5) describes in words.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace hetero::hw {

// Whether `document` has known keys alone, each with a value of its kind. NAME may be null, or absent, where
// NAME_unknown says why. bad_input: "NAME: PATH: ...".
Status check_fields(const nlohmann::json& document, std::string_view name);

}  // namespace hetero::hw
