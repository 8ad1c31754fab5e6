#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>

#include "base/log.h"

namespace hetero::tokenizer {
namespace {

constexpr std::size_t kMaxPattern = 64 * 1024;
// Steps allowed in one match. Ten million characters of white space need about as many; a runaway pattern is refused at
// load time, so this only bounds the time of what the probes did not find.
constexpr std::uint32_t kMatchLimit = 400'000'000;
constexpr std::uint32_t kHeapLimitKib = 1024 * 1024;
constexpr std::uint32_t kProbeLimit = 200'000;

constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;

pcre2_code* code_of(void* p) { return static_cast<pcre2_code*>(p); }
pcre2_match_data* data_of(void* p) { return static_cast<pcre2_match_data*>(p); }
pcre2_match_context* context_of(void* p) { return static_cast<pcre2_match_context*>(p); }

std::string message_of(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

// Runs the pattern over texts that make careless ones backtrack; false where one needs more than its share of steps.
// Compiled without start optimisations, which spare a text that lacks some character and so hide what another text
// would show.
bool survives_probes(const std::string& translated, pcre2_compile_context* compile_context) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                     kOptions | PCRE2_NO_START_OPTIMIZE, &error, &offset, compile_context);
    if (code == nullptr) return false;
    pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    bool ok = data != nullptr && context != nullptr;
    if (ok) pcre2_set_match_limit(context, kProbeLimit);
    for (const char* unit :
         {"a", "A", "1", " ", "\n", " \n", "!", "a ", "aA", "a1", "\xE4\xBD\xA0", "'", "\t", "_", "ab"}) {
        std::string text;
        while (text.size() < 1500) text += unit;
        const std::size_t size = text.size();
        for (const char* end : {"", "!", "a", "\x01", " "}) {
            text.resize(size);
            text += end;
            if (!ok) break;
            // Anchored: one attempt, so that the limit counts the steps of one match.
            const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | PCRE2_ANCHORED, data, context);
            ok = rc >= 0 || rc == PCRE2_ERROR_NOMATCH;
        }
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    pcre2_code_free(code);
    return ok;
}

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) {
    std::string out;
    out.reserve(pattern.size() + 64);
    const auto refuse = [&](std::string_view what) {
        return fail(Errc::bad_input, "regular expression '{}' uses {}, which is not supported", pattern, what);
    };
    bool in_class = false;
    std::size_t class_begin = 0;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\0') return refuse("a zero byte");
        if (c == '\\') {
            if (++i == pattern.size()) return refuse("a backslash at its end");
            const char e = pattern[i];
            switch (e) {
                case 's':
                    out += "\\p{White_Space}";
                    break;
                case 'S':
                    out += "\\P{White_Space}";
                    break;
                case 'd':
                    out += "\\p{Nd}";
                    break;
                case 'D':
                    out += "\\P{Nd}";
                    break;
                case 'v':
                    out += "\\x0B";
                    break;
                case 'r':
                case 'n':
                case 't':
                case 'f':
                    out += '\\';
                    out += e;
                    break;
                case 'p':
                case 'P':
                case 'x': {  // with what stands in braces
                    out += '\\';
                    out += e;
                    const std::size_t end =
                        pattern.substr(i + 1, 1) == "{" ? pattern.find('}', i) : std::string_view::npos;
                    if (end != std::string_view::npos) {
                        out += pattern.substr(i + 1, end - i);
                        i = end;
                    }
                    break;
                }
                case 'u':
                    if (pattern.size() - i < 5) return refuse("\\u without four hexadecimal digits");
                    out += "\\x{";
                    out += pattern.substr(i + 1, 4);
                    out += '}';
                    i += 4;
                    break;
                default:
                    if (static_cast<unsigned char>(e) >= 0x80) {
                        out += e;
                    } else if ((e >= '0' && e <= '9') || (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z')) {
                        return refuse(fmt::format("\\{}", e));
                    } else {
                        out += '\\';
                        out += e;
                    }
            }
            continue;
        }
        if (in_class) {
            if (c == '[') return refuse("a set inside a set");
            if (c == '&' && pattern.substr(i, 2) == "&&") return refuse("an intersection of sets (&&)");
            if (c == ']' && i > class_begin) in_class = false;
            out += c;
            continue;
        }
        if (c == '[') {
            in_class = true;
            out += c;
            if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
            class_begin = i + 1;  // a ']' here would be a member
            if (class_begin < pattern.size() && pattern[class_begin] == ']')
                return refuse("an unescaped ] at the start of a set");
            continue;
        }
        if (c == '(' && i + 1 < pattern.size()) {
            const std::string_view rest = pattern.substr(i + 1);
            if (rest[0] == '*') return refuse("(*");
            if (rest[0] == '?') {
                bool known = false;
                for (const std::string_view head : {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?-i:", "?i)"})
                    known = known || rest.substr(0, head.size()) == head;
                if (!known) return refuse(fmt::format("({}", rest.substr(0, 3)));
            }
        }
        if (c == '{') {
            const std::size_t end = pattern.find('}', i);
            // A possessive quantifier for PCRE2, a repeated one for Oniguruma.
            if (end != std::string_view::npos && pattern.substr(end + 1, 1) == "+") return refuse("{}+");
        }
        out += c;
    }
    if (in_class) return refuse("a set that does not end");
    return out;
}

Result<std::shared_ptr<const Regex>> Regex::compile(std::string_view pattern, Trust trust) {
    if (pattern.size() > kMaxPattern)
        return fail(Errc::bad_input, "a regular expression has {} bytes; at most {} are read", pattern.size(),
                    kMaxPattern);
    HETERO_TRY(const std::string translated, translate_oniguruma(pattern));
    std::shared_ptr<Regex> regex(new Regex);
    regex->source_ = pattern;

    const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
        pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
    if (context == nullptr) return fail(Errc::resource, "out of memory for a regular expression");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    regex->code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions, &error,
                                 &offset, context.get());
    if (regex->code_ == nullptr)
        return fail(Errc::bad_input, "regular expression '{}' is refused by PCRE2: {}", pattern, message_of(error));
    if (trust == Trust::none && !survives_probes(translated, context.get()))
        return fail(Errc::bad_input, "regular expression '{}' backtracks without bound on simple texts; it is refused",
                    pattern);
    pcre2_jit_compile(code_of(regex->code_), PCRE2_JIT_COMPLETE);  // where it fails, matching is interpreted
    return std::shared_ptr<const Regex>(std::move(regex));
}

