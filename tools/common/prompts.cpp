#include "common/prompts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/log.h"
#include "base/printable.h"
#include "base/redact.h"
#include "base/units.h"
#include "common/group.h"
#include "common/kv_session.h"
#include "io/json_text.h"

namespace hetero::tool {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;
// mpirun forwards the stdin of rank 0. Above this much Open MPI 4.1 may crash (open-mpi/ompi issue 7483) and 5.0.8 may
// repeat parts (openpmix/prrte issue 2579).
constexpr std::size_t kForwardedBytes = std::size_t{1} << 16;

Result<std::string> read_text_alone(const std::string& path) {
    const bool is_stdin = path == "-";
    const int fd = is_stdin ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(Errc::bad_input, "{}: {}", path, std::strerror(errno));
    std::string text;
    Status status;
    while (status) {
        const std::size_t filled = text.size();
        text.resize(filled + (std::size_t{1} << 16));
        const ssize_t got = read(fd, text.data() + filled, text.size() - filled);
        text.resize(filled + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
        if (got < 0 && errno != EINTR)
            status = fail(Errc::bad_input, "{}: {}", is_stdin ? "stdin" : path, std::strerror(errno));
        if (got == 0) break;
        if (text.size() > kMaxTextBytes)
            status = fail(Errc::bad_input, "{}: is larger than {}", path, format_bytes(kMaxTextBytes));
    }
    if (!is_stdin) close(fd);
    if (!status) return tl::unexpected(status.error());
    if (is_stdin && text.size() > kForwardedBytes && std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr)
        log::warn("{} bytes of prompt came through mpirun, which may crash or repeat parts above {}; -f FILE is safe",
                  text.size(), kForwardedBytes);
    return text;
}

class TokenMaker {
public:
    TokenMaker(const PromptOptions& options, const LoadedModel& loaded) : options_(options), loaded_(loaded) {}

    [[nodiscard]] Result<Prompt> from_text(std::string id, const std::string& text) const {
        if (text.empty()) return fail(Errc::bad_input, "prompt is empty");
        if (options_.chat) {
            std::vector<ChatMessage> messages;
            if (options_.system) messages.push_back({"system", *options_.system});
            messages.push_back({"user", text});
            return from_messages(std::move(id), messages);
        }
        HETERO_CHECK(check_tokenizer());
        const SpecialText special = options_.special ? SpecialText::parse : SpecialText::plain;
        return finish(std::move(id), loaded_.tokenizer->encode(text, special), options_.bos);
    }

    [[nodiscard]] Result<Prompt> from_messages(std::string id, const std::vector<ChatMessage>& messages) const {
        HETERO_CHECK(check_tokenizer());
        // The template's own special tokens have to be parsed, and with them what a message holds: that needs consent.
        if (!options_.special) {
            for (const ChatMessage& message : messages) {
                for (const std::string& part : {message.role, message.content}) {
                    if (encode(part, SpecialText::parse) != encode(part, SpecialText::plain)) {
                        return fail(Errc::bad_input,
                                    "a message holds the text of a special token, which would become one; "
                                    "--special allows it");
                    }
                }
            }
        }
        HETERO_TRY(const std::string text, loaded_.tokenizer->format_chat(messages, true));
        return finish(std::move(id), encode(text, SpecialText::parse), options_.bos);
    }

    // Ids are taken as they are: BOS only when asked for.
    [[nodiscard]] Result<Prompt> from_tokens(std::string id, std::vector<TokenId> tokens) const {
        return finish(std::move(id), std::move(tokens), options_.bos == "on" ? "on" : "off");
    }

private:
    [[nodiscard]] Status check_tokenizer() const {
        if (loaded_.tokenizer) return {};
        return fail(Errc::bad_input, "{} has no tokenizer: give token ids with --tokens", loaded_.model->path);
    }
    [[nodiscard]] std::vector<TokenId> encode(const std::string& text, SpecialText special) const {
        return loaded_.tokenizer->encode(text, special);
    }
    [[nodiscard]] Result<Prompt> finish(std::string id, std::vector<TokenId> tokens, const std::string& bos) const {
        const bool wanted = bos == "on" || (bos == "auto" && loaded_.tokenizer->adds_bos());
        if (wanted) {
            const auto token = loaded_.tokenizer ? loaded_.tokenizer->bos() : std::nullopt;
            if (!token) return fail(Errc::bad_input, "--bos {}: {} has no BOS token", bos, loaded_.model->path);
            if (tokens.empty() || tokens.front() != *token) tokens.insert(tokens.begin(), *token);
        }
        if (tokens.empty()) return fail(Errc::bad_input, "prompt is empty");
        return Prompt{std::move(id), std::move(tokens), options_.special};
    }

    const PromptOptions& options_;
    const LoadedModel& loaded_;
};

Result<Prompt> prompt_of_line(const nlohmann::json& line, std::string id, const TokenMaker& maker) {
    int forms = 0;
    for (const auto& [key, value] : line.items()) {
        if (key == "id") {
            if (value.is_string()) {
                id = value.get<std::string>();
            } else if (value.is_number_integer()) {
                id = value.dump();
            } else {
                return fail(Errc::bad_input, "'id' is neither text nor an integer");
            }
        } else if (key == "prompt" || key == "messages" || key == "tokens") {
            ++forms;
        } else {
            return fail(Errc::bad_input, "unknown key '{}' (known: id, prompt, messages, tokens)", private_text(key));
        }
    }
    if (forms != 1) return fail(Errc::bad_input, "needs one of prompt, messages, tokens; has {}", forms);
    if (line.contains("prompt")) {
        if (!line["prompt"].is_string()) return fail(Errc::bad_input, "'prompt' is not text");
        return maker.from_text(std::move(id), line["prompt"].get<std::string>());
    }
    if (line.contains("messages")) {
        if (!line["messages"].is_array()) return fail(Errc::bad_input, "'messages' is not a list");
        std::vector<ChatMessage> messages;
        for (const auto& message : line["messages"]) {
            if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
                !message.contains("content") || !message["content"].is_string()) {
                return fail(Errc::bad_input, "a message needs 'role' and 'content', both text");
            }
            messages.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
        }
        return maker.from_messages(std::move(id), messages);
    }
    if (!line["tokens"].is_array()) return fail(Errc::bad_input, "'tokens' is not a list");
    std::vector<TokenId> tokens;
    for (const auto& token : line["tokens"]) {
        if (!token.is_number_integer() || token < 0 || token > std::numeric_limits<TokenId>::max()) {
            return fail(Errc::bad_input, "'tokens' holds {}, which is no token id",
                        private_text(printable(token.dump(), 40)));
        }
        tokens.push_back(token.get<TokenId>());
    }
    return maker.from_tokens(std::move(id), std::move(tokens));
}

// What a state asks of a sequence's id.
Status check_id(const std::string& id, const LoadedModel& loaded) {
    kv::Header header = make_header(loaded, kernels::DType::f16);
    header.sequences.emplace_back();
    header.sequences.back().id = id;
    header.sequences.back().tokens = {0};
    return kv::check_header(header);
}

Result<std::vector<Prompt>> read_jsonl(const std::string& path, const TokenMaker& maker, const LoadedModel& loaded) {
    HETERO_TRY(const std::string text, read_text(path));
    std::vector<Prompt> prompts;
    std::set<std::string> ids;
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = std::string_view(text).substr(begin, end - begin);
        begin = end + 1;
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string where = fmt::format("{}, line {}", path, number);
        HETERO_TRY(const auto document, io::parse_json(line, where));
        if (!document.is_object()) return fail(Errc::bad_input, "{}: is not a JSON object", where);
        auto prompt = prompt_of_line(document, fmt::format("{}", prompts.size()), maker);
        if (!prompt) return fail_with(prompt.error(), where);
        if (auto status = check_id(prompt->id, loaded); !status) return fail_with(status.error(), where);
        if (!ids.insert(prompt->id).second)
            return fail(Errc::bad_input, "{}: id '{}' is there twice", where, prompt->id);
        prompts.push_back(std::move(*prompt));
    }
    if (prompts.empty()) return fail(Errc::bad_input, "{}: holds no prompt", path);
    return prompts;
}

}  // namespace

