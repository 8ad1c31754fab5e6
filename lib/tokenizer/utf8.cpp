#include "tokenizer/utf8.h"

#include <cstring>

#include "tokenizer/tokenizer.h"

namespace hetero::tokenizer {
namespace {

// Length of the run of ASCII at text[at].
std::size_t ascii_run(std::string_view text, std::size_t at) noexcept {
    const std::size_t begin = at;
    while (at + 8 <= text.size()) {
        std::uint64_t word = 0;
        std::memcpy(&word, text.data() + at, 8);
        if ((word & 0x8080808080808080ULL) != 0) break;
        at += 8;
    }
    while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
    return at - begin;
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, std::size_t at) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned lead = byte(at);
    if (lead < 0x80) return {lead, 1, Utf8Status::valid};

    unsigned length = 0;
    unsigned low = 0x80;  // bounds of the second byte
    unsigned high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
        length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        length = 3;
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        length = 4;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
    } else {
        return {0xFFFD, 1, Utf8Status::ill_formed};
    }

    char32_t code = lead & (0x7FU >> length);
    for (unsigned i = 1; i < length; ++i) {
        if (at + i >= text.size()) return {0xFFFD, i, Utf8Status::truncated};
        const unsigned next = byte(at + i);
        if (next < low || next > high) return {0xFFFD, i, Utf8Status::ill_formed};
        code = (code << 6) | (next & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    return {code, length, Utf8Status::valid};
}

bool is_valid_utf8(std::string_view text) noexcept {
    std::size_t at = ascii_run(text, 0);
    while (at < text.size()) {
        const Utf8Char c = decode_utf8(text, at);
        if (c.status != Utf8Status::valid) return false;
        at += c.bytes;
        at += ascii_run(text, at);
    }
    return true;
}

bool is_white_space(char32_t code) noexcept {
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

}  // namespace hetero::tokenizer

namespace hetero {

using tokenizer::decode_utf8;
using tokenizer::Utf8Status;

std::string to_valid_utf8(std::string_view bytes) {
    std::string out;
    out.reserve(bytes.size());
    std::size_t kept = 0;  // bytes[kept, at) is valid and not yet copied
    std::size_t at = 0;
    while (at < bytes.size()) {
        const auto c = decode_utf8(bytes, at);
        if (c.status != Utf8Status::valid) {
            out.append(bytes.substr(kept, at - kept)).append("\xEF\xBF\xBD");
            kept = at + c.bytes;
        }
        at += c.bytes;
    }
    out.append(bytes.substr(kept));
    return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
    std::string all = std::move(held_);
    held_.clear();
    all.append(bytes);
    // Only the last three bytes can belong to an unfinished character. Continuation bytes are stepped over backwards,
    // and the byte before them decides.
    std::size_t lead = all.size();
    for (std::size_t back = 1; back <= 3 && back <= all.size(); ++back) {
        if ((static_cast<unsigned char>(all[all.size() - back]) & 0xC0) != 0x80) {
            lead = all.size() - back;
            break;
        }
    }
    if (lead < all.size()) {
        const auto c = decode_utf8(all, lead);
        if (c.status == Utf8Status::truncated) {
            held_ = all.substr(lead);
            all.resize(lead);
        }
    }
    return all;
}

std::string Utf8Stream::finish() {
    std::string rest = std::move(held_);
    held_.clear();
    return rest;
}

}  // namespace hetero
