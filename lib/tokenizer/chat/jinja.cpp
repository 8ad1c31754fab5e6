// Lexical rules: https://jinja.palletsprojects.com/en/stable/templates/
#include "tokenizer/chat/jinja.h"

#include <vector>

#include "tokenizer/utf8.h"

namespace hetero::tokenizer {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }
bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Token {
    enum Kind { word, string, sign } kind = sign;
    std::string text;  // string: its value
};

std::string in_quotes(std::string_view value) {
    std::string out = "'";
    for (const char c : value) {
        if (c == '\\' || c == '\'') out += '\\';
        out += c;
    }
    return out + "'";
}

// The string literal at source[at] (its quote); moves `at` past it. The escapes that templates use; others are not
// known.
std::optional<std::string> read_string(std::string_view source, std::size_t& at) {
    const char quote = source[at++];
    std::string value;
    while (at < source.size() && source[at] != quote) {
        char c = source[at++];
        if (c == '\\') {
            if (at == source.size()) return std::nullopt;
            switch (source[at++]) {
                case 'n':
                    c = '\n';
                    break;
                case 't':
                    c = '\t';
                    break;
                case 'r':
                    c = '\r';
                    break;
                case '\\':
                    c = '\\';
                    break;
                case '\'':
                    c = '\'';
                    break;
                case '"':
                    c = '"';
                    break;
                default:
                    return std::nullopt;
            }
        }
        value += c;
    }
    if (at == source.size()) return std::nullopt;
    ++at;
    return value;
}

// Reads tokens up to `close` ("}}" or "%}", a '-' before it reported) and moves `at` past it.
std::optional<std::vector<Token>> read_tag(std::string_view source, std::size_t& at, std::string_view close,
                                           bool& strips) {
    std::vector<Token> tokens;
    int depth = 0;
    while (at < source.size()) {
        const char c = source[at];
        if (is_space(c)) {
            ++at;
        } else if (depth == 0 && source.substr(at, 2) == close) {
            at += 2;
            strips = false;
            return tokens;
        } else if (c == '-' && source.substr(at + 1, 2) == close) {
            at += 3;
            strips = true;
            return tokens;
        } else if (c == '\'' || c == '"') {
            auto value = read_string(source, at);
            if (!value) return std::nullopt;
            tokens.push_back({Token::string, std::move(*value)});
        } else if (is_word(c)) {
            const std::size_t begin = at;
            while (at < source.size() && is_word(source[at])) ++at;
            std::string word(source.substr(begin, at - begin));
            // a.b -> a['b']
            const std::size_t n = tokens.size();
            if (n >= 2 && tokens[n - 1].text == "." && tokens[n - 1].kind == Token::sign && !is_digit(word[0]) &&
                tokens[n - 2].kind != Token::string &&
                (tokens[n - 2].kind == Token::word || tokens[n - 2].text == "]" || tokens[n - 2].text == ")")) {
                tokens.back() = {Token::sign, "["};
                tokens.push_back({Token::string, std::move(word)});
                tokens.push_back({Token::sign, "]"});
            } else {
                tokens.push_back({Token::word, std::move(word)});
            }
        } else {
            if (c == '(' || c == '[' || c == '{') ++depth;
            if (c == ')' || c == ']' || c == '}') --depth;
            tokens.push_back({Token::sign, std::string(1, c)});
            ++at;
        }
    }
    return std::nullopt;
}

std::string spelling(const Token* begin, const Token* end) {
    std::string out;
    for (const Token* token = begin; token != end; ++token) {
        if (token != begin && token->kind != Token::sign && (token - 1)->kind != Token::sign) out += ' ';
        out += token->kind == Token::string ? in_quotes(token->text) : token->text;
    }
    return out;
}

void put_literal(std::string_view text, std::string& out) {
    for (const char c : text) {
        if (c == '{' || c == '\\') out += '\\';
        out += c;
    }
}

