#include "base/trace.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace hetero::trace {
namespace detail {
std::atomic<bool> on{false};
}

namespace {

using std::chrono::nanoseconds;

struct Event {
    std::size_t track;
    std::string name;
    nanoseconds begin, duration;
};

std::mutex g_mutex;
// Guarded by it:
std::vector<std::string> g_tracks;
std::vector<Event> g_events;
nanoseconds g_offset{0};

nanoseconds since_epoch(Clock::time_point time) {
    return std::chrono::duration_cast<nanoseconds>(time.time_since_epoch());
}

// Names are made here, of words and numbers: but a quote must not break the file.
std::string json_text(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + '"';
}

double microseconds(nanoseconds time) { return std::chrono::duration<double, std::micro>(time).count(); }

}  // namespace

void start() { detail::on.store(true); }

void add(std::string_view track, std::string name, Clock::time_point begin, Clock::time_point end) {
    if (!on()) return;
    const std::lock_guard lock(g_mutex);
    auto found = std::find(g_tracks.begin(), g_tracks.end(), track);
    if (found == g_tracks.end()) found = g_tracks.insert(found, std::string(track));
    g_events.push_back({static_cast<std::size_t>(found - g_tracks.begin()), std::move(name), since_epoch(begin),
                        std::chrono::duration_cast<nanoseconds>(end - begin)});
}

void set_offset(nanoseconds offset) {
    const std::lock_guard lock(g_mutex);
    g_offset = offset;
}

nanoseconds on_time_line(Clock::time_point time) {
    const std::lock_guard lock(g_mutex);
    return since_epoch(time) + g_offset;
}

std::string document(std::string_view process, std::uint64_t number) {
    const std::lock_guard lock(g_mutex);
    std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    text += fmt::format("{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":{}}}}}", number,
                        json_text(process));
    for (std::size_t i = 0; i < g_tracks.size(); ++i)
        text +=
            fmt::format(",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}",
                        number, i + 1, json_text(g_tracks[i]));
    for (const Event& event : g_events)
        text +=
            fmt::format(",\n{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}",
                        json_text(event.name), json_text(g_tracks[event.track]), number, event.track + 1,
                        microseconds(event.begin + g_offset), microseconds(event.duration));
    return text + "\n]}\n";
}

}  // namespace hetero::trace
