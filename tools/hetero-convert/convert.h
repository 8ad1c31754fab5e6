// The two jobs of hetero-convert: converting, and holding the result against its source.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/models.h"
#include "common/tool.h"
#include "convert/types.h"
#include "engine/side_by_side.h"

namespace hetero::tool {

struct ConvertOptions {
    std::string input, output, dtype, check, bos = "auto";
    std::vector<std::string> keep;
    std::uint64_t max_shard_bytes = 5'000'000'000;
    std::uint64_t threads = 0;
    bool dry_run = false;
};

Status run_convert(Tool& tool, const ConvertOptions& options);

// Perplexity of a text by a model and by what it was converted to, and how far their logits are apart. Made before the
// conversion, so that what is wrong with the text or the tokenizer is said first.
class ConversionCheck {
public:
    static Result<ConversionCheck> prepare(const ConvertOptions& options);
    // `converted`: where the result lies; in messages it is called `options.output`. Keeps what it finds.
    Status run(const Tool& tool, const ConvertOptions& options, const std::string& converted);
    // Into the document, and one line on stdout where that is not asked for.
    Status report(Tool& tool, const ConvertOptions& options) const;

private:
    LoadedModel source_;
    std::vector<TokenId> tokens_;
    std::optional<TokenId> bos_;
    std::uint32_t window_tokens_ = 0;
    engine::SideBySide result_;
};

}  // namespace hetero::tool