// {{ a + b }}: each summand by itself, unless a conditional or a comparison binds them.
void put_output(const std::vector<Token>& tokens, std::string& out) {
    std::vector<std::size_t> plus;
    int depth = 0;
    bool splits = true;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Token& token = tokens[i];
        if (token.kind == Token::word)
            splits = splits && (depth > 0 || (token.text != "if" && token.text != "in" && token.text != "is" &&
                                              token.text != "and" && token.text != "or" && token.text != "not"));
        if (token.kind != Token::sign) continue;
        if (token.text == "(" || token.text == "[" || token.text == "{") ++depth;
        if (token.text == ")" || token.text == "]" || token.text == "}") --depth;
        if (depth > 0) continue;
        if (token.text == "+") plus.push_back(i);
        splits = splits && std::string_view("=<>!*/%-~").find(token.text) == std::string_view::npos;
    }
    if (!splits) plus.clear();
    plus.push_back(tokens.size());
    std::size_t begin = 0;
    for (const std::size_t end : plus) {
        if (end == begin + 1 && tokens[begin].kind == Token::string)
            put_literal(tokens[begin].text, out);
        else
            out.append("{{").append(spelling(tokens.data() + begin, tokens.data() + end)).append("}}");
        begin = end + 1;
    }
}

}  // namespace

std::string_view trim(std::string_view text) {
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text, 0);
        const bool separator = c.code >= 0x1C && c.code <= 0x1F;  // Python counts these as white space
        if (c.status != Utf8Status::valid || !(is_white_space(c.code) || separator)) break;
        text.remove_prefix(c.bytes);
    }
    while (!text.empty()) {
        std::size_t at = text.size() - 1;
        while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
        const Utf8Char c = decode_utf8(text, at);
        const bool separator = c.code >= 0x1C && c.code <= 0x1F;
        if (c.status != Utf8Status::valid || !(is_white_space(c.code) || separator)) break;
        text = text.substr(0, at);
    }
    return text;
}

std::optional<std::string> canonical_jinja(std::string_view source) {
    if (source.ends_with('\n')) source.remove_suffix(1);
    std::string out;
    std::size_t at = 0;
    bool strip_next = false;    // after -%} or -}}
    bool newline_next = false;  // after %} and #}: one newline goes
    while (true) {
        std::size_t tag = source.find('{', at);
        while (tag != std::string_view::npos &&
               (tag + 1 >= source.size() || std::string_view("{%#").find(source[tag + 1]) == std::string_view::npos))
            tag = source.find('{', tag + 1);
        const bool last = tag == std::string_view::npos;
        std::string_view literal = source.substr(at, last ? std::string_view::npos : tag - at);
        bool at_line_start = at == 0;
        if (strip_next) {
            while (!literal.empty() && is_space(literal.front())) literal.remove_prefix(1);
        } else if (newline_next && !literal.empty() && literal.front() == '\n') {
            literal.remove_prefix(1);
            at_line_start = true;
        }
        if (last) {
            put_literal(literal, out);
            return out;
        }
        const char kind = source[tag + 1];
        at = tag + 2;
        const char mark = at < source.size() ? source[at] : '\0';
        if (mark == '-') {
            ++at;
            while (!literal.empty() && is_space(literal.back())) literal.remove_suffix(1);
        } else if (mark == '+') {
            ++at;
        } else if (kind != '{') {
            std::size_t end = literal.size();
            while (end > 0 && (literal[end - 1] == ' ' || literal[end - 1] == '\t')) --end;
            if (end == 0 ? at_line_start : literal[end - 1] == '\n') literal = literal.substr(0, end);
        }
        put_literal(literal, out);

        if (kind == '#') {
            const std::size_t end = source.find("#}", at);
            if (end == std::string_view::npos) return std::nullopt;
            strip_next = end > at && source[end - 1] == '-';
            newline_next = true;
            at = end + 2;
            continue;
        }
        const auto tokens = read_tag(source, at, kind == '{' ? "}}" : "%}", strip_next);
        if (!tokens) return std::nullopt;
        newline_next = kind == '%';
        if (kind == '{')
            put_output(*tokens, out);
        else
            out.append("{%").append(spelling(tokens->data(), tokens->data() + tokens->size())).append("%}");
    }
}

}  // namespace hetero::tokenizer
