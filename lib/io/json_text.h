// JSON out of files and from peers, bounded before it is parsed.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace hetero::io {

// Arrays and objects within one another. nlohmann's parser does not recurse, but its dump(), operator== and copies do:
// what is deeper would overflow the stack there.
constexpr int max_json_depth = 64;

// Parses `text`. Deeper than max_json_depth, or not JSON: bad_input. `what` opens the message: the file, and where in
// it.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view what);

}  // namespace hetero::io
