#include "common/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/redact.h"
#include "base/units.h"

namespace hetero::tool {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (true) {
        const std::size_t end = text.find(separator);
        parts.push_back(text.substr(0, end));
        if (end == std::string_view::npos) return parts;
        text.remove_prefix(end + 1);
    }
}

// As the user should see it: the longest way to write the option.
std::string shown_flag(const Option& option) { return option.positional ? option.name() : "--" + option.name(); }

Status parse_bool(std::string_view text, bool* value) {
    if (text == "true" || text == "1" || text == "yes" || text == "on") {
        *value = true;
    } else if (text == "false" || text == "0" || text == "no" || text == "off") {
        *value = false;
    } else {
        return fail(Errc::usage, "'{}' is not true or false", text);
    }
    return {};
}

}  // namespace

std::string Option::name() const {
    if (positional) return flags;
    for (const std::string_view one : split(flags, ',')) {
        if (one.starts_with("--")) return std::string(one.substr(2));
    }
    return flags.substr(1);
}

Option& OptionTable::add(Option option) {
    option.group = group_;
    option.default_text = option.show();
    options_.push_back(std::move(option));
    return options_.back();
}

Option& OptionTable::flag(std::string flags, bool* value, std::string help) {
    Option option;
    option.flags = std::move(flags);
    option.help = std::move(help);
    option.assign = [value](std::string_view text) { return parse_bool(text, value); };
    option.show = [value] { return *value ? "true" : "false"; };
    return add(std::move(option));
}

Option& OptionTable::custom(std::string flags, std::string argument, std::function<Status(std::string_view)> assign,
                            std::function<std::string()> show, std::string help) {
    Option option;
    option.flags = std::move(flags);
    option.argument = std::move(argument);
    option.help = std::move(help);
    option.assign = std::move(assign);
    option.show = std::move(show);
    return add(std::move(option));
}

Option& OptionTable::text(std::string flags, std::string argument, std::string* value, std::string help) {
    return custom(
        std::move(flags), std::move(argument),
        [value](std::string_view text) -> Status {
            *value = text;
            return {};
        },
        [value] { return *value; }, std::move(help));
}

Option& OptionTable::text(std::string flags, std::string argument, std::optional<std::string>* value,
                          std::string help) {
    return custom(
        std::move(flags), std::move(argument),
        [value](std::string_view text) -> Status {
            *value = std::string(text);
            return {};
        },
        [value] { return value->value_or(""); }, std::move(help));
}

Option& OptionTable::texts(std::string flags, std::string argument, std::vector<std::string>* values,
                           std::string help) {
    Option& option = custom(
        std::move(flags), std::move(argument),
        [values](std::string_view text) -> Status {
            values->emplace_back(text);
            return {};
        },
        [values] { return fmt::format("{}", fmt::join(*values, ",")); }, std::move(help));
    option.repeatable = true;
    return option;
}

Option& OptionTable::choice(std::string flags, std::string* value, std::vector<std::string> choices, std::string help) {
    auto assign = [value, choices](std::string_view text) -> Status {
        if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
            return fail(Errc::usage, "'{}' is not one of {}", text, fmt::join(choices, ", "));
        }
        *value = text;
        return {};
    };
    Option& option = custom(
        std::move(flags), fmt::format("{}", fmt::join(choices, "|")), std::move(assign), [value] { return *value; },
        std::move(help));
    option.choices = std::move(choices);
    option.completion = Completion::choices;
    return option;
}

Option& OptionTable::integer(std::string flags, std::string argument, std::uint64_t* value, std::uint64_t min,
                             std::uint64_t max, std::string help) {
    auto assign = [value, min, max](std::string_view text) -> Status {
        HETERO_TRY(const std::int64_t number, parse_integer(text));
        if (number < 0 || static_cast<std::uint64_t>(number) < min || static_cast<std::uint64_t>(number) > max) {
            return fail(Errc::usage, "{} is not within {}..{}", number, min, max);
        }
        *value = static_cast<std::uint64_t>(number);
        return {};
    };
    return custom(
        std::move(flags), std::move(argument), std::move(assign), [value] { return fmt::format("{}", *value); },
        std::move(help));
}

Option& OptionTable::real(std::string flags, std::string argument, double* value, double min, double max,
                          std::string help) {
    auto assign = [value, min, max](std::string_view text) -> Status {
        HETERO_TRY(const double number, parse_finite(text));
        if (!(number >= min && number <= max)) return fail(Errc::usage, "{} is not within {}..{}", number, min, max);
        *value = number;
        return {};
    };
    return custom(
        std::move(flags), std::move(argument), std::move(assign), [value] { return fmt::format("{}", *value); },
        std::move(help));
}

Option& OptionTable::positive(std::string flags, std::string argument, std::optional<double>* value, std::string help,
                              bool of_time, double min, double max) {
    auto assign = [value, of_time, min, max](std::string_view text) -> Status {
        HETERO_TRY(const double number, of_time ? parse_duration_s(text) : parse_finite(text));
        if (!(number > 0)) return fail(Errc::usage, "{} is not above 0", text);
        if (number < min || number > max) return fail(Errc::usage, "{} is not within {}..{}", text, min, max);
        *value = number;
        return {};
    };
    return custom(
        std::move(flags), std::move(argument), std::move(assign),
        [value, of_time] { return *value ? fmt::format("{}{}", **value, of_time ? "s" : "") : std::string(); },
        std::move(help));
}

Option& OptionTable::size(std::string flags, std::string argument, std::uint64_t* bytes, std::string help) {
    auto assign = [bytes](std::string_view text) -> Status {
        HETERO_TRY(*bytes, parse_size_bytes(text));
        return {};
    };
    return custom(
        std::move(flags), std::move(argument), std::move(assign), [bytes] { return fmt::format("{}", *bytes); },
        std::move(help));
}