void add_prompt_options(OptionTable& table, PromptOptions& options, PromptForms forms) {
    table.text("-p,--prompt", "TEXT", &options.text, "the prompt, as it is (no escapes)");
    table.text("-f,--file", "FILE", &options.file, "the prompt is the content of FILE; -: of stdin").completion =
        Completion::file;
    table.text("--tokens", "IDS", &options.tokens, "the prompt as token ids: 1,2,3 or @FILE");
    if (forms == PromptForms::all) {
        table.text("--jsonl", "FILE", &options.jsonl, "a prompt a line: id, and prompt, messages or tokens")
            .completion = Completion::file;
    }
    table.flag("--special", &options.special, "text such as <|im_end|> in a prompt becomes the special token").setting =
        true;
    table.flag("--chat", &options.chat, "put the prompt into the model's chat template, as the user's message");
    table.text("--system", "TEXT", &options.system, "with --chat: the system message");
    table.choice("--bos", &options.bos, {"auto", "on", "off"}, "begin with the BOS token; auto: as the model says")
        .setting = true;
}

bool has_prompt(const PromptOptions& options) {
    return options.text || options.file || options.tokens || options.jsonl;
}

std::vector<std::string> prompt_files(const PromptOptions& options) {
    std::vector<std::string> files = {options.file.value_or(""), options.jsonl.value_or("")};
    if (options.tokens && options.tokens->starts_with("@")) files.push_back(options.tokens->substr(1));
    return files;
}

