// What --version --json tells about this build.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace hetero::tool {

[[nodiscard]] nlohmann::ordered_json version_document(const std::string& tool);

}  // namespace hetero::tool
