#include "plan/trace.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_set>

#include "base/config.h"
#include "base/printable.h"
#include "base/toml.h"
#include "base/units.h"
#include "io/json_text.h"

namespace hetero::plan {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_file_bytes = std::size_t{1} << 30, max_line_bytes = std::size_t{16} << 20;
constexpr std::size_t max_requests = 10'000'000, mooncake_block_tokens = 512;
constexpr double max_tokens = 1e8, max_seconds = 1e9, default_output_tokens = 128;

struct Lines {
    std::string_view rest;
    std::size_t number = 0;
    std::optional<std::string_view> next() {
        while (!rest.empty()) {
            const std::size_t end = std::min(rest.find('\n'), rest.size());
            std::string_view line = rest.substr(0, end);
            rest.remove_prefix(std::min(end + 1, rest.size()));
            ++number;
            if (line.ends_with('\r')) line.remove_suffix(1);
            if (!line.empty()) return line;
        }
        return std::nullopt;
    }
};

class TraceReader {
public:
    TraceReader(std::string_view text, const std::string& name) : lines_{text}, name_(name) {}

    Result<Trace> read() {
        const auto first = lines_.next();
        if (!first) return fail(Errc::bad_input, "{}: no requests", name_);
        HETERO_CHECK(first->starts_with('{') ? read_json(*first) : read_csv(*first));
        if (trace_.requests.empty()) return fail(Errc::bad_input, "{}: no requests", name_);
        finish();
        return std::move(trace_);
    }

private:
    template <class... Args>
    [[nodiscard]] tl::unexpected<Error> wrong(fmt::format_string<Args...> format, Args&&... args) const {
        return fail(Errc::bad_input, "{}:{}: {}", name_, lines_.number,
                    fmt::format(format, std::forward<Args>(args)...));
    }

    Status read_json(std::string_view line) {
        for (std::optional<std::string_view> next = line; next; next = lines_.next()) {
            if (next->size() > max_line_bytes) return wrong("a line of {} bytes", next->size());
            const auto document = io::parse_json(*next, name_);
            if (!document && document.error().code == Errc::resource) return tl::unexpected(document.error());
            if (!document || !document->is_object()) return wrong("no JSON object");
            const bool batch = document->contains("body") || document->contains("custom_id");
            const TraceFormat format = batch ? TraceFormat::openai_batch : TraceFormat::mooncake;
            if (trace_.requests.empty()) trace_.format = format;
            if (format != trace_.format) return wrong("a line of another format than the first one");
            HETERO_CHECK(batch ? add_batch(*document) : add_mooncake(*document));
        }
        return {};
    }

    Result<double> number(const Json& document, const char* key, double max) const {
        const auto found = document.find(key);
        if (found == document.end()) return wrong("'{}' is missing", key);
        if (!found->is_number()) return wrong("'{}' must be a number", key);
        const double value = found->get<double>();
        if (!(value >= 0 && value <= max)) return wrong("'{}' is {}, expected 0 to {}", key, value, max);
        return value;
    }

    Status only(const Json& document, std::initializer_list<std::string_view> known) const {
        for (const auto& [key, value] : document.items()) {
            if (std::find(known.begin(), known.end(), key) != known.end()) continue;
            return wrong("'{}' is no key of such a trace; the nearest one is '{}'", printable(key),
                         nearest_name(key, std::span(known.begin(), known.size())));
        }
        return {};
    }

    Status add(double arrival_s, double prompt, double cached, double output) {
        if (trace_.requests.size() >= max_requests) return wrong("over {} requests", max_requests);
        sched::Request request;
        request.arrival_s = arrival_s;
        request.prompt_tokens = static_cast<std::uint32_t>(std::max(1.0, prompt));
        request.output_tokens = static_cast<std::uint32_t>(std::max(1.0, output));
        request.cached_tokens = static_cast<std::uint32_t>(std::min(cached, request.prompt_tokens - 1.0));
        trace_.requests.push_back(request);
        return {};
    }

    Status add_mooncake(const Json& document) {
        HETERO_CHECK(only(document, {"timestamp", "input_length", "output_length", "hash_ids"}));
        HETERO_TRY(const double arrival_ms, number(document, "timestamp", max_seconds * 1e3));
        HETERO_TRY(const double prompt, number(document, "input_length", max_tokens));
        HETERO_TRY(const double output, number(document, "output_length", max_tokens));
        double cached = 0;
        if (const auto ids = document.find("hash_ids"); ids != document.end()) {
            if (!ids->is_array()) return wrong("'hash_ids' must be a list");
            bool leading = true;
            for (const Json& id : *ids) {
                if (!id.is_number_integer()) return wrong("'hash_ids' must hold whole numbers");
                const bool known = !seen_.insert(id.get<std::int64_t>()).second;
                leading = leading && known;
                if (!leading) continue;
                cached += mooncake_block_tokens;
                if (used_again_.insert(id.get<std::int64_t>()).second) trace_.retained_tokens += mooncake_block_tokens;
            }
        }
        return add(arrival_ms / 1e3, prompt, std::min(cached, prompt), output);
    }

    Status add_batch(const Json& document) {
        HETERO_CHECK(only(document, {"custom_id", "method", "url", "body"}));
        const auto body = document.find("body");
        if (body == document.end() || !body->is_object()) return wrong("'body' must be an object");
        std::size_t bytes = 0;
        bool found = false;
        if (const auto prompt = body->find("prompt"); prompt != body->end() && prompt->is_string()) {
            bytes = prompt->get_ref<const std::string&>().size();
            found = true;
        }
        if (const auto messages = body->find("messages"); messages != body->end() && messages->is_array()) {
            for (const Json& message : *messages) {
                if (!message.is_object()) return wrong("'messages' must hold objects");
                const auto content = message.find("content");
                if (content != message.end() && content->is_string())
                    bytes += content->get_ref<const std::string&>().size();
            }
            found = true;
        }
        if (!found) return wrong("the body has neither a prompt nor messages");
        double output = default_output_tokens;
        for (const char* key : {"max_tokens", "max_completion_tokens"}) {
            if (body->contains(key)) {
                HETERO_TRY(output, number(*body, key, max_tokens));
            }
        }
        return add(0, std::ceil(static_cast<double>(bytes) / 4), 0, output);
    }