Status check_prompt_options(const PromptOptions& options, bool stdin_taken) {
    const int forms = int{options.text.has_value()} + int{options.file.has_value()} + int{options.tokens.has_value()} +
                      int{options.jsonl.has_value()};
    if (forms > 1)
        return fail(Errc::usage, "more than one prompt: --prompt, --file, --tokens and --jsonl exclude each other");
    const bool reads_stdin = options.file == "-" || options.jsonl == "-";
    if (stdin_taken && reads_stdin) return fail(Errc::usage, "stdin cannot carry both the state and the prompt");
    if (options.system && !options.chat) return fail(Errc::usage, "--system needs --chat");
    if (options.chat && options.tokens) return fail(Errc::usage, "--chat needs a prompt of text");
    return {};
}

Result<std::vector<Prompt>> read_prompts(const PromptOptions& options, const LoadedModel& loaded) {
    const TokenMaker maker(options, loaded);
    std::vector<Prompt> prompts;
    if (options.jsonl) {
        HETERO_TRY(prompts, read_jsonl(*options.jsonl, maker, loaded));
    } else if (options.tokens) {
        HETERO_TRY(auto tokens, parse_token_list(*options.tokens));
        HETERO_TRY(auto prompt, maker.from_tokens("0", std::move(tokens)));
        prompts.push_back(std::move(prompt));
    } else {
        std::string text = options.text.value_or("");
        if (options.file) {
            HETERO_TRY(text, read_text(*options.file));
        }
        auto prompt = maker.from_text("0", text);
        if (!prompt && options.file) return fail_with(prompt.error(), *options.file == "-" ? "stdin" : *options.file);
        if (!prompt) return tl::unexpected(prompt.error());
        prompts.push_back(std::move(*prompt));
    }
    return prompts;
}

Result<std::string> read_text(const std::string& path) {
    return read_once([&] { return read_text_alone(path); });
}

Result<std::vector<TokenId>> parse_token_list(const std::string& text) {
    std::string list = text;
    if (text.starts_with("@")) {
        HETERO_TRY(list, read_text(text.substr(1)));
    }
    std::vector<TokenId> tokens;
    for (std::size_t begin = 0; (begin = list.find_first_not_of(", \t\r\n", begin)) != std::string::npos;) {
        const std::size_t end = std::min(list.find_first_of(", \t\r\n", begin), list.size());
        const std::string word = list.substr(begin, end - begin);
        const auto id = parse_integer(word);
        if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
            return fail(Errc::usage, "--tokens: '{}' is no token id", private_text(word.substr(0, 40)));
        }
        tokens.push_back(static_cast<TokenId>(*id));
        begin = end;
    }
    return tokens;
}

Status check_tokens(const std::vector<TokenId>& tokens, const kv::Identity& identity) {
    if (tokens.size() > identity.context_length) {
        return fail(Errc::bad_input, "the prompt has {} tokens, the model's context holds {}", tokens.size(),
                    identity.context_length);
    }
    return check_vocabulary(tokens, identity);
}

Status check_vocabulary(const std::vector<TokenId>& tokens, const kv::Identity& identity) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || static_cast<std::uint32_t>(tokens[i]) >= identity.vocab_size) {
            return fail(Errc::bad_input, "token {} is {}, outside the vocabulary of {}", i, private_token(tokens[i]),
                        identity.vocab_size);
        }
    }
    return {};
}

}  // namespace hetero::tool
