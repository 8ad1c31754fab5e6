#include "base/printable.h"

namespace hetero {

std::string printable(std::string_view text, std::size_t longest) {
    std::string out;
    for (const char c : text.substr(0, longest)) out += c >= ' ' && c <= '~' ? c : '?';
    if (text.size() > longest) out += "...";
    return out;
}

}  // namespace hetero