    static std::vector<std::string_view> cells(std::string_view line) {
        std::vector<std::string_view> out;
        for (;;) {
            const std::size_t comma = line.find(',');
            out.push_back(line.substr(0, comma));
            if (comma == std::string_view::npos) return out;
            line.remove_prefix(comma + 1);
        }
    }

    Status read_csv(std::string_view header) {
        trace_.format = TraceFormat::splitwise;
        static constexpr std::string_view known[] = {
            "TIMESTAMP",  "ContextTokens", "GeneratedTokens", "arrival_timestamp", "prompt_size",
            "token_size", "request_id",    "request_type",    "application_id",    "batch_size"};
        int arrival = -1, prompt = -1, output = -1;
        const auto columns = cells(header);
        for (std::size_t c = 0; c < columns.size(); ++c) {
            const std::string_view column = columns[c];
            if (std::find(std::begin(known), std::end(known), column) == std::end(known))
                return wrong("'{}' is no column of such a trace; the nearest one is '{}'", printable(column, 64),
                             nearest_name(column.substr(0, 64), known));
            if (column == known[0] || column == known[3]) arrival = static_cast<int>(c);
            if (column == known[1] || column == known[4]) prompt = static_cast<int>(c);
            if (column == known[2] || column == known[5]) output = static_cast<int>(c);
        }
        if (arrival < 0 || prompt < 0 || output < 0)
            return wrong("the columns for time, prompt and output tokens are not all there");
        while (const auto line = lines_.next()) {
            const auto values = cells(*line);
            if (values.size() != columns.size()) return wrong("{} values, expected {}", values.size(), columns.size());
            const auto cell = [&](int column) { return values[static_cast<std::size_t>(column)]; };
            HETERO_TRY(const double arrival_s, time(cell(arrival)));
            HETERO_TRY(const double prompt_tokens, tokens(cell(prompt)));
            HETERO_TRY(const double output_tokens, tokens(cell(output)));
            HETERO_CHECK(add(arrival_s, prompt_tokens, 0, output_tokens));
        }
        return {};
    }

    Result<double> tokens(std::string_view text) const {
        const auto value = parse_finite(text);
        if (!value || !(*value >= 0 && *value <= max_tokens))
            return wrong("'{}' is no number of tokens from 0 to {}", printable(text, 32), max_tokens);
        return *value;
    }

    // Seconds, or "2023-11-16 18:17:03.979"; times of day are counted from the first day of the calendar's year 0.
    Result<double> time(std::string_view text) const {
        if (const auto seconds = parse_finite(text); seconds && *seconds >= 0 && *seconds <= max_seconds)
            return *seconds;
        int year = 0, month = 0, day = 0, hour = 0, minute = 0;
        const auto part = [&](std::size_t at, std::size_t n, int low, int high, int& out) {
            if (text.size() < at + n) return false;
            out = 0;
            for (const char c : text.substr(at, n)) {
                if (c < '0' || c > '9') return false;
                out = out * 10 + (c - '0');
            }
            return out >= low && out <= high;
        };
        const bool date = part(0, 4, 1970, 9999, year) && part(5, 2, 1, 12, month) && part(8, 2, 1, 31, day) &&
                          part(11, 2, 0, 23, hour) && part(14, 2, 0, 59, minute);
        const auto seconds =
            date ? parse_finite(text.substr(std::min<std::size_t>(17, text.size()))) : Result<double>(-1.0);
        if (!date || !seconds || !(*seconds >= 0 && *seconds < 61))
            return wrong("'{}' is no time", printable(text, 32));
        // Days since 1970 (Howard Hinnant, chrono-compatible low-level date algorithms).
        const int y = month <= 2 ? year - 1 : year;
        const int era = y / 400, of_era = y - era * 400;
        const int of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
        const double days = era * 146097.0 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
        return days * 86400 + hour * 3600 + minute * 60 + *seconds;
    }

    void finish() {
        auto& requests = trace_.requests;
        std::stable_sort(requests.begin(), requests.end(),
                         [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
        const double first_s = requests.front().arrival_s;
        double prompt = 0, cached = 0, output = 0;
        for (sched::Request& request : requests) {
            request.arrival_s -= first_s;
            prompt += request.prompt_tokens;
            cached += request.cached_tokens;
            output += request.output_tokens;
        }
        const auto n = static_cast<double>(requests.size());
        trace_.cached_fraction = cached / prompt;
        trace_.mean_prompt_tokens = prompt / n;
        trace_.mean_output_tokens = output / n;
        trace_.duration_s = requests.back().arrival_s;
    }

    Lines lines_;
    const std::string& name_;
    std::unordered_set<std::int64_t> seen_, used_again_;
    Trace trace_;
};

}  // namespace

Result<Trace> parse_trace(std::string_view text, const std::string& name) {
    try {
        return TraceReader(text, name).read();
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory to read it", name);
    }
}

Result<Trace> read_trace(const std::string& path) {
    HETERO_TRY(const std::string text, read_text_file(path, max_file_bytes, "trace"));
    return parse_trace(text, path);
}

}  // namespace hetero::plan
