#include "hw/fleet.h"

#include <unistd.h>

#include <algorithm>

#include "hw/section.h"

namespace hetero::hw {
namespace {

Json to_json(const Link& link) {
    Json out;
    out["from"] = link.from;
    out["to"] = link.to;
    if (link.from_rank) out["from_rank"] = *link.from_rank;
    if (link.to_rank) out["to_rank"] = *link.to_rank;
    if (!link.via.empty()) out["via"] = link.via;
    const char* reason = "not measured";
    put(out, "latency_us", link.latency_us, reason);
    put(out, "gb_per_s", link.gb_per_s, reason);
    put(out, "both_ways_gb_per_s", link.both_ways_gb_per_s, reason);
    Json sizes = Json::array(), rates = Json::array();
    for (const auto& [bytes, rate] : link.sizes) {
        sizes.push_back(bytes);
        rates.push_back(rate);
    }
    out["message_bytes"] = sizes;
    out["message_gb_per_s"] = rates;
    out["asymmetric"] = link.asymmetric;
    return out;
}

std::string summary(const Json& machines, const std::vector<Link>& links) {
    std::string out;
    for (const Json& machine : machines) {
        const Json& cpu = machine.at("cpu");
        out += fmt::format("Machine     {}, ranks {}: {}\n", machine.at("name").get<std::string>(),
                           machine.at("ranks").dump(), cpu.contains("model") ? cpu.at("model").dump() : "unknown");
    }
    const auto figure = [](const std::optional<double>& value) {
        return value ? fmt::format("{}", *value) : std::string("unknown");
    };
    out += "Links       from  to  latency  bandwidth  both ways\n";
    for (const Link& link : links) {
        out += fmt::format("            {:>4} {:>3}  {:>4} us  {:>4} GB/s  {:>4} GB/s{}\n", *link.from_rank,
                           *link.to_rank, figure(link.latency_us), figure(link.gb_per_s),
                           figure(link.both_ways_gb_per_s), link.asymmetric ? "  asymmetric" : "");
    }
    return out;
}

}  // namespace

std::string this_machine() {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return fmt::format("{} {}", name, read_text("/proc/sys/kernel/random/boot_id").value_or(""));
}

Result<ProfileTexts> fleet_profile(std::span<const RankProfile> ranks, std::vector<Link> links,
                                   const std::string& links_method) try {
    std::vector<std::string> keys, names, name_of_rank;
    Json machines = Json::array();
    bool quick = false;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const std::string& key = ranks[rank].machine;
        auto known = static_cast<std::size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
        if (known == keys.size()) {
            std::string name = key.substr(0, key.find(' '));
            if (name.empty()) name = "machine";
            if (std::find(names.begin(), names.end(), name) != names.end())
                name = fmt::format("{}-{}", name, keys.size());
            keys.push_back(key);
            names.push_back(name);
            machines.push_back(Json{{"name", name}, {"ranks", Json::array()}});
        }
        machines[known]["ranks"].push_back(rank);
        name_of_rank.push_back(names[known]);
        if (machines[known].contains("cpu") || ranks[rank].json.empty()) continue;
        const Json profile = Json::parse(ranks[rank].json, nullptr, false);
        if (!profile.is_object()) return fail(Errc::bad_input, "rank {}: its profile is no JSON object", rank);
        if (profile.contains("source")) quick = quick || profile.at("source").value("quick", false);
        for (const auto& [section, content] : profile.items())
            if (section != "profile_schema" && section != "source") machines[known][section] = content;
    }
    for (const Json& machine : machines)
        if (!machine.contains("cpu"))
            return fail(Errc::bad_input, "{}: no rank has made its profile", machine.at("name").get<std::string>());
    Json document;
    document["profile_schema"] = profile_schema;
    document["source"] = {{"kind", to_string(Origin::measured)}, {"note", "hw-probe"}, {"quick", quick}};
    document["machines"] = machines;
    document["links_method"] = links_method;
    document["links"] = Json::array();
    for (Link& link : links) {
        for (const auto& rank : {link.from_rank, link.to_rank})
            if (!rank || *rank < 0 || static_cast<std::size_t>(*rank) >= ranks.size())
                return fail(Errc::bad_input, "a link of rank {}, of {}", rank.value_or(-1), ranks.size());
        link.from = name_of_rank[static_cast<std::size_t>(*link.from_rank)];
        link.to = name_of_rank[static_cast<std::size_t>(*link.to_rank)];
        document["links"].push_back(to_json(link));
    }
    ProfileTexts texts;
    texts.json = document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    document = Json::parse(texts.json);
    texts.toml = to_toml(document);
    texts.summary = summary(machines, links);
    return texts;
} catch (const std::exception& error) {
    return fail(Errc::resource, "the profile could not be made: {}", error.what());
}

}  // namespace hetero::hw
