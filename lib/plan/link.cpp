// What goes from prefill to decode in a split: over which link, converted where, and staged beside what.
#include <algorithm>

#include "plan/candidates.h"

namespace hetero::plan {
namespace {

// Quantizing at the sender and decoding at the receiver; of several kinds of machines the slowest.
void set_conversion(const Problem& problem, Candidate& candidate) {
    const double values = problem.formats.front().bytes_per_token;
    const auto seconds = [&](const Side& side, double rate, bool verified, const char* what) {
        if (rate <= 0) {
            const double memory =
                side.device.bandwidth.empty() ? 10e9 : side.device.bandwidth.back().read_gb_per_s.value_or(10) * 1e9;
            assume(candidate,
                   fmt::format("{}: {} {} at an eighth of the memory's rate", side.name, what, candidate.wire.codec));
            return values / (memory / 8);
        }
        if (!verified)
            assume(candidate, fmt::format("{}: {} {} at its specified rate", side.name, what, candidate.wire.codec));
        return values / rate;
    };
    double encode_s = 0, decode_s = 0;
    for (const Group& group : candidate.groups) {
        const Side& side = problem.sides[group.side];
        const CodecRates rates = codec_rates(side.device, candidate.wire.codec);
        if (group.role == sched::Role::prefill) {
            encode_s = std::max(encode_s, seconds(side, rates.encode_bytes_per_s, rates.verified, "quantizing"));
        } else if (candidate.wire.name != candidate.resident.name) {
            decode_s = std::max(decode_s, seconds(side, rates.decode_bytes_per_s, rates.verified, "decoding"));
        }
    }
    candidate.deployment.link.convert_s_per_token = encode_s + decode_s;
}

std::uint32_t machines_of(const Problem& problem, const Group& group) {
    const std::uint32_t each = problem.sides[group.side].devices_each();
    return (group.tp * group.instances + each - 1) / each;
}

double usable_bytes_per_s(const LinkRates& rates) {
    return rates.bytes_per_s * (rates.verified ? 1 : UsualFractions{}.link);
}

// The link that a split goes over: of all pairs of its groups the lowest rate and the highest latency, for any instance
// may send to any. What of them is not verified is assumed.
std::optional<LinkRates> link_of(const Problem& problem, Candidate& candidate) {
    std::optional<LinkRates> slowest;
    double latency_s = 0;
    for (Group& from : candidate.groups) {
        if (from.role != sched::Role::prefill) continue;
        for (Group& to : candidate.groups) {
            if (to.role != sched::Role::decode) continue;
            const Side& side = problem.sides[from.side];
            const bool inside =
                from.side == to.side && from.tp * from.instances + to.tp * to.instances <= side.devices_each();
            const auto pairing =
                choose_hosts(problem, from.side, to.side, machines_of(problem, from), machines_of(problem, to), inside);
            if (!pairing) return std::nullopt;
            if (candidate.groups.size() == 2) {
                from.hosts = pairing->from;
                to.hosts = pairing->to;
            }
            const LinkRates& rates = pairing->rates;
            if (!rates.verified) assume(candidate, fmt::format("link: 70 % of the specified rate ({})", rates.source));
            latency_s = std::max(latency_s, rates.latency_s);
            if (!slowest || usable_bytes_per_s(rates) < usable_bytes_per_s(*slowest)) slowest = rates;
        }
    }
    if (slowest) slowest->latency_s = latency_s;
    return slowest;
}

}  // namespace

bool set_link(const Problem& problem, Candidate& candidate) {
    const auto found = link_of(problem, candidate);
    if (!found) return false;
    const LinkRates& rates = *found;
    double copies = 1;  // a latent is sent once
    for (const Group& group : candidate.groups)
        if (group.role == sched::Role::decode && !problem.shape.latent)
            copies = std::max(copies, kv_replication(problem.shape, group.tp));
    sched::LinkTiming& link = candidate.deployment.link;
    candidate.link_source = rates.source;
    link.latency_s = rates.latency_s;
    link.bytes_per_s = usable_bytes_per_s(rates);
    link.kv = kv_size(problem.shape, candidate.wire.bytes_per_token, copies);
    link.layers = problem.shape.n_layers;
    // Below 512 tokens layers on their own cost more than they hide (Splitwise, https://arxiv.org/abs/2311.18677).
    link.overlapped = problem.workload.prompt_tokens >= 512;
    link.staging_fraction = candidate.wire.name == candidate.resident.name ? 0 : 1;
    link.resident_prefix = problem.prefix_at_decoder ? 1 : 0;
    if (candidate.wire.quantized) set_conversion(problem, candidate);
    return true;
}

void check_staging(const Problem& problem, Candidate& candidate) {
    if (!is_split(candidate.kind)) return;
    const sched::LinkTiming& link = candidate.deployment.link;
    const Workload& load = problem.workload;
    const double staging =
        link.staging_fraction * link.kv.bytes(load.prompt_tokens - link.resident_prefix * load.cached_tokens);
    for (const Group& group : candidate.groups) {
        if (group.role != sched::Role::decode) continue;
        const double state = group.worker.kv.bytes(load.prompt_tokens + load.output_tokens);
        const double missing = (state + staging - static_cast<double>(group.worker.kv_capacity_bytes)) / group.tp;
        if (missing <= candidate.missing_bytes) continue;
        candidate.missing_bytes = missing;
        candidate.inadmissible = fmt::format(
            "{}: {:.3f} GB of KV and {:.3f} GB of staging for it as it arrives do not fit beside the "
            "weights; {:.2f} GB are missing on each device",
            problem.sides[group.side].name, state / 1e9, staging / 1e9, missing / 1e9);
    }
}

}  // namespace hetero::plan
