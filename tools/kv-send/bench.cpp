#include "bench.h"

#include "base/units.h"
#include "transport/link_bench.h"

namespace hetero::tool {
namespace {

Json json_of(const transport::Sample& sample, const char* unit) {
    return {{std::string("p50_") + unit, number(sample.quantile(0.5))},
            {std::string("p99_") + unit, number(sample.quantile(0.99))}};
}

Json json_of(const transport::Sample& rates) {
    return {{"gb_per_s_p50", number(rates.quantile(0.5))},
            {"gb_per_s_best", number(rates.quantile(1))},
            {"spread", number(rates.spread())}};
}

Json json_of(const transport::PairedRatio& ratio, bool settled) {
    return settled ? number(ratio.median) : Json(nullptr);
}
Json range_of(const transport::PairedRatio& ratio) { return {number(ratio.low), number(ratio.high)}; }

Json json_of(const transport::LinkBenchRow& row) {
    const transport::PairedRatio checked = row.checked_ratio(), unchecked = row.unchecked_ratio();
    const bool settled = row.settled();
    return {{"message_bytes", row.message_bytes},
            {"bytes", row.bytes},
            {"rounds", row.raw.values.size()},
            {"raw", json_of(row.raw)},
            {"checked", json_of(row.checked)},
            {"unchecked", json_of(row.unchecked)},
            {"settled", settled},
            {"ratio_checked", json_of(checked, settled)},
            {"ratio_checked_range", range_of(checked)},
            {"ratio_unchecked", json_of(unchecked, settled)},
            {"ratio_unchecked_range", range_of(unchecked)}};
}

std::string text_of(const transport::PairedRatio& ratio, bool settled) {
    const auto range = fmt::format("({:.1f} to {:.1f})", 100 * ratio.low, 100 * ratio.high);
    return settled ? fmt::format("{:.1f}% {}", 100 * ratio.median, range) : "unsettled " + range;
}

std::string sweep_text(const transport::LinkBench& bench) {
    std::string text = fmt::format("\nchosen for this link: chunks of {}, a window of {}\n",
                                   format_bytes(transport::usual_message_bytes), format_bytes(bench.window_bytes));
    if (bench.chosen() == nullptr) return text;
    text += fmt::format("\n{:>10} {:>10} {:>8} {:>8}\n", "chunk", "window", "checked", "no CRC");
    for (const transport::LinkBenchCell& cell : bench.sweep)
        text += fmt::format("{:>10} {:>10} {:>8.3f} {:>8.3f}{}\n", format_bytes(cell.message_bytes),
                            format_bytes(cell.window_bytes), cell.checked.quantile(0.5), cell.unchecked.quantile(0.5),
                            &cell == bench.chosen() ? " chosen" : "");
    return text + fmt::format("chosen by the best: {} checked, {} no CRC\n",
                              text_of(bench.checked_of_best, bench.checked_of_best.settled()),
                              text_of(bench.unchecked_of_best, bench.unchecked_of_best.settled()));
}

std::string table(const transport::LinkBench& bench) {
    std::string text = fmt::format("64 B one way, us   p50 {:.2f} raw, {:.2f} ours; p99 {:.2f} raw, {:.2f} ours\n\n",
                                   bench.raw_us.quantile(0.5), bench.frames_us.quantile(0.5),
                                   bench.raw_us.quantile(0.99), bench.frames_us.quantile(0.99));
    constexpr const char* line = "{:>10} {:>10} {:>8} {:>8} {:>8} {:>23} {:>23}\n";
    text += fmt::format(fmt::runtime(line), "chunk", "transfer", "raw", "checked", "no CRC", "checked", "no CRC");
    text += fmt::format(fmt::runtime(line), "", "", "GB/s", "GB/s", "GB/s", "of raw", "of raw");
    for (const transport::LinkBenchRow& row : bench.rows) {
        text += fmt::format("{:>10} {:>10} {:>8.3f} {:>8.3f} {:>8.3f}", format_bytes(row.message_bytes),
                            format_bytes(row.bytes), row.raw.quantile(0.5), row.checked.quantile(0.5),
                            row.unchecked.quantile(0.5));
        text += fmt::format(" {:>23} {:>23}", text_of(row.checked_ratio(), row.settled()),
                            text_of(row.unchecked_ratio(), row.settled()));
        text += row.settled() ? "\n" : fmt::format(" raw varies by {:.0f}%\n", 100 * row.raw.spread());
    }
    return text + sweep_text(bench);
}

Json json_of(const transport::LinkBenchCell& cell) {
    return {{"chunk_bytes", cell.message_bytes},
            {"window_bytes", cell.window_bytes},
            {"checked_gb_per_s_p50", number(cell.checked.quantile(0.5))},
            {"unchecked_gb_per_s_p50", number(cell.unchecked.quantile(0.5))}};
}

Json choice_of(const transport::LinkBench& bench) {
    Json sweep = Json::array();
    for (const transport::LinkBenchCell& cell : bench.sweep) sweep.push_back(json_of(cell));
    Json choice = {{"window_bytes", bench.window_bytes},
                   {"chunk_bytes", transport::usual_message_bytes},
                   {"of_best_checked", json_of(bench.checked_of_best, bench.checked_of_best.settled())},
                   {"of_best_unchecked", json_of(bench.unchecked_of_best, bench.unchecked_of_best.settled())}};
    choice["sweep"] = std::move(sweep);
    return choice;
}

}  // namespace

Status bench(Tool& tool, const std::string& peer, const std::vector<std::string>& sizes,
             const TransferOptions& options) {
    HETERO_TRY(const transport::Endpoint endpoint, transport::parse_endpoint(peer));
    transport::LinkBenchOptions plan;
    if (!sizes.empty()) plan.message_bytes.clear();
    for (const std::string& text : sizes) {
        HETERO_TRY(const std::uint64_t bytes, parse_size_bytes(text));
        plan.message_bytes.push_back(bytes);
    }
    HETERO_TRY(const transport::LinkBench result, transport::bench_link(endpoint, plan, options.transport(tool)));
    if (result.rows.empty()) {  // the rank that answers has nothing to say
        tool.silence();
        return {};
    }
    Json& report = tool.report();
    report["bench"] = peer;
    report["latency_one_way_64b"] = {{"raw", json_of(result.raw_us, "us")}, {"ours", json_of(result.frames_us, "us")}};
    Json rows = Json::array();
    for (const transport::LinkBenchRow& row : result.rows) rows.push_back(json_of(row));
    report["bandwidth"] = std::move(rows);
    report["choice"] = choice_of(result);
    const transport::LinkBenchRow* usual = result.nearest(transport::usual_message_bytes);
    report["bytes"] = usual->bytes;
    report["seconds"] = number(static_cast<double>(usual->bytes) / 1e9 / usual->checked.quantile(0.5));
    report["gb_per_s"] = number(usual->checked.quantile(0.5));
    report["raw_gb_per_s"] = number(usual->raw.quantile(0.5));
    report["ratio"] = json_of(usual->checked_ratio(), usual->settled());
    report["latency_us_p50"] = number(result.frames_us.quantile(0.5));
    report["latency_us_p99"] = number(result.frames_us.quantile(0.99));
    return tool.json() ? Status{} : tool.print(table(result));
}

}  // namespace hetero::tool
