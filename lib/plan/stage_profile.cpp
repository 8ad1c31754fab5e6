#include "plan/stage_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/toml_reader.h"
#include "plan/fit.h"

namespace hetero::plan {
namespace {

constexpr std::size_t max_file_bytes = 1U << 20, max_points = 4096;
constexpr double max_tokens = 1e9, max_seconds = 1e6;
constexpr std::uint64_t format_version = 1;

Status read_points(const TomlReader& root, StageProfile& out) {
    if (root.has("prefill")) {
        HETERO_TRY(const auto entries, root.tables("prefill", max_points));
        for (const TomlReader& entry : entries) {
            HETERO_CHECK(entry.only({"tokens", "cached_tokens", "seconds"}));
            StageProfile::Prefill& point = out.prefill.emplace_back();
            HETERO_CHECK(entry.real("tokens", point.tokens, max_tokens));
            if (entry.has("cached_tokens")) HETERO_CHECK(entry.real("cached_tokens", point.cached_tokens, max_tokens));
            HETERO_CHECK(entry.real("seconds", point.seconds, max_seconds));
            if (!(point.seconds > 0)) return entry.wrong_value("seconds", "'seconds' must be above 0");
            if (!(point.tokens > point.cached_tokens))
                return entry.wrong_value("tokens", "'tokens' must be more than 'cached_tokens'");
        }
    }
    if (!root.has("decode")) return {};
    HETERO_TRY(const auto entries, root.tables("decode", max_points));
    for (const TomlReader& entry : entries) {
        HETERO_CHECK(entry.only({"context_tokens", "sequences", "step_seconds"}));
        StageProfile::Decode& point = out.decode.emplace_back();
        HETERO_CHECK(entry.real("context_tokens", point.context_tokens, max_tokens));
        if (entry.has("sequences")) HETERO_CHECK(entry.real("sequences", point.sequences, 1e6));
        HETERO_CHECK(entry.real("step_seconds", point.step_seconds, max_seconds));
        if (!(point.step_seconds > 0)) return entry.wrong_value("step_seconds", "'step_seconds' must be above 0");
        if (!(point.sequences >= 1)) return entry.wrong_value("sequences", "'sequences' must be at least 1");
    }
    return {};
}

}  // namespace

Result<StageProfile> parse_stage_profile(std::string_view text, const std::string& name) {
    HETERO_TRY(const TomlNode document, parse_toml(text, name));
    const TomlReader root(document, name, "a stage profile");
    HETERO_CHECK(root.version("stage_profile", format_version));
    HETERO_CHECK(root.only({"stage_profile", "model", "machine", "chunk_tokens", "prefill", "decode"}));
    StageProfile out;
    if (root.has("model")) HETERO_CHECK(root.text("model", out.model));
    if (root.has("machine")) HETERO_CHECK(root.text("machine", out.machine));
    if (root.has("chunk_tokens")) HETERO_CHECK(root.real("chunk_tokens", out.chunk_tokens, max_tokens));
    HETERO_CHECK(read_points(root, out));
    return out;
}

Result<StageProfile> read_stage_profile(const std::string& path) {
    HETERO_TRY(const std::string text, read_text_file(path, max_file_bytes, "stage profile"));
    return parse_stage_profile(text, path);
}

Result<sched::PrefillTiming> fit_prefill(const StageProfile& profile) {
    if (profile.prefill.size() < 2) return fail(Errc::usage, "a stage profile needs prefill of two lengths");
    auto points = profile.prefill;
    std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
    sched::PrefillTiming chunks;
    chunks.chunk_tokens = profile.chunk_tokens;
    const auto terms = [&](const StageProfile::Prefill& point) {
        return std::vector<double>{chunks.chunks(point.tokens - point.cached_tokens),
                                   point.tokens - point.cached_tokens,
                                   point.tokens * point.tokens - point.cached_tokens * point.cached_tokens};
    };
    sched::PrefillTiming best;
    double least = std::numeric_limits<double>::infinity();
    // Short prompts may all take what reading the weights takes: so many of them.
    for (std::size_t flat = 0; flat == 0 || flat + 3 <= points.size(); ++flat) {
        std::vector<Row> rows;
        double floor_s = 0;
        for (std::size_t i = 0; i < points.size(); ++i) {
            if (i < flat) {
                floor_s += points[i].seconds / static_cast<double>(flat);
            } else {
                rows.push_back({terms(points[i]), points[i].seconds});
            }
        }
        HETERO_TRY(const auto x, fit(rows));
        const sched::PrefillTiming timing{x[0], x[1], x[2], floor_s, profile.chunk_tokens};
        double error = 0;
        for (const auto& point : points) {
            const auto row = terms(point);
            error += std::pow(timing.seconds(row[1], row[2]) / point.seconds - 1, 2);
        }
        // A floor has to explain more than the spread of the measurements.
        if (error < 0.5 * least) {
            least = error;
            best = timing;
        }
    }
    return best;
}

Result<sched::DecodeTiming> fit_decode(const StageProfile& profile, const sched::DecodeTiming& model) {
    if (profile.decode.size() < 2) return fail(Errc::usage, "a stage profile needs decode at two contexts");
    const bool batches = std::any_of(profile.decode.begin(), profile.decode.end(),
                                     [](const auto& point) { return point.sequences > 1; });
    std::vector<Row> rows;
    for (const auto& point : profile.decode)
        rows.push_back({{1, point.context_tokens, batches ? point.sequences : 0}, point.step_seconds});
    HETERO_TRY(const auto x, fit(rows));
    sched::DecodeTiming out;
    out.read_per_context_token_s = x[1];
    out.weights_s = {0.0};
    if (batches) {
        out.overhead_s = x[0];
        out.per_sequence_s = x[2];
        return out;
    }
    // What one step takes is known; more sequences share its reading until their products take as long.
    out.per_sequence_s = std::min(model.per_sequence_s, x[0]);
    out.weights_s = {std::max(0.0, x[0] - out.per_sequence_s)};
    out.compute_per_sequence_s = std::min(model.compute_per_sequence_s, out.weights_s[0]);
    return out;
}

}  // namespace hetero::plan
