// The "normalizer", "pre_tokenizer", "decoder" and "post_processor" of tokenizer.json. Kinds that change ids and are
// not implemented are refused by name. Format: https://huggingface.co/docs/tokenizers/components
#pragma once
#include <optional>
#include <string>

#include "tokenizer/json_fields.h"
#include "tokenizer/parts.h"

namespace hetero::tokenizer {

Status read_normalizer(const Json* node, TokenizerParts& parts);
Status read_pre_tokenizer(const Json* node, TokenizerParts& parts);  // sets byte_level too
Status read_decoder(const Json* node, TokenizerParts& parts);
// The token that the post-processor puts before a text, if any.
Result<std::optional<std::string>> read_post_processor(const Json* node);

}  // namespace hetero::tokenizer
