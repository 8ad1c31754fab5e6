// The job of hetero-prefill: prompts in, one KV state out.
#pragma once
#include <string>

#include "common/delivery.h"
#include "common/endpoints.h"
#include "common/models.h"
#include "common/prompts.h"
#include "common/tool.h"

namespace hetero::tool {

struct PrefillOptions {
    ModelOptions model;
    PromptOptions prompt;
    TransferOptions transfer;
    DeliveryOptions delivery;
    std::string output, prefix;
    std::string kv_dtype = "auto";
    std::string logits = "last";
    std::string logits_out;
    std::string truncate = "off";
    std::string first_token = "decode";
    std::string score;
    std::uint64_t chunk_tokens = 512;
    bool staged = false;

    [[nodiscard]] bool warms_only() const {  // --warm with nothing to compute
        return model.warm && score.empty() && output.empty() && prefix.empty() && !has_prompt(prompt) &&
               !transfer.dry_run;
    }
};

// Keeps the packed weights for later runs.
Status run_warm(Tool& tool, const PrefillOptions& options);

Status run_prefill(Tool& tool, const PrefillOptions& options);

// Perplexity of a text, in windows of 1024 tokens that do not overlap; the first token of each is not scored, and where
// the model begins texts with BOS each window does.
Status run_score(Tool& tool, const PrefillOptions& options);

}  // namespace hetero::tool
