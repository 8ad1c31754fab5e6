// Transfers that go on where an earlier one broke off.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/endpoints.h"

namespace hetero::tool {

void add_resume_option(OptionTable& table, std::string* mode);

// Prepares `transfer` for a state that goes from another rank into a file as it is; of others, an explicit --resume is
// refused.
Status plan_resume(Tool& tool, const std::string& mode, const Endpoints& endpoints, bool as_it_is,
                   transport::TransportOptions& transfer);

// What an earlier transfer had brought of `bytes`, into the report; 0 where none had.
std::uint64_t report_resumed(Tool& tool, const Endpoints& endpoints, std::uint64_t bytes);

}  // namespace hetero::tool
