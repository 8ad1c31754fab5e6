#include "plan/candidates.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "plan/cost.h"

namespace hetero::plan {
namespace {

constexpr double no_rate = 1e300;

struct Built {
    sched::WorkerConfig worker;
    bool verified = true;
    std::vector<std::string> assumed;
    std::string inadmissible;
    double missing_bytes = 0;
};

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
    if (side.stages && tp == 1) {
        const auto prefill = fit_prefill(*side.stages);
        if (prefill) out.worker.prefill = *prefill;
        const auto decode = fit_decode(*side.stages, out.worker.decode);
        if (decode) out.worker.decode = *decode;
        if (prefill && decode) {
            out.verified = true;
            out.assumed.clear();
        }
    }
    const double memory = static_cast<double>(side.device.memory_bytes.value_or(0)) * problem.usable_memory;
    const double weights = weight_bytes(problem.shape, rates.bytes_per_weight) / tp;
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
    candidate.verified = candidate.verified && built.verified;
    for (const std::string& line : built.assumed)
        if (std::find(candidate.assumed.begin(), candidate.assumed.end(), line) == candidate.assumed.end())
            candidate.assumed.push_back(line);
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
    if (candidate.inadmissible.empty()) estimate(problem, candidate);
    out.candidates.push_back(std::move(candidate));
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
                        add_group(candidate, {s, sched::Role::both, tp, n, dtype, {}}, built);
                        finish(problem, std::move(candidate), out);
                        if (!built.inadmissible.empty()) break;  // more of them do not help
                    }
                }
            }
        }
    }
}

// Both sides with all they have, each for itself.
void add_side_by_side(const Problem& problem, SearchResult& out) {
    if (problem.sides.size() < 2) return;
    const KvFormat& resident = problem.formats.front();
    for (const auto sharing : {sched::Sharing::prompts_first, sched::Sharing::chunked}) {
        Candidate candidate;
        candidate.kind = Kind::side_by_side;
        candidate.sharing = sharing;
        candidate.wire = candidate.resident = resident;
        for (std::size_t s = 0; s < 2; ++s) {
            const Side& side = problem.sides[s];
            for (const std::uint32_t tp : degrees(problem.shape, side)) {  // the smallest that fits
                if (side.dtypes.empty()) break;
                Built built = build(problem, s, sched::Role::both, tp, side.dtypes.front(), resident);
                if (!built.inadmissible.empty()) continue;
                built.worker.policy.sharing = sharing;
                add_group(candidate, {s, sched::Role::both, tp, side.devices() / tp, side.dtypes.front(), {}}, built);
                break;
            }
        }
        if (candidate.groups.size() == 2) finish(problem, std::move(candidate), out);
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

void set_link(const Problem& problem, const LinkRates& rates, Candidate& candidate, std::uint32_t tp) {
    sched::LinkTiming& link = candidate.deployment.link;
    link.latency_s = rates.latency_s;
    link.bytes_per_s = rates.bytes_per_s * (rates.verified ? 1 : UsualFractions{}.link);
    link.kv = kv_size(problem.shape, candidate.wire.bytes_per_token,
                      problem.shape.latent ? 1 : kv_replication(problem.shape, tp));
    link.layers = problem.shape.n_layers;
    // Below 512 tokens layers on their own cost more than they hide (Splitwise, https://arxiv.org/abs/2311.18677).
    link.overlapped = problem.workload.prompt_tokens >= 512;
    link.staging_fraction = candidate.wire.name == candidate.resident.name ? 0 : 1;
    link.resident_prefix = problem.prefix_at_decoder ? 1 : 0;
    candidate.verified = candidate.verified && rates.verified;
    if (!rates.verified)
        candidate.assumed.push_back(fmt::format("link: 70 % of the specified rate ({})", rates.source));
    if (!candidate.wire.quantized) return;
    const Side &from = problem.sides[candidate.groups[0].side], &to = problem.sides[candidate.groups[1].side];
    const double values = problem.formats.front().bytes_per_token;
    const bool decodes = candidate.wire.name != candidate.resident.name;
    const CodecRates encode = codec_rates(from.device, candidate.wire.codec);
    const CodecRates decode = codec_rates(to.device, candidate.wire.codec);
    double seconds = 0;
    const auto add = [&](double rate, bool verified, const Side& side, const char* what) {
        if (!verified) candidate.verified = false;
        if (rate <= 0) {
            const double memory =
                side.device.bandwidth.empty() ? 10e9 : side.device.bandwidth.back().read_gb_per_s.value_or(10) * 1e9;
            seconds += values / (memory / 8);
            candidate.assumed.push_back(
                fmt::format("{}: {} {} at an eighth of the memory's rate", side.name, what, candidate.wire.codec));
            return;
        }
        if (!verified)
            candidate.assumed.push_back(
                fmt::format("{}: {} {} at its specified rate", side.name, what, candidate.wire.codec));
        seconds += values / rate;
    };
    add(encode.encode_bytes_per_s, encode.verified, from, "quantizing");
    if (decodes) add(decode.decode_bytes_per_s, decode.verified, to, "decoding");
    link.convert_s_per_token = seconds;
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
            finish(problem, std::move(candidate), out);
            if (!pair.inadmissible.empty()) return;  // more of them do not help
        }
    }
}

