#include "common/transfers.h"

#include <algorithm>

#include "base/clock.h"
#include "base/trace.h"

namespace hetero::tool {

void report_transfer(Tool& tool, const transport::Endpoint& endpoint, bool sending,
                     std::optional<std::chrono::steady_clock::time_point> computed_at) {
    const auto stats = transport::transfer_stats(endpoint, sending);
    if (!stats) return;
    const double ms = stats->busy_s * 1e3;
    Json& transfer = tool.report()["transfer"] = {{"bytes", stats->bytes}, {"ms", number(ms)}};
    std::string what = fmt::format("{} bytes {} {}", stats->bytes, sending ? "to" : "from", to_string(endpoint));
    if (ms >= 0.05) what += fmt::format(" in {:.1f} ms", ms);  // less: each layer came in one piece
    if (!computed_at) return tool.note("{}", what);
    const double visible_ms = std::max(0.0, to_milliseconds(stats->end - *computed_at));
    const double overlap = ms > 0 ? std::clamp(1 - visible_ms / ms, 0.0, 1.0) : 1;
    transfer["visible_ms"] = number(visible_ms);
    transfer["overlap"] = number(overlap);
    tool.note("{}, confirmed {:.1f} ms after the prefill (overlap {:.3f})", what, visible_ms, overlap);
}

void trace_transfers(const Endpoints& endpoints) {
    if (!trace::on()) return;
    const auto add = [](const transport::Endpoint& endpoint, bool sending) {
        const auto stats = transport::transfer_stats(endpoint, sending);
        if (!stats || stats->layers.empty()) return;
        const std::string track = fmt::format("{} {}", sending ? "send to" : "receive from", to_string(endpoint));
        // Several are on their way at once: each is shown from where the one before it had come to its end.
        auto shown = stats->begin;
        for (std::size_t i = 0; i < stats->layers.size(); ++i) {
            const auto& layer = stats->layers[i];
            const auto begin = std::max(shown, layer.begin);
            shown = std::max(begin, layer.end);
            trace::add(track, fmt::format("layer {}", i), begin, shown);
        }
        trace::add(track, "root, commit", shown, std::max(shown, stats->end));
    };
    for (const transport::Endpoint& input : endpoints.inputs) add(input, false);
    for (const transport::Endpoint& output : endpoints.outputs) add(output, true);
}

}  // namespace hetero::tool
