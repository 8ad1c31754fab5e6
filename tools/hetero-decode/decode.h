// The job of hetero-decode: continues the sequences of a KV state.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/endpoints.h"
#include "common/models.h"
#include "common/prompts.h"
#include "common/tool.h"
#include "common/turns.h"
#include "engine/generate.h"

namespace hetero::tool {

struct DecodeOptions {
    std::string input, output;
    ModelOptions model;
    PromptOptions prompt;
    TransferOptions transfer;
    TurnOptions turns;
    engine::GenerateOptions generate;
    std::vector<std::string> sequences;
    std::string kv_dtype = "auto";
    std::uint64_t chunk_tokens = 512;
    std::uint64_t top_k = 0;
    std::uint64_t batch = 0;  // sequences decoded together; 0: as many as fit
};

Status run_decode(Tool& tool, const DecodeOptions& options, Turns* turns = nullptr);
// --count: states from mpi-port:FILE, each by run_decode() in a process of its own.
Status decode_in_turn(Tool& tool, DecodeOptions& options);

}  // namespace hetero::tool
