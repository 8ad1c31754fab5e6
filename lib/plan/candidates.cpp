#include "plan/candidates.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "plan/cost.h"

namespace hetero::plan {
namespace {

constexpr std::size_t most_divided = 5;     // kinds of machines, one of which may have both stages
constexpr std::size_t kept_of_a_pair = 48;  // deployments of two kinds of machines and one form of KV

struct Built {
    sched::WorkerConfig worker;
    double weight_bytes = 0;  // on each device
    bool verified = true;
    std::vector<std::string> assumed;
    std::string inadmissible;
    double missing_bytes = 0;
};

// What a token of context takes to read in decode, by the cost model; 0: not known.
double read_s_per_token(const Problem& problem, const Side& side, const std::string& dtype, const KvFormat& resident,
                        std::uint32_t tp) {
    const auto found = rates_of(side.device, problem.shape, dtype, resident.attention_dtype);
    if (!found) return 0;
    return decode_timing(problem.shape, found->rates, tp, resident.bytes_per_token, 1).read_per_context_token_s;
}

// Times of the stages that were measured with this model, in place of those that follow from rates.
void use_stages(const Problem& problem, const Side& side, std::uint32_t tp, const std::string& dtype,
                const KvFormat& resident, Built& out) {
    if (!side.stages || tp != 1 || (!side.stages->dtype.empty() && side.stages->dtype != dtype)) return;
    const auto prefill = fit_prefill(*side.stages);
    if (prefill) out.worker.prefill = *prefill;
    const double form_s = out.worker.decode.read_per_context_token_s;
    const auto decode = fit_decode(*side.stages, out.worker.decode);
    if (decode) out.worker.decode = *decode;
    // They were measured with unquantized KV; what another form changes is the model's.
    const double plain_s = read_s_per_token(problem, side, dtype, problem.formats.front(), tp);
    if (decode && resident.quantized && plain_s > 0) out.worker.decode.read_per_context_token_s *= form_s / plain_s;
    if (!prefill || !decode) return;
    out.verified = true;
    out.assumed.clear();
}

// One instance of `tp` devices of a side.
Built build(const Problem& problem, std::size_t index, sched::Role role, std::uint32_t tp, const std::string& dtype,
            const KvFormat& resident) {
    const Side& side = problem.sides[index];
    Built out;
    auto found = rates_of(side.device, problem.shape, dtype, resident.attention_dtype);
    if (!found) {
        out.inadmissible = found.error().message;
        return out;
    }
    StageRates rates = found->rates;
    out.verified = found->verified;
    out.assumed = std::move(found->assumed);
    if (tp > 1) {
        if (side.exchange_bytes_per_s) {
            rates.exchange_bytes_per_s = *side.exchange_bytes_per_s;
        } else {
            rates.exchange_bytes_per_s = UsualFractions{}.exchange * 100e9;
            out.verified = false;
            out.assumed.push_back(
                fmt::format("{}: {} GB/s between devices, as no link inside the machine is in the profile", side.name,
                            rates.exchange_bytes_per_s / 1e9));
        }
    }
    const double prompt = problem.workload.prompt_tokens;
    out.worker.role = role;
    out.worker.policy.max_sequences = problem.max_sequences;
    out.worker.policy.chunk_tokens = problem.chunk_tokens;
    out.worker.prefill = prefill_timing(problem.shape, rates, tp, prompt);
    out.worker.decode = decode_timing(problem.shape, rates, tp, resident.bytes_per_token, problem.max_sequences);
    use_stages(problem, side, tp, dtype, resident, out);
    const double memory = static_cast<double>(side.device.memory_bytes.value_or(0)) * problem.usable_memory;
    const double weights = out.weight_bytes = weight_bytes(problem.shape, rates.bytes_per_weight) / tp;
    // Activations of the tokens in flight: a few vectors of the hidden width in f32.
    const double activations = 16.0 * problem.shape.hidden * problem.chunk_tokens;
    const double free = memory - weights - activations;
    out.worker.kv = kv_size(problem.shape, resident.bytes_per_token, kv_replication(problem.shape, tp));
    const double tokens = prompt + (role == sched::Role::prefill ? 0 : problem.workload.output_tokens);
    const double needed = out.worker.kv.bytes(tokens) / tp;
    if (!side.device.memory_bytes) {
        out.inadmissible = fmt::format("{}: the profile does not say how much memory there is", side.name);
    } else if (free < needed) {
        out.missing_bytes = needed - free;
        out.inadmissible = fmt::format(
            "{}, {} device{}: {:.2f} GB of weights and {:.3f} GB of KV of one request do not fit {:.2f} GB; {:.2f} GB "
            "are missing on each",
            side.name, tp, tp > 1 ? "s" : "", weights / 1e9, needed / 1e9, memory / 1e9, out.missing_bytes / 1e9);
    } else {
        out.worker.kv_capacity_bytes = static_cast<std::uint64_t>(free * tp);
    }
    return out;
}

std::vector<std::uint32_t> degrees(const ModelShape& shape, const Side& side) {
    std::vector<std::uint32_t> out;
    const std::uint32_t count = side.devices_each();
    for (std::uint32_t tp = 1; tp <= count; ++tp) {
        // KV heads are divided evenly, or each is held by the same number of devices.
        const bool kv_heads_fit = shape.n_kv_heads % tp == 0 || tp % shape.n_kv_heads == 0;
        if (count % tp == 0 && shape.n_heads % tp == 0 && kv_heads_fit) out.push_back(tp);
    }
    return out;
}

// 1, 2, 3, 4, 6, 8, 12 ... up to `most`, which is among them.
std::vector<std::uint32_t> counts(std::uint32_t most) {
    std::vector<std::uint32_t> out;
    for (std::uint32_t n = 1; n < most; n = n < 4 ? n + 1 : n + n / 2) out.push_back(n);
    if (most > 0) out.push_back(most);
    return out;
}

void add_group(Candidate& candidate, const Group& group, const Built& built) {
    candidate.groups.push_back(group);
    candidate.groups.back().worker = built.worker;
    candidate.groups.back().weight_bytes = built.weight_bytes;
    candidate.verified = candidate.verified && built.verified;
    for (const std::string& line : built.assumed) assume(candidate, line);
    if (candidate.inadmissible.empty()) candidate.inadmissible = built.inadmissible;
    candidate.missing_bytes = std::max(candidate.missing_bytes, built.missing_bytes);
}

// Whole machines are paid for.
void add_cost(const Problem& problem, Candidate& candidate) {
    std::vector<double> devices(problem.sides.size(), 0);
    for (const Group& group : candidate.groups) devices[group.side] += double{1} * group.tp * group.instances;
    double usd = 0;
    bool known = true;
    for (std::size_t s = 0; s < devices.size(); ++s) {
        if (devices[s] == 0) continue;
        const double machines = std::ceil(devices[s] / problem.sides[s].devices_each());
        candidate.machines += static_cast<std::uint32_t>(machines);
        known = known && problem.sides[s].usd_per_hour.has_value();
        usd += machines * problem.sides[s].usd_per_hour.value_or(0);
    }
    if (known) candidate.usd_per_hour = usd;
}

void finish(const Problem& problem, Candidate candidate, SearchResult& out) {
    add_cost(problem, candidate);
    if (candidate.inadmissible.empty()) check_staging(problem, candidate);
    if (candidate.inadmissible.empty()) {
        if (problem.workload.cached_tokens > 0) choose_tier(problem, candidate);
        estimate(problem, candidate);
    }
    out.candidates.push_back(std::move(candidate));
}

// Of those from `begin` on, the ones that promise most.
void prune(const Problem& problem, std::size_t begin, SearchResult& out) {
    if (out.candidates.size() - begin <= kept_of_a_pair) return;
    const auto first = out.candidates.begin() + static_cast<std::ptrdiff_t>(begin);
    std::stable_sort(first, out.candidates.end(), [&](const Candidate& a, const Candidate& b) {
        if (a.inadmissible.empty() != b.inadmissible.empty()) return a.inadmissible.empty();
        if (!a.inadmissible.empty()) return a.missing_bytes < b.missing_bytes;
        return promise(problem, a) > promise(problem, b);
    });
    const auto kept = first + static_cast<std::ptrdiff_t>(kept_of_a_pair);
    out.left_out += static_cast<std::size_t>(
        std::count_if(kept, out.candidates.end(), [](const Candidate& one) { return one.inadmissible.empty(); }));
    out.candidates.erase(kept, out.candidates.end());
}

void add_colocated(const Problem& problem, std::size_t s, SearchResult& out) {
    const Side& side = problem.sides[s];
    for (const std::string& dtype : side.dtypes) {
        for (const KvFormat& resident : problem.formats) {
            if (resident.wire_only) continue;
            for (const std::uint32_t tp : degrees(problem.shape, side)) {
                Built built = build(problem, s, sched::Role::both, tp, dtype, resident);
                for (const auto sharing :
                     {sched::Sharing::prompts_first, sched::Sharing::chunked, sched::Sharing::time_sliced}) {
                    built.worker.policy.sharing = sharing;
                    for (const std::uint32_t n : counts(side.devices() / tp)) {
                        Candidate candidate;
                        candidate.kind = sharing == sched::Sharing::time_sliced ? Kind::time_sliced : Kind::colocated;
                        candidate.sharing = sharing;
                        candidate.wire = candidate.resident = resident;
                        add_group(candidate, {s, sched::Role::both, tp, n, dtype, 0, {}, {}}, built);
                        finish(problem, std::move(candidate), out);
                        if (!built.inadmissible.empty()) break;  // more of them do not help
                    }
                }
            }
        }
    }
}

// One stage, or both, on all devices of a side, at the smallest degree that fits. False: it cannot be.
bool add_whole_side(const Problem& problem, std::size_t s, sched::Role role, std::uint32_t devices,
                    sched::Sharing sharing, const KvFormat& resident, Candidate& candidate) {
    const Side& side = problem.sides[s];
    if (side.dtypes.empty()) return false;
    for (const std::uint32_t tp : degrees(problem.shape, side)) {
        if (devices / tp == 0) return false;
        Built built = build(problem, s, role, tp, side.dtypes.front(), resident);
        if (!built.inadmissible.empty()) continue;
        built.worker.policy.sharing = sharing;
        add_group(candidate, {s, role, tp, devices / tp, side.dtypes.front(), 0, {}, {}}, built);
        return true;
    }
    return false;
}

// All sides with all they have, each for itself.
void add_side_by_side(const Problem& problem, SearchResult& out) {
    if (problem.sides.size() < 2) return;
    const KvFormat& resident = problem.formats.front();
    for (const auto sharing : {sched::Sharing::prompts_first, sched::Sharing::chunked}) {
        Candidate candidate;
        candidate.kind = Kind::side_by_side;
        candidate.sharing = sharing;
        candidate.wire = candidate.resident = resident;
        for (std::size_t s = 0; s < problem.sides.size(); ++s)
            add_whole_side(problem, s, sched::Role::both, problem.sides[s].devices(), sharing, resident, candidate);
        if (candidate.groups.size() > 1) finish(problem, std::move(candidate), out);
    }
}

struct Forms {
    const KvFormat *wire, *resident;
};

// Sent as it stays, or made small for the link alone.
std::vector<Forms> forms(const Problem& problem) {
    std::vector<Forms> out;
    const KvFormat& plain = problem.formats.front();
    for (const KvFormat& format : problem.formats) {
        if (!format.wire_only) out.push_back({&format, &format});
        if (&format != &plain) out.push_back({&format, &plain});
    }
    return out;
}

// A pair of instances, one of each stage, in all the numbers that there are devices for.
void add_numbers(const Problem& problem, const Candidate& pair, SearchResult& out) {
    const Group &prefill = pair.groups[0], &decode = pair.groups[1];
    const std::uint32_t from = problem.sides[prefill.side].devices(), to = problem.sides[decode.side].devices();
    for (const std::uint32_t n_p : counts(from / prefill.tp)) {
        const std::uint32_t left = prefill.side == decode.side ? from - n_p * prefill.tp : to;
        for (const std::uint32_t n_d : counts(left / decode.tp)) {
            Candidate candidate = pair;
            candidate.groups[0].instances = n_p;
            candidate.groups[1].instances = n_d;
            if (!set_link(problem, candidate)) continue;
            finish(problem, std::move(candidate), out);
            if (!pair.inadmissible.empty()) return;  // more of them do not help
        }
    }
}

void add_split(const Problem& problem, std::size_t p, std::size_t d, SearchResult& out) {
    const Side &from = problem.sides[p], &to = problem.sides[d];
    const bool same = p == d;
    for (const Forms& form : forms(problem)) {
        const std::size_t begin = out.candidates.size();
        for (const std::string& p_dtype : from.dtypes) {
            for (const std::string& d_dtype : to.dtypes) {
                if (same && p_dtype != d_dtype) continue;
                for (const std::uint32_t p_tp : degrees(problem.shape, from)) {
                    const Built prefill =
                        build(problem, p, sched::Role::prefill, p_tp, p_dtype, problem.formats.front());
                    for (const std::uint32_t d_tp : degrees(problem.shape, to)) {
                        const Built decode = build(problem, d, sched::Role::decode, d_tp, d_dtype, *form.resident);
                        Candidate pair;
                        pair.kind = same ? Kind::split : Kind::hetero_split;
                        pair.wire = *form.wire;
                        pair.resident = *form.resident;
                        pair.deployment.first_token = problem.first_token.value_or(sched::FirstToken::prefill);
                        add_group(pair, {p, sched::Role::prefill, p_tp, 1, p_dtype, 0, {}, {}}, prefill);
                        add_group(pair, {d, sched::Role::decode, d_tp, 1, d_dtype, 0, {}, {}}, decode);
                        add_numbers(problem, pair, out);
                    }
                }
            }
        }
        prune(problem, begin, out);
    }
}

// Which stage each side does: all of it, but of one that may be divided.
struct Pools {
    std::size_t prefills;  // bit s: side s prefills, else it decodes
    std::size_t divided;   // a side that does both stages; as many as there are sides: none
    std::uint32_t share;   // devices of the divided side that do the other stage

