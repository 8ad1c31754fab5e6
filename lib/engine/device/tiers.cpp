#include "engine/device/tiers.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace hetero::engine {
namespace {

constexpr std::array names = {"device", "host", "file"};

std::optional<Tier> tier_from(std::string_view name) {
    for (std::size_t i = 0; i < names.size(); ++i)
        if (name == names[i]) return static_cast<Tier>(i);
    return {};
}

bool read_number(std::string_view text, std::uint64_t& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
}

// "3" or "0-7".
bool read_layers(std::string_view text, std::uint64_t& first, std::uint64_t& last) {
    const std::size_t dash = text.find('-');
    if (!read_number(text.substr(0, dash), first)) return false;
    if (dash == std::string_view::npos) return last = first, true;
    return read_number(text.substr(dash + 1), last) && first <= last;
}

}  // namespace

const char* tier_name(Tier tier) { return names[static_cast<std::size_t>(tier)]; }

Result<KvTiers> KvTiers::parse(std::string_view text) {
    KvTiers tiers;
    const auto refuse = [&](std::string_view rule) {
        return fail(Errc::usage,
                    "'{}' says not where K and V stay: device, host or file, or rules as 8-31=host, v=host or "
                    "8-31.v=file with commas between them",
                    rule);
    };
    for (std::string_view rest = text;;) {
        const std::size_t comma = rest.find(',');
        std::string_view rule_text = rest.substr(0, comma);
        const std::string_view whole = rule_text;
        Rule rule;
        if (const std::size_t equals = rule_text.find('='); equals != std::string_view::npos) {
            std::string_view where = rule_text.substr(0, equals);
            rule_text.remove_prefix(equals + 1);
            const bool k = where == "k" || where.ends_with(".k"), v = where == "v" || where.ends_with(".v");
            if (k || v) {
                rule.parts = {k, v};
                where.remove_suffix(where.size() == 1 ? 1 : 2);
                if (where.empty() != (whole[1] == '=')) return refuse(whole);
            } else if (where.empty()) {
                return refuse(whole);
            }
            if (!where.empty() && !read_layers(where, rule.first, rule.last)) return refuse(whole);
        }
        const std::optional<Tier> tier = tier_from(rule_text);
        if (!tier) return refuse(whole);
        rule.tier = *tier;
        tiers.rules_.push_back(rule);
        if (comma == std::string_view::npos) return tiers;
        rest.remove_prefix(comma + 1);
    }
}

Status KvTiers::check(std::size_t n_layers) const {
    for (const Rule& rule : rules_) {
        const std::uint64_t highest = rule.last == ~std::uint64_t{0} ? rule.first : rule.last;
        if (highest >= n_layers)
            return fail(Errc::usage, "there is no layer {} whose K and V could stay elsewhere: the model has {}",
                        highest, n_layers);
    }
    return {};
}

Tier KvTiers::of(std::size_t layer, kv::PartId part) const {
    for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule)
        if (rule->first <= layer && layer <= rule->last && rule->parts[static_cast<std::size_t>(part)])
            return rule->tier;
    return Tier::device;
}

bool KvTiers::all_on_device() const { return !any(Tier::host) && !any(Tier::file); }

bool KvTiers::any(Tier tier) const {
    return std::any_of(rules_.begin(), rules_.end(), [tier](const Rule& rule) { return rule.tier == tier; });
}

}  // namespace hetero::engine
