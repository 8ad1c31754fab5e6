// The job of kv-calibrate: what formats do to a model's predictions, and the best precision for each layer.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "calib/search.h"
#include "common/models.h"
#include "common/tool.h"

namespace hetero::tool {

struct CalibrateOptions {
    ModelOptions model;
    std::vector<std::string> texts, held_out;  // files of text, or @FILE of token ids
    std::uint64_t prompt_tokens = 512, steps = 192, search_steps = 64;
    std::vector<std::string> formats;  // entries of a list too: "hk8,compat:q8_0"
    std::string k_options, v_options;  // specs, commas between; empty: the built-in ones
    std::optional<double> epsilon, bits;
    bool strict = false;
    std::uint64_t sinks = 4, window = 0;
    std::string output, csv, svg, resume, slice;
    [[nodiscard]] bool searching() const { return bits || (epsilon && !output.empty()); }
};

Status run_calibrate(Tool& tool, const CalibrateOptions& options);

// A format to measure: a preset, a spec for both, or K/V; then +sN sinks and +wN of window: "int4:channel:g32:asym/
// had:int4:g32:asym+s4".
struct Format {
    std::string name;  // as it was given
    calib::Assignment assignment;
};
Result<Format> parse_format(std::string_view text, const kv::Identity& identity);

// Each text's first tokens, prompt_tokens and steps at most; those of shorter texts leave the steps whole and shorten
// the prompt. The name is the file's, without folder and extension.
Result<std::vector<calib::Text>> read_texts(const CalibrateOptions& options, const std::vector<std::string>& files,
                                            const LoadedModel& loaded);

// A line of the table: a format, or a point of the search.
struct Row {
    std::string name;
    bool searched = false;
    calib::Assignment assignment;
    double bits = 0;
    std::optional<kv::DriftFigures> calibration, held_out;
    std::uint64_t steps_inside = 0;  // of all, those whose E_p is at most epsilon
    [[nodiscard]] double inside() const {
        const std::uint64_t steps = calibration->positions + (held_out ? held_out->positions : 0);
        return static_cast<double>(steps_inside) / static_cast<double>(steps);
    }
};
[[nodiscard]] std::string to_markdown(const std::vector<Row>& rows, double epsilon);
[[nodiscard]] std::string to_csv(const std::vector<Row>& rows, double epsilon);
// KL over bits per value, both ways to choose told apart.
[[nodiscard]] std::string to_svg(const std::vector<Row>& rows, const std::string& title);
[[nodiscard]] Json to_json(const std::vector<Row>& rows);
[[nodiscard]] Json to_json(const kv::DriftFigures& figures);

}  // namespace hetero::tool
