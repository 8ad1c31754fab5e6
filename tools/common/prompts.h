// Prompts from the command line, files and JSON lines, as token ids. The bytes of a prompt are never changed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/models.h"
#include "common/options.h"

namespace hetero::tool {

struct PromptOptions {
    std::optional<std::string> text, file, tokens, jsonl;  // one of them
    bool special = false, chat = false;
    std::string bos = "auto";
    std::optional<std::string> system;
};
enum class PromptForms { text_and_tokens, all };
void add_prompt_options(OptionTable& table, PromptOptions& options, PromptForms forms);

struct Prompt {
    std::string id;
    std::vector<TokenId> tokens;
    bool special_parsed = false;
};

[[nodiscard]] bool has_prompt(const PromptOptions& options);
// Files that the prompt comes from.
[[nodiscard]] std::vector<std::string> prompt_files(const PromptOptions& options);
// Usage errors that need no model: none or several given, options that do not go together.
Status check_prompt_options(const PromptOptions& options, bool stdin_taken);
// The prompts, at least one, none empty. Errors name the file and line.
Result<std::vector<Prompt>> read_prompts(const PromptOptions& options, const LoadedModel& loaded);

// A whole file, or stdin for "-"; read by the first rank of a group for all of them.
Result<std::string> read_text(const std::string& path);
// "1, 2 3" or "@FILE" holding the same.
Result<std::vector<TokenId>> parse_token_list(const std::string& text);
// Each id within the vocabulary.
Status check_vocabulary(const std::vector<TokenId>& tokens, const kv::Identity& identity);
// The same, and no more than the context holds.
Status check_tokens(const std::vector<TokenId>& tokens, const kv::Identity& identity);

}  // namespace hetero::tool
