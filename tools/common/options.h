// The table of a tool's options. It is the only place that describes them: the command line, the environment, the
// configuration file, --help, --dump-config and the shell completion all come from it.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/result.h"

namespace hetero::tool {

enum class Completion { none, file, directory, choices };

struct Option {
    std::string flags;     // "-m,--model"; a positional has a name only: "KV"
    std::string argument;  // "MODEL"; empty: takes none
    std::string help;      // one line
    std::string group;     // heading in --help
    bool positional = false;
    bool required = false;  // of positionals
    bool repeatable = false;
    bool setting = false;  // also from HETERO_<NAME> and the configuration file (base/config.h)
    Completion completion = Completion::none;
    std::vector<std::string> choices;
    std::function<Status(std::string_view)> assign;  // flags get "true" or "false"
    std::function<std::string()> show;               // the value as text
    std::string default_text;                        // what show() gave when the option was added

    Origin origin = Origin::fallback;  // where the value came from

    [[nodiscard]] std::string name() const;  // "model": of the first long flag, or of the positional
};

class OptionTable {
public:
    void heading(std::string group) { group_ = std::move(group); }

    // Each adds one option that writes to *value, which outlives the table and holds the default. The reference is
    // valid until the next option is added.
    Option& flag(std::string flags, bool* value, std::string help);
    Option& text(std::string flags, std::string argument, std::string* value, std::string help);
    Option& text(std::string flags, std::string argument, std::optional<std::string>* value, std::string help);
    Option& texts(std::string flags, std::string argument, std::vector<std::string>* values, std::string help);
    Option& choice(std::string flags, std::string* value, std::vector<std::string> choices, std::string help);
    Option& integer(std::string flags, std::string argument, std::uint64_t* value, std::uint64_t min, std::uint64_t max,
                    std::string help);
    Option& real(std::string flags, std::string argument, double* value, double min, double max, std::string help);
    // Above 0 and within the bounds, or nothing; of time: a duration in seconds.
    Option& positive(std::string flags, std::string argument, std::optional<double>* value, std::string help,
                     bool of_time = false, double min = 0, double max = std::numeric_limits<double>::max());
    Option& size(std::string flags, std::string argument, std::uint64_t* bytes, std::string help);
    Option& duration(std::string flags, std::string argument, double* seconds, std::string help);
    Option& custom(std::string flags, std::string argument, std::function<Status(std::string_view)> assign,
                   std::function<std::string()> show, std::string help);
    Option& positional(std::string name, std::string* value, bool required, std::string help);

    [[nodiscard]] const std::vector<Option>& options() const noexcept { return options_; }
    [[nodiscard]] const Option* find(std::string_view name) const noexcept;
    // Where the value of an option came from; fallback: the default holds. Of settings that exclude each other the one
    // of the later origin (base/config.h) holds, and only the command line is blamed for what does not apply.
    [[nodiscard]] Origin origin(std::string_view name) const;
    [[nodiscard]] bool given(std::string_view name) const { return origin(name) != Origin::fallback; }
    [[nodiscard]] bool on_command_line(std::string_view name) const { return origin(name) == Origin::flag; }

    // Command line only. --help, --version and --completion are honoured even where the rest is wrong, so the caller
    // looks at their values before it looks at the status.
    Status parse(int argc, char** argv);
    // Arguments that no option takes. Apart from parse(), as a setting may say that they must not be quoted.
    [[nodiscard]] Status check_extras() const;
    // Then, for settings that the command line left alone: environment, then the file (empty: none).
    Status apply_settings(const std::string& path, std::string_view tool);
    // Each setting with its origin, as TOML. After apply_settings().
    [[nodiscard]] std::string dump_settings();
    // Required positionals are there. Apart from parse(), as --dump-config does not need them.
    [[nodiscard]] Status check_required() const;

private:
    Option& add(Option option);
    Status assign(Option& option, std::string_view value, Origin origin, std::string_view where);

    std::vector<Option> options_;
    std::vector<std::string> extras_;
    std::optional<Config> config_;
    std::string group_ = "Options";
};

// Texts made from the table.
[[nodiscard]] std::string help_text(std::string_view tool, std::string_view summary, const OptionTable& table);
[[nodiscard]] std::string help_json(std::string_view tool, std::string_view summary, const OptionTable& table);
[[nodiscard]] std::string bash_completion(std::string_view tool, const OptionTable& table);

}  // namespace hetero::tool
