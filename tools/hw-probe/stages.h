// What prefill and decode of a model take on this machine: the section "stages" of a profile (hetero-hw(5)).
#pragma once
#include <string>

#include "common/tool.h"

namespace hetero::tool {

struct StagesCommand {
    std::string model;
    int threads = 0;  // 0: as many as this process may use
    bool quick = false;
};

// A JSON list of one entry. Errors are those of loading and running the model; bad_input: there are no weights.
Result<std::string> measure_stages(const StagesCommand& command);

}  // namespace hetero::tool
