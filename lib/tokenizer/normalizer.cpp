#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/log.h"

namespace hetero::tokenizer {
namespace {

constexpr std::string_view name_of(UnicodeForm form) {
    switch (form) {
        case UnicodeForm::nfc:
            return "NFC";
        case UnicodeForm::nfd:
            return "NFD";
        case UnicodeForm::nfkc:
            return "NFKC";
        case UnicodeForm::nfkd:
            return "NFKD";
    }
    return "";
}

std::string to_form(UnicodeForm form, std::string text) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return text;
    int options = UTF8PROC_STABLE;
    options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t* mapped = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &mapped, static_cast<utf8proc_option_t>(options));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
    if (size < 0) {
        log::warn("a text of {} bytes is not normalised to {}: {}", text.size(), name_of(form), utf8proc_errmsg(size));
        return text;
    }
    return std::string(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
}

}  // namespace

std::string normalize(const std::vector<NormalizerRule>& rules, std::string text) {
    for (const NormalizerRule& rule : rules) {
        if (const auto* form = std::get_if<UnicodeForm>(&rule)) {
            text = to_form(*form, std::move(text));
        } else if (const auto* prepend = std::get_if<Prepend>(&rule)) {
            if (!text.empty()) text.insert(0, prepend->text);
        } else {
            const auto& replace = std::get<Replace>(rule);
            text = replace_all(text, replace.pattern, replace.with);
        }
    }
    return text;
}

std::string description(const NormalizerRule& rule) {
    if (const auto* form = std::get_if<UnicodeForm>(&rule)) return std::string(name_of(*form));
    if (const auto* prepend = std::get_if<Prepend>(&rule)) return "prepend:" + prepend->text;
    const auto& replace = std::get<Replace>(rule);
    return "replace:" + replace.pattern.description() + ":" + replace.with;
}

}  // namespace hetero::tokenizer