Regex::~Regex() { pcre2_code_free(code_of(code_)); }

RegexMatcher::RegexMatcher(const Regex& regex)
    : regex_(&regex),
      data_(pcre2_match_data_create_from_pattern(code_of(regex.code_), nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
    if (data_ == nullptr || context_ == nullptr) {
        failed_ = true;
        return;
    }
    pcre2_set_match_limit(context_of(context_), kMatchLimit);
    pcre2_set_heap_limit(context_of(context_), kHeapLimitKib);
}

RegexMatcher::RegexMatcher(RegexMatcher&& other) noexcept
    : regex_(other.regex_),
      data_(std::exchange(other.data_, nullptr)),
      context_(std::exchange(other.context_, nullptr)),
      stack_(std::exchange(other.stack_, nullptr)),
      failed_(other.failed_) {}

RegexMatcher::~RegexMatcher() {
    pcre2_match_data_free(data_of(data_));
    pcre2_match_context_free(context_of(context_));
    pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(stack_));
}

std::optional<std::pair<std::size_t, std::size_t>> RegexMatcher::next(std::string_view text, std::size_t from) {
    if (failed_) return std::nullopt;
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
    const auto run = [&](std::uint32_t options) {
        return pcre2_match(code_of(regex_->code_), subject, text.size(), from, PCRE2_NO_UTF_CHECK | options,
                           data_of(data_), context_of(context_));
    };
    int rc = run(0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        if (stack_ == nullptr) {
            stack_ = pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, nullptr);
            if (stack_ != nullptr) pcre2_jit_stack_assign(context_of(context_), nullptr, stack_);
            if (stack_ != nullptr) rc = run(0);
        }
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = run(PCRE2_NO_JIT);  // its memory is the heap
    }
    if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (rc < 0) {
        failed_ = true;
        log::warn("regular expression '{}' gave up at byte {}: {}; the rest of this text is not split",
                  regex_->source(), from, message_of(rc));
        return std::nullopt;
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_of(data_));
    return std::pair{range[0], range[1]};
}

}  // namespace hetero::tokenizer
