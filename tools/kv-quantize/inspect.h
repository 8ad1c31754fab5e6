// The report of kv-quantize --inspect.
#pragma once
#include <string>
#include <vector>

#include "common/tool.h"
#include "kv/inspect.h"

namespace hetero::tool {

// The codecs of --codecs, or those that are tried where it is empty.
Result<std::vector<quant::Spec>> inspected_codecs(const std::string& list);

[[nodiscard]] Json to_json(const std::vector<kv::PartInspection>& parts);
[[nodiscard]] std::string to_text(const std::vector<kv::PartInspection>& parts);

}  // namespace hetero::tool
