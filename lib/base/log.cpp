#include "base/log.h"

namespace hetero::log {
namespace {
Sink g_sink;
Level g_threshold = Level::info;
}  // namespace

void set_sink(Sink sink, Level threshold) {
    g_sink = std::move(sink);
    g_threshold = threshold;
}

bool enabled(Level level) noexcept { return g_sink && level >= g_threshold; }

void write(Level level, std::string_view message) {
    if (enabled(level)) g_sink(level, message);
}

}  // namespace hetero::log
