#include "common/xml_text.h"

#include "tokenizer/tokenizer.h"

namespace hetero::tool {

std::string xml_text(std::string_view bytes) {
    std::string out;
    for (const char c : to_valid_utf8(bytes)) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\n':
            case '\t':
                out += ' ';
                break;
            default:
                if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
                    out += "\xEF\xBF\xBD";
                } else {
                    out += c;
                }
        }
    }
    return out;
}

}  // namespace hetero::tool