void add_split(const Problem& problem, std::size_t p, std::size_t d, SearchResult& out) {
    const Side &from = problem.sides[p], &to = problem.sides[d];
    const bool same = p == d;
    for (const std::string& p_dtype : from.dtypes) {
        for (const std::string& d_dtype : to.dtypes) {
            if (same && p_dtype != d_dtype) continue;
            for (const Forms& form : forms(problem)) {
                for (const std::uint32_t p_tp : degrees(problem.shape, from)) {
                    const Built prefill =
                        build(problem, p, sched::Role::prefill, p_tp, p_dtype, problem.formats.front());
                    for (const std::uint32_t d_tp : degrees(problem.shape, to)) {
                        const Built decode = build(problem, d, sched::Role::decode, d_tp, d_dtype, *form.resident);
                        Candidate pair;
                        pair.kind = same ? Kind::split : Kind::hetero_split;
                        pair.wire = *form.wire;
                        pair.resident = *form.resident;
                        pair.deployment.first_token = problem.first_token;
                        add_group(pair, {p, sched::Role::prefill, p_tp, 1, p_dtype, {}}, prefill);
                        add_group(pair, {d, sched::Role::decode, d_tp, 1, d_dtype, {}}, decode);
                        set_link(problem, *problem.links[p][d], pair, d_tp);
                        add_numbers(problem, pair, out);
                    }
                }
            }
        }
    }
}

// Seconds of one instance that a request takes, where it never lacks work: prompts in full batches, tokens at the
// largest batch that memory allows.
struct Demand {
    double prefill_alone_s = 0, prefill_s = 0, decode_s = 0, both_s = 0;
    std::string prefill_bound = "prefill compute", decode_bound = "decode memory bandwidth";
};

Demand demand_of(const Problem& problem, const sched::WorkerConfig& worker) {
    const double n = problem.workload.prompt_tokens, p = problem.workload.cached_tokens;
    const double o = problem.workload.output_tokens, context = worker.kv.context(n + o / 2);
    const double fresh = n - p, pairs = n * n - p * p;
    const double tokens = n + (worker.role == sched::Role::prefill ? 0 : o);
    const double fit =
        std::floor(static_cast<double>(worker.kv_capacity_bytes) / std::max(worker.kv.bytes(tokens), 1.0));
    const double batch = std::clamp(fit, 1.0, static_cast<double>(problem.max_sequences));

    const sched::Policy& policy = worker.policy;
    const bool chunked = worker.role == sched::Role::both && policy.sharing == sched::Sharing::chunked;
    double step_tokens = policy.chunk_tokens;
    if (worker.role == sched::Role::prefill || policy.sharing == sched::Sharing::prompts_first)
        step_tokens = fresh * std::clamp(std::floor(policy.max_batch_tokens / fresh), 1.0, batch);
    if (chunked) step_tokens = std::max({step_tokens - batch, step_tokens / 8, 1.0});  // as sched::choose() has it
    const double prefill_steps = fresh / step_tokens, decode_steps = std::max(o - 1, 0.0) / batch;

    Demand out;
    out.prefill_alone_s = worker.prefill.seconds(fresh, pairs);
    const double passes = prefill_steps * worker.prefill.chunks(step_tokens);
    const double floor_s = passes * worker.prefill.floor_s;
    const double compute_s = fresh * worker.prefill.per_token_s + pairs * worker.prefill.per_pair_s;
    out.prefill_s = passes * worker.prefill.overhead_s + std::max(floor_s, compute_s);
    if (floor_s >= compute_s) out.prefill_bound = "prefill memory bandwidth";

    const auto sequences = static_cast<std::size_t>(batch);
    const double step_s = worker.decode.seconds(sequences, batch * context);
    out.decode_s = decode_steps * step_s;
    const double read_s = worker.decode.weights(sequences) + batch * context * worker.decode.read_per_context_token_s;
    if (batch * (worker.decode.compute_per_sequence_s + context * worker.decode.compute_per_context_token_s) > read_s)
        out.decode_bound = "decode compute";
    if (fit < problem.max_sequences) out.decode_bound += ", batch bounded by memory";

    out.both_s = out.prefill_s + out.decode_s;
    if (chunked) {  // steps that prompts pay for anyway take sequences along
        const double mixed = std::min(prefill_steps, decode_steps);
        out.both_s -= mixed * (step_s - worker.decode.seconds_beside_prefill(sequences, batch * context));
    }
    return out;
}

}  // namespace

