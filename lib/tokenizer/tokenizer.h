// Text to token ids and back. Byte-level BPE (GPT-2 style) and SentencePiece-style BPE with byte fallback.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace hetero::io {
class GgufFile;
}

namespace hetero {

using TokenId = std::int32_t;

struct ChatMessage {
    std::string role;
    std::string content;
};

// Whether text such as <|im_end|> in the input becomes the special token or stays plain text.
enum class SpecialText { plain, parse };

class Tokenizer {
public:
    static Result<std::shared_ptr<const Tokenizer>> from_gguf(const io::GgufFile& file);
    // A Hugging Face folder's tokenizer.json (and tokenizer_config.json where it is there).
    static Result<std::shared_ptr<const Tokenizer>> from_folder(const std::string& folder);

    virtual ~Tokenizer() = default;

    // Never adds BOS; see bos(). Invalid UTF-8 in `text` is replaced by U+FFFD where the model's own tokenizer would do so.
    [[nodiscard]] virtual std::vector<TokenId> encode(std::string_view text, SpecialText special) const = 0;

    // The bytes a token stands for (may be part of a character). Empty for ids out of range, and for special
    // (control) tokens when skip_special is set.
    [[nodiscard]] virtual std::string piece(TokenId id, bool skip_special) const = 0;

    // All pieces of a sequence as bytes; applies what only holds for a whole text (a leading space that is dropped).
    [[nodiscard]] virtual std::string decode(std::span<const TokenId> ids, bool skip_special) const = 0;

    [[nodiscard]] virtual std::size_t vocab_size() const noexcept = 0;
    [[nodiscard]] virtual std::optional<TokenId> bos() const noexcept = 0;
    [[nodiscard]] virtual bool adds_bos() const noexcept = 0;           // what the model says for BOS "auto"
    [[nodiscard]] virtual const std::vector<TokenId>& eos() const noexcept = 0;  // every token that ends a turn or text
    [[nodiscard]] virtual const Digest& digest() const noexcept = 0;    // over vocabulary, merges, types, pre-tokenizer

    // The conversation in the model's own template. Known templates are recognised by content; others are refused,
    // saying which are known.
    [[nodiscard]] virtual Result<std::string> format_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const = 0;
};

// Bytes in, whole UTF-8 characters out: holds back an unfinished character until it is complete.
class Utf8Stream {
public:
    // Appends; returns what can be shown. Bytes that can never become valid are passed on as they are.
    [[nodiscard]] std::string push(std::string_view bytes);
    [[nodiscard]] std::string finish();  // what is held back, as it is

private:
    std::string held_;
};

// Text with every byte that is not part of valid UTF-8 replaced by U+FFFD (maximal subparts, as Unicode recommends).
[[nodiscard]] std::string to_valid_utf8(std::string_view bytes);

}  // namespace hetero
