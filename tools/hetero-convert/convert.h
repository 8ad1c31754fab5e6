// The two jobs of hetero-convert: converting, and holding the result against its source.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/models.h"
#include "common/tool.h"
#include "convert/types.h"

namespace hetero::tool {

struct ConvertOptions {
    std::string input, output, dtype, check, bos = "auto";
    std::vector<std::string> keep;
    std::uint64_t max_shard_bytes = 5'000'000'000;
    std::uint64_t threads = 0;
    bool dry_run = false;
};

Status run_convert(Tool& tool, const ConvertOptions& options);

// Perplexity of the text `options.check` by both models, and how far their logits are apart: into the report.
Status check_conversion(Tool& tool, const ConvertOptions& options);

}  // namespace hetero::tool