    // Of side s for a stage; nothing where it has no part in it.
    [[nodiscard]] std::optional<std::uint32_t> devices(const Problem& problem, std::size_t s, sched::Role role) const {
        const bool does = ((prefills >> s) & 1) == (role == sched::Role::prefill ? 1U : 0U);
        const std::uint32_t all = problem.sides[s].devices();
        if (s == divided) return does ? all - share : share;
        return does ? std::optional(all) : std::nullopt;
    }
};

std::vector<Pools> divisions_into_pools(const Problem& problem) {
    std::vector<Pools> out;
    const std::size_t n = problem.sides.size(), all = std::size_t{1} << n;
    for (std::size_t prefills = 1; prefills + 1 < all; ++prefills) {
        for (std::size_t divided = 0; divided < n && n <= most_divided; ++divided) {
            for (const std::uint32_t share : counts(problem.sides[divided].devices() - 1))
                out.push_back({prefills, divided, share});
        }
        if (n > 2) out.push_back({prefills, n, 0});  // of two: a pair of kinds, which is compared already
    }
    return out;
}

// Nothing where a stage fits no side's devices, or too few of them are left to differ from a pair.
std::optional<Candidate> pooled(const Problem& problem, const Forms& form, const Pools& pools) {
    Candidate candidate;
    candidate.kind = Kind::hetero_split;
    candidate.wire = *form.wire;
    candidate.resident = *form.resident;
    candidate.deployment.first_token = problem.first_token.value_or(sched::FirstToken::prefill);
    for (const auto role : {sched::Role::prefill, sched::Role::decode}) {
        const KvFormat& resident = role == sched::Role::prefill ? problem.formats.front() : *form.resident;
        for (std::size_t s = 0; s < problem.sides.size(); ++s) {
            const auto devices = pools.devices(problem, s, role);
            if (devices &&
                !add_whole_side(problem, s, role, *devices, sched::Sharing::prompts_first, resident, candidate))
                return std::nullopt;
        }
    }
    if (candidate.groups.size() < 3 || !set_link(problem, candidate)) return std::nullopt;
    return candidate;
}

// More than one kind of machines for a stage: every side whole for one of them, or one side divided between both.
void add_pools(const Problem& problem, SearchResult& out) {
    if (problem.sides.size() < 2) return;
    const std::vector<Pools> divisions = divisions_into_pools(problem);
    for (const Forms& form : forms(problem)) {
        const std::size_t begin = out.candidates.size();
        for (const Pools& pools : divisions) {
            if (auto candidate = pooled(problem, form, pools)) finish(problem, std::move(*candidate), out);
        }
        prune(problem, begin, out);
    }
}

}  // namespace

void assume(Candidate& candidate, const std::string& line) {
    candidate.verified = false;
    if (std::find(candidate.assumed.begin(), candidate.assumed.end(), line) == candidate.assumed.end())
        candidate.assumed.push_back(line);
}

void add_candidates(const Problem& problem, SearchResult& out) {
    for (std::size_t s = 0; s < problem.sides.size(); ++s) add_colocated(problem, s, out);
    add_side_by_side(problem, out);
    for (std::size_t p = 0; p < problem.sides.size(); ++p) {
        for (std::size_t d = 0; d < problem.sides.size(); ++d) {
            if (p == d && problem.sides[p].devices() < 2) continue;
            if (choose_hosts(problem, p, d, 1, 1, true)) {
                add_split(problem, p, d, out);
            } else {
                out.notes.push_back(fmt::format(
                    "no split from {} to {} is compared: the rate of the link is not known; give --link, or a fleet's "
                    "profile",
                    problem.sides[p].name, problem.sides[d].name));
            }
        }
    }
    add_pools(problem, out);
}

}  // namespace hetero::plan
