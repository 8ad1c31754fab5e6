// Text in reports that are XML.
#pragma once
#include <string>
#include <string_view>

namespace hetero::tool {

// Of an element or attribute. What XML 1.0 cannot hold becomes U+FFFD.
[[nodiscard]] std::string xml_text(std::string_view bytes);

}  // namespace hetero::tool
