// How TOML text is parsed, for the files of base that read toml++'s own tables.
#pragma once
#include <toml++/toml.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace hetero {

// bad_input: no TOML, or a key or header of more parts between dots than any document of ours needs, into each of which
// the parser would recurse. resource: no memory.
Result<toml::table> parse_toml_table(std::string_view text, const std::string& name);

}  // namespace hetero
