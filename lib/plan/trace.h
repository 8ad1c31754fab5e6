// Requests from published formats of traces.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/request.h"

namespace hetero::plan {

enum class TraceFormat {
    mooncake,     // JSON lines: timestamp (ms), input_length, output_length, hash_ids of blocks of 512 tokens
    splitwise,    // CSV: TIMESTAMP or arrival_timestamp, ContextTokens or prompt_size, GeneratedTokens or token_size
    openai_batch  // JSON lines: custom_id, method, url, body; no times: all arrive at once
};

struct Trace {
    TraceFormat format = TraceFormat::mooncake;
    std::vector<sched::Request> requests;  // in order of arrival, the first at 0
    double cached_fraction = 0;            // of the prompts' tokens
    std::uint64_t retained_tokens = 0;     // whose KV was used again: what has to be kept for those
    double mean_prompt_tokens = 0, mean_output_tokens = 0, duration_s = 0;
};

// The format is told from the first line. Cached tokens of a Mooncake trace are the leading blocks that an earlier
// request has had. Of an OpenAI batch, prompts are taken as a token for each 4 bytes of text, and output as max_tokens
// (or max_completion_tokens; 128 where it has neither). bad_input: with the line: no such format, unknown
// columns (the nearest known one is named), numbers out of range, lines that are too long.
Result<Trace> parse_trace(std::string_view text, const std::string& name);
Result<Trace> read_trace(const std::string& path);

}  // namespace hetero::plan
