#include "tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace hetero::tokenizer {
namespace {

constexpr int kCodes = 256 + 68;

struct Tables {
    std::array<std::uint16_t, 256> code_of{};    // byte -> code point
    std::array<std::int16_t, kCodes> byte_of{};  // code point -> byte, -1: none
};

constexpr Tables make_tables() {
    Tables t;
    for (auto& byte : t.byte_of) byte = -1;
    std::uint16_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
        const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        const auto code = itself ? static_cast<std::uint16_t>(byte) : next++;
        t.code_of[static_cast<std::size_t>(byte)] = code;
        t.byte_of[code] = static_cast<std::int16_t>(byte);
    }
    return t;
}

constexpr Tables kTables = make_tables();

}  // namespace

bool append_bytes_of_alphabet(std::string_view text, std::string& bytes) {
    const std::size_t before = bytes.size();
    bytes.resize(before + text.size());  // a byte has one character or two
    char* out = bytes.data() + before;
    for (std::size_t at = 0; at < text.size();) {
        // All characters of the alphabet have one or two bytes; whatever is longer, or ill-formed, is none of them.
        std::size_t code = static_cast<unsigned char>(text[at++]);
        if (code >= 0xC2 && code <= 0xC5 && at < text.size()) {
            const auto next = static_cast<unsigned char>(text[at++]);
            code = (next & 0xC0) == 0x80 ? (code & 0x1F) << 6 | (next & 0x3F) : kCodes;
        } else if (code >= 0x80) {
            code = kCodes;
        }
        if (code >= kCodes || kTables.byte_of[code] < 0) return false;
        *out++ = static_cast<char>(kTables.byte_of[code]);
    }
    bytes.resize(static_cast<std::size_t>(out - bytes.data()));
    return true;
}

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
    std::string out;
    if (!append_bytes_of_alphabet(text, out)) return std::nullopt;
    return out;
}

std::string alphabet_of_bytes(std::string_view bytes) {
    std::string out;
    out.reserve(bytes.size() * 2);
    for (const char byte : bytes) {
        const unsigned code = kTables.code_of[static_cast<unsigned char>(byte)];
        if (code < 0x80) {
            out.push_back(static_cast<char>(code));
        } else {
            out.push_back(static_cast<char>(0xC0 | (code >> 6)));
            out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
        }
    }
    return out;
}

}  // namespace hetero::tokenizer
