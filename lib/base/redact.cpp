#include "base/redact.h"

#include <atomic>

namespace hetero {
namespace {

std::atomic<bool> on_ = false;

}  // namespace

void set_redaction(bool on) noexcept { on_ = on; }
bool redacts() noexcept { return on_; }

std::string private_text(std::string_view text) {
    return redacts() ? fmt::format("({} bytes)", text.size()) : std::string(text);
}

}  // namespace hetero
