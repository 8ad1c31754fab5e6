// Which keys a profile has and what they hold: the table that hetero-hw(5) describes in words.
#pragma once
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hetero::hw {

enum class Kind : std::uint8_t {
    text,
    flag,
    count,   // a whole number, 0 or more
    figure,  // finite, above 0: what is not known is no 0
    number,  // finite
    texts,   // lists
    counts,
    figures,
    table,
    tables,  // a list of tables
};

struct Field {
    std::string_view name;
    Kind kind = Kind::text;
    std::span<const Field> fields = {};  // of table and tables
};

// The document's own.
[[nodiscard]] std::span<const Field> profile_fields() noexcept;

// Whether `document` has known keys alone, each with a value of its kind. NAME may be null, or absent, where
// NAME_unknown says why. bad_input: "NAME: PATH: ...".
Status check_fields(const nlohmann::json& document, std::string_view name);

}  // namespace hetero::hw