void estimate(const Problem& problem, Candidate& candidate) {
    const double context = problem.workload.prompt_tokens + problem.workload.output_tokens / 2.0;
    double prefill_per_s = 0, decode_per_s = 0, both_per_s = 0;
    std::string prefill_bound, decode_bound;
    bool prefill_binds = false;
    for (const Group& group : candidate.groups) {
        const sched::WorkerConfig& worker = group.worker;
        const Demand demand = demand_of(problem, worker);
        switch (worker.role) {
            case sched::Role::both:
                both_per_s += group.instances / demand.both_s;
                break;
            case sched::Role::prefill:
                prefill_per_s += group.instances / demand.prefill_s;
                break;
            case sched::Role::decode:
                decode_per_s += demand.decode_s > 0 ? group.instances / demand.decode_s : no_rate;
                break;
        }
        if (worker.role != sched::Role::decode) {
            candidate.prefill_alone_s = std::max(candidate.prefill_alone_s, demand.prefill_alone_s);
            prefill_bound = demand.prefill_bound;
        }
        if (worker.role != sched::Role::prefill) {
            candidate.itl_alone_s =
                std::max(candidate.itl_alone_s, worker.decode.seconds(1, worker.kv.context(context)));
            decode_bound = demand.decode_bound;
        }
        prefill_binds = demand.prefill_s > demand.decode_s;
    }
    candidate.ttft_alone_s = candidate.prefill_alone_s;
    if (!is_split(candidate.kind)) {
        candidate.capacity_per_s = both_per_s;
        candidate.binding = prefill_binds ? prefill_bound : decode_bound;
        return;
    }
    const sched::LinkTiming& link = candidate.deployment.link;
    const double n = problem.workload.prompt_tokens;
    const double sent = n - link.resident_prefix * problem.workload.cached_tokens;
    candidate.state_bytes = link.kv.bytes(sent);
    const sched::Transfer transfer = link.transfer(candidate.state_bytes, sent, candidate.prefill_alone_s);
    candidate.transfer_alone_s = transfer.whole_s;
    candidate.visible_alone_s = transfer.visible_s;
    candidate.convert_s = sent * link.convert_s_per_token;
    if (candidate.deployment.first_token == sched::FirstToken::decode) candidate.ttft_alone_s += transfer.visible_s;
    const double link_per_s =
        transfer.occupied_s > 0 ? candidate.groups.front().instances / transfer.occupied_s : no_rate;
    candidate.capacity_per_s = std::min({prefill_per_s, decode_per_s, link_per_s});
    candidate.binding = candidate.capacity_per_s == link_per_s      ? "link"
                        : candidate.capacity_per_s == prefill_per_s ? prefill_bound
                                                                    : decode_bound;
}

void add_candidates(const Problem& problem, SearchResult& out) {
    for (std::size_t s = 0; s < problem.sides.size(); ++s) add_colocated(problem, s, out);
    add_side_by_side(problem, out);
    for (std::size_t p = 0; p < problem.sides.size(); ++p) {
        for (std::size_t d = 0; d < problem.sides.size(); ++d) {
            if (p == d && problem.sides[p].devices() < 2) continue;
            if (problem.links[p][d]) {
                add_split(problem, p, d, out);
            } else {
                out.notes.push_back(fmt::format(
                    "no split from {} to {} is compared: the rate of the link is not known; give --link, or a fleet's "
                    "profile",
                    problem.sides[p].name, problem.sides[d].name));
            }
        }
    }
}

}  // namespace hetero::plan
