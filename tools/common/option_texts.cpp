// What is written from the table of options: help, completion, the dump of settings.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/options.h"

namespace hetero::tool {
namespace {

constexpr std::size_t kHelpColumn = 30, kHelpWidth = 80;

std::string usage_line(std::string_view tool, const OptionTable& table) {
    std::string line = fmt::format("Usage: {} [OPTION]...", tool);
    for (const Option& option : table.options()) {
        if (option.positional) line += fmt::format(fmt::runtime(option.required ? " {}" : " [{}]"), option.name());
    }
    return line;
}

std::string left_column(const Option& option) {
    if (option.positional) return fmt::format("  {}", option.name());
    std::string flags = option.flags;
    for (std::size_t at = 0; (at = flags.find(',', at)) != std::string::npos; at += 2) flags.replace(at, 1, ", ");
    std::string column = fmt::format("  {}{}{}{}", flags.starts_with("--") ? "    " : "", flags,
                                     option.argument.empty() ? "" : " ", option.argument);
    for (std::size_t line = 0; column.size() - line > kHelpWidth;) {  // goes on in the next line
        const std::size_t bar = column.rfind('|', line + kHelpWidth - 1);
        if (bar == std::string::npos || bar < line) break;
        line = bar + 2;
        column.insert(bar + 1, '\n' + std::string(kHelpColumn, ' '));
    }
    return column;
}

// The words of a text in lines that end before kHelpWidth; all but the first begin with `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent) {
    std::string lines;
    std::size_t column = indent;
    while (!text.empty()) {
        const std::size_t length = std::min(text.find(' '), text.size());
        const bool first_word = column == indent;
        if (!first_word && column + 1 + length > kHelpWidth) {
            lines += '\n' + std::string(indent, ' ');
            column = indent;
        } else if (!first_word) {
            lines += ' ';
            ++column;
        }
        lines += text.substr(0, length);
        column += length;
        text.remove_prefix(std::min(length + 1, text.size()));
    }
    return lines;
}

std::string completion_words(const Option& option) {
    std::string words = option.flags;
    for (char& c : words) {
        if (c == ',') c = ' ';
    }
    return words;
}

std::string completion_case(const Option& option) {
    std::string pattern = option.flags;
    for (std::size_t at = 0; (at = pattern.find(',', at)) != std::string::npos; ++at) pattern[at] = '|';
    switch (option.completion) {
        case Completion::file:
            return fmt::format("        {}) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n", pattern);
        case Completion::directory:
            return fmt::format("        {}) COMPREPLY=($(compgen -d -- \"$current\")); return ;;\n", pattern);
        case Completion::choices:
            return fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n", pattern,
                               fmt::join(option.choices, " "));
        case Completion::none:
            return fmt::format("        {}) return ;;\n", pattern);
    }
    return {};
}

}  // namespace

std::string help_text(std::string_view tool, std::string_view summary, const OptionTable& table) {
    std::string text = fmt::format("{}\n{}\n", usage_line(tool, table), wrapped(summary, 0));
    std::string group;
    for (const Option& option : table.options()) {
        if (option.group != group) {
            group = option.group;
            text += fmt::format("\n{}:\n", group);
        }
        const std::string left = left_column(option);
        text += left;
        if (left.size() + 2 > kHelpColumn) {
            text += fmt::format("\n{:{}}", "", kHelpColumn);
        } else {
            text.append(kHelpColumn - left.size(), ' ');
        }
        const bool has_default = !option.argument.empty() && !option.default_text.empty();
        text +=
            wrapped(has_default ? fmt::format("{} [{}]", option.help, option.default_text) : option.help, kHelpColumn) +
            '\n';
    }
    text += fmt::format("\nThe manual: man {}\n", tool);
    return text;
}

std::string help_json(std::string_view tool, std::string_view summary, const OptionTable& table) {
    nlohmann::ordered_json document = {{"tool", tool}, {"schema", 1}, {"summary", summary}};
    for (const Option& option : table.options()) {
        nlohmann::ordered_json entry = {{"name", option.name()},
                                        {"flags", option.positional ? "" : option.flags},
                                        {"argument", option.argument},
                                        {"positional", option.positional},
                                        {"setting", option.setting},
                                        {"repeatable", option.repeatable},
                                        {"default", option.default_text},
                                        {"group", option.group},
                                        {"help", option.help}};
        if (!option.choices.empty()) entry["choices"] = option.choices;
        document["options"].push_back(std::move(entry));
    }
    return document.dump(2) + "\n";
}

std::string bash_completion(std::string_view tool, const OptionTable& table) {
    std::string function = fmt::format("_{}", tool);
    for (char& c : function) {
        if (c == '-') c = '_';
    }
    std::string words, cases;
    for (const Option& option : table.options()) {
        if (option.positional) continue;
        words += fmt::format("{}{}", words.empty() ? "" : " ", completion_words(option));
        if (!option.argument.empty()) cases += completion_case(option);
    }
    return fmt::format(
        "# bash completion for {0}, written by `{0} --completion bash`\n"
        "{1}() {{\n"
        "    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}\n"
        "    case $previous in\n{2}    esac\n"
        "    if [[ $current == -* ]]; then\n"
        "        COMPREPLY=($(compgen -W '{3}' -- \"$current\"))\n"
        "    else\n"
        "        COMPREPLY=($(compgen -f -- \"$current\"))\n"
        "    fi\n"
        "}}\n"
        "complete -o filenames -F {1} {0}\n",
        tool, function, cases, words);
}

}  // namespace hetero::tool
