// Which machines of a fleet: those with the best links between them.
#include <algorithm>
#include <limits>

#include "plan/candidates.h"

namespace hetero::plan {
namespace {

constexpr std::size_t most_hosts = 48;  // of a side that are looked at
constexpr std::size_t most_seeds = 64;  // pairs that a choice may grow from

// Rates from each host of a side to each of another; null: not known.
struct Table {
    std::vector<std::string> from, to;
    std::vector<std::vector<const LinkRates*>> rates;
    bool same = false;  // one side: no host is both
};

Table table_of(const Problem& problem, std::size_t p, std::size_t d) {
    const auto hosts = [&](std::size_t s) {
        auto all = problem.sides[s].hosts;
        if (all.size() > most_hosts) all.resize(most_hosts);
        return all;
    };
    Table out{hosts(p), hosts(d), {}, p == d};
    out.rates.assign(out.from.size(), std::vector<const LinkRates*>(out.to.size(), nullptr));
    const auto place = [](const std::vector<std::string>& names, const std::string& name) {
        return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    };
    for (const HostLink& link : problem.host_links) {
        const std::size_t i = place(out.from, link.from), j = place(out.to, link.to);
        if (i == out.from.size() || j == out.to.size()) continue;
        const LinkRates*& best = out.rates[i][j];
        if (best == nullptr || link.rates.bytes_per_s > best->bytes_per_s) best = &link.rates;
    }
    return out;
}

struct Choice {
    std::vector<std::size_t> from, to;
    const LinkRates* slowest = nullptr;
    double bytes_per_s = std::numeric_limits<double>::infinity();
    double latency_s = 0;
};

bool has(const std::vector<std::size_t>& list, std::size_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

// `choice` with one host more for a stage; nullopt: one of its links is not known.
std::optional<Choice> with(const Table& table, Choice choice, std::size_t host, bool prefills) {
    if (has(prefills ? choice.from : choice.to, host) || (table.same && has(prefills ? choice.to : choice.from, host)))
        return std::nullopt;
    for (const std::size_t other : prefills ? choice.to : choice.from) {
        const LinkRates* link = prefills ? table.rates[host][other] : table.rates[other][host];
        if (link == nullptr) return std::nullopt;
        choice.latency_s = std::max(choice.latency_s, link->latency_s);
        if (link->bytes_per_s >= choice.bytes_per_s) continue;
        choice.bytes_per_s = link->bytes_per_s;
        choice.slowest = link;
    }
    (prefills ? choice.from : choice.to).push_back(host);
    return choice;
}

// From a pair of hosts on, each time the host that the slowest link suffers least from.
std::optional<Choice> grown(const Table& table, Choice choice, std::size_t n_p, std::size_t n_d) {
    while (choice.from.size() < n_p || choice.to.size() < n_d) {
        const bool prefills =
            choice.from.size() < n_p && (choice.to.size() >= n_d || choice.from.size() <= choice.to.size());
        std::optional<Choice> best;
        const std::size_t hosts = prefills ? table.from.size() : table.to.size();
        for (std::size_t host = 0; host < hosts; ++host) {
            auto next = with(table, choice, host, prefills);
            if (next && (!best || next->bytes_per_s > best->bytes_per_s)) best = std::move(next);
        }
        if (!best) return std::nullopt;
        choice = std::move(*best);
    }
    return choice;
}

std::optional<Pairing> best_of(const Table& table, std::size_t n_p, std::size_t n_d) {
    std::vector<Choice> seeds;
    for (std::size_t i = 0; i < table.from.size(); ++i) {
        for (std::size_t j = 0; j < table.to.size(); ++j) {
            const LinkRates* link = table.rates[i][j];
            if (link != nullptr && !(table.same && i == j))
                seeds.push_back({{i}, {j}, link, link->bytes_per_s, link->latency_s});
        }
    }
    std::stable_sort(seeds.begin(), seeds.end(),
                     [](const Choice& a, const Choice& b) { return a.bytes_per_s > b.bytes_per_s; });
    if (seeds.size() > most_seeds) seeds.resize(most_seeds);
    std::optional<Choice> best;
    for (const Choice& seed : seeds) {
        if (best && seed.bytes_per_s <= best->bytes_per_s) break;  // it only gets slower
        auto choice = grown(table, seed, n_p, n_d);
        if (choice && (!best || choice->bytes_per_s > best->bytes_per_s)) best = std::move(choice);
    }
    if (!best) return std::nullopt;
    Pairing out;
    for (const std::size_t i : best->from) out.from.push_back(table.from[i]);
    for (const std::size_t j : best->to) out.to.push_back(table.to[j]);
    out.rates = *best->slowest;
    out.rates.latency_s = best->latency_s;
    return out;
}

}  // namespace

std::optional<Pairing> choose_hosts(const Problem& problem, std::size_t p, std::size_t d, std::uint32_t n_p,
                                    std::uint32_t n_d, bool inside) {
    const auto& whole = problem.links[p][d];
    if (problem.host_links.empty() || problem.sides[p].hosts.empty() || problem.sides[d].hosts.empty())
        return whole ? std::optional(Pairing{{}, {}, *whole}) : std::nullopt;
    const Table table = table_of(problem, p, d);
    if (p == d && inside) {
        std::optional<Pairing> best;
        for (std::size_t i = 0; i < table.from.size(); ++i) {
            const LinkRates* link = table.rates[i][i];
            if (link != nullptr && (!best || link->bytes_per_s > best->rates.bytes_per_s))
                best = Pairing{{table.from[i]}, {table.to[i]}, *link};
        }
        if (best) return best;
    }
    std::size_t senders = n_p, receivers = n_d;
    if (p == d && senders + receivers > table.from.size()) {  // some machines have both stages
        senders = std::min(senders, std::max<std::size_t>(table.from.size(), 2) - 1);
        receivers = std::max<std::size_t>(table.from.size(), senders + 1) - senders;
    }
    auto out = best_of(table, senders, receivers);
    if (!out && whole) out = Pairing{{}, {}, *whole};
    return out;
}

}  // namespace hetero::plan