Option& OptionTable::duration(std::string flags, std::string argument, double* seconds, std::string help) {
    auto assign = [seconds](std::string_view text) -> Status {
        HETERO_TRY(*seconds, parse_duration_s(text));
        return {};
    };
    return custom(
        std::move(flags), std::move(argument), std::move(assign), [seconds] { return fmt::format("{}s", *seconds); },
        std::move(help));
}

Option& OptionTable::positional(std::string name, std::string* value, bool required, std::string help) {
    Option& option = text(std::move(name), "", value, std::move(help));
    option.positional = true;
    option.required = required;
    option.completion = Completion::file;
    return option;
}

const Option* OptionTable::find(std::string_view name) const noexcept {
    for (const Option& option : options_) {
        if (option.name() == name) return &option;
    }
    return nullptr;
}

Origin OptionTable::origin(std::string_view name) const {
    const Option* option = find(name);
    return option != nullptr ? option->origin : Origin::fallback;
}

Status OptionTable::assign(Option& option, std::string_view value, Origin origin, std::string_view where) {
    const bool names_something =
        option.positional || option.completion == Completion::file || option.completion == Completion::directory;
    if (value.empty() && names_something) return fail(Errc::usage, "{} is empty (a variable that is not set?)", where);
    if (auto status = option.assign(value); !status) {
        return tl::unexpected(Error{Errc::usage, fmt::format("{}: {}", where, status.error().message)});
    }
    option.origin = origin;
    return {};
}

Status OptionTable::parse(int argc, char** argv) {
    CLI::App app;
    app.set_help_flag();  // help comes from the table
    app.allow_extras();
    std::vector<CLI::Option*> parsed;
    for (const Option& option : options_) {
        if (option.argument.empty() && !option.positional) {
            parsed.push_back(app.add_flag(option.flags)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
        } else {
            // One value for each time the option is given; without this a value "[...]" would be split.
            parsed.push_back(app.add_option(option.flags)
                                 ->allow_extra_args(false)
                                 ->expected(1)
                                 ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
        }
    }
    std::string problem;
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        problem = error.what();
    }
    for (std::size_t i = 0; i < options_.size(); ++i) {
        Option& option = options_[i];
        if (parsed[i]->count() == 0) continue;
        const bool is_flag = option.argument.empty() && !option.positional;  // "true", or what follows "="
        if (parsed[i]->results().size() > 1 && !option.repeatable && !is_flag) {
            if (problem.empty()) problem = fmt::format("{} is given more than once", shown_flag(option));
            continue;
        }
        for (const std::string& value : parsed[i]->results()) {
            auto status = assign(option, value, Origin::flag, shown_flag(option));
            if (!status && problem.empty()) {
                problem = status.error().message;
            }
        }
    }
    if (!problem.empty()) return fail(Errc::usage, "{}", problem);
    extras_ = app.remaining();
    std::erase(extras_, "--");  // CLI11 follows it, and keeps it
    return {};
}

Status OptionTable::check_extras() const {
    if (extras_.empty()) return {};
    const std::string& extra = extras_.front();
    if (redacts()) return fail(Errc::usage, "an argument of {} bytes that no option takes", extra.size());
    if (!extra.starts_with("-") || extra.size() == 1) return fail(Errc::usage, "unexpected argument '{}'", extra);
    std::vector<std::string_view> flags;
    for (const Option& option : options_) {
        if (option.positional) continue;
        for (const std::string_view one : split(option.flags, ',')) flags.push_back(one);
    }
    const std::string word = extra.substr(0, extra.find('='));
    const std::string_view meant = meant_name(word, flags);
    return fail(Errc::usage, "unknown option {}; {}", word,
                meant.empty() ? std::string("--help lists those there are") : fmt::format("the nearest is {}", meant));
}

Status OptionTable::apply_settings(const std::string& path, std::string_view tool) {
    static constexpr std::string_view tools[] = {"hetero-prefill", "hetero-decode", "hetero-convert",
                                                 "kv-quantize",    "kv-send",       "kv-verify",
                                                 "kv-calibrate",   "hw-probe",      "hetero-plan"};
    std::vector<std::string> names;
    for (const Option& option : options_) {
        if (option.setting) names.push_back(option.name());
    }
    const std::vector<std::string_view> keys(names.begin(), names.end());
    HETERO_TRY(config_, Config::load({tool, keys, tools}, path));
    for (Option& option : options_) {
        if (!option.setting) continue;
        if (option.origin == Origin::flag) {
            config_->set_flag(option.name(), {option.show()});
            continue;
        }
        // An option without a default is not in the dump, so that the dump can be read again.
        if (!option.default_text.empty()) config_->set_default(option.name(), {option.default_text});
        const Setting* setting = config_->find(option.name());
        if (setting == nullptr || setting->origin == Origin::fallback) continue;
        if (setting->values.size() > 1 && !option.repeatable) {
            return fail(Errc::usage, "{}: {} takes one value", setting->where, setting->key);
        }
        const std::string where =
            setting->origin == Origin::file ? fmt::format("{}: {}", setting->where, setting->key) : setting->where;
        for (const std::string& value : setting->values) HETERO_CHECK(assign(option, value, setting->origin, where));
    }
    return {};
}

std::string OptionTable::dump_settings() { return config_ ? config_->dump() : ""; }

Status OptionTable::check_required() const {
    for (const Option& option : options_) {
        if (option.positional && option.required && option.origin == Origin::fallback) {
            return fail(Errc::usage, "{} is missing; see --help", option.name());
        }
    }
    return {};
}

}  // namespace hetero::tool
