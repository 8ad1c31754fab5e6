#include "io/json_text.h"

#include <algorithm>
#include <new>

#include "base/printable.h"
#include "base/redact.h"

namespace hetero::io {
namespace {

// Exact for valid JSON. For any other text the parser stops no later than where the count goes wrong.
int depth_of(std::string_view text) {
    int depth = 0;
    int deepest = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') {
                ++i;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            deepest = std::max(deepest, ++depth);
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return deepest;
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, std::string_view what) {
    if (const int depth = depth_of(text); depth > max_json_depth) {
        return fail(Errc::bad_input, "{}: is nested {} levels deep; at most {} are read", what, depth, max_json_depth);
    }
    try {
        return nlohmann::json::parse(text.begin(), text.end());
    } catch (const nlohmann::json::exception& e) {
        if (redacts()) return fail(Errc::bad_input, "{}: is not JSON", what);  // the reason quotes the text
        return fail(Errc::bad_input, "{}: is not JSON: {}", what, printable(e.what(), 200));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory for its {} bytes of JSON", what, text.size());
    }
}

}  // namespace hetero::io
