#include <algorithm>
#include <cmath>

#include "plan/candidates.h"

namespace hetero::plan {
namespace {

constexpr double no_rate = 1e300;

// Seconds of one instance that a request takes, where it never lacks work: prompts in full batches, tokens at the
// largest batch that memory allows.
struct Demand {
    double prefill_alone_s = 0, prefill_s = 0, decode_s = 0, both_s = 0;
    std::string prefill_bound = "prefill compute", decode_bound = "decode memory bandwidth";
};

Demand demand_of(const Problem& problem, const sched::WorkerConfig& worker, double cached_tokens) {
    const double n = problem.workload.prompt_tokens, p = cached_tokens;
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
    const double fetch_s = p > 0 ? p * worker.fetch_s_per_token : 0;
    out.prefill_alone_s = fetch_s + worker.prefill.seconds(fresh, pairs);
    const double passes = prefill_steps * worker.prefill.chunks(step_tokens);
    const double floor_s = passes * worker.prefill.floor_s;
    const double compute_s =
        passes * worker.prefill.overhead_s + fresh * worker.prefill.per_token_s + pairs * worker.prefill.per_pair_s;
    out.prefill_s = fetch_s + std::max(floor_s, compute_s);
    if (floor_s >= compute_s) out.prefill_bound = "prefill memory bandwidth";
    if (fetch_s > std::max(floor_s, compute_s)) out.prefill_bound = "fetching cached KV";

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
    const double cached = candidate.computes_cached() ? 0 : problem.workload.cached_tokens;
    double prefill_per_s = 0, decode_per_s = 0, both_per_s = 0;
    std::string prefill_bound, decode_bound;
    bool prefill_binds = false;
    for (const Group& group : candidate.groups) {
        const sched::WorkerConfig& worker = group.worker;
        const Demand demand = demand_of(problem, worker, cached);
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
            if (prefill_bound.empty()) prefill_bound = demand.prefill_bound;
        }
        if (worker.role != sched::Role::prefill) {
            candidate.itl_alone_s =
                std::max(candidate.itl_alone_s, worker.decode.seconds(1, worker.kv.context(context)));
            if (decode_bound.empty()) decode_bound = demand.decode_bound;
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
    const double sent = n - link.resident_prefix * cached;
    candidate.state_bytes = link.kv.bytes(sent);
    const sched::Transfer transfer = link.transfer(candidate.state_bytes, sent, candidate.prefill_alone_s);
    candidate.transfer_alone_s = transfer.whole_s;
    candidate.visible_alone_s = transfer.visible_s;
    candidate.convert_s = sent * link.convert_s_per_token;
    if (candidate.deployment.first_token == sched::FirstToken::decode) candidate.ttft_alone_s += transfer.visible_s;
    double senders = 0, receivers = 0;
    for (const Group& group : candidate.groups)
        (group.role == sched::Role::prefill ? senders : receivers) += group.instances;
    const double link_per_s = transfer.occupied_s > 0 ? std::min(senders, receivers) / transfer.occupied_s : no_rate;
    candidate.capacity_per_s = std::min({prefill_per_s, decode_per_s, link_per_s});
    candidate.binding = candidate.capacity_per_s == link_per_s      ? "link"
                        : candidate.capacity_per_s == prefill_per_s ? prefill_bound
                                                                    : decode_bound;
}

double promise(const Problem& problem, const Candidate& candidate) {
    const double cost = candidate.usd_per_hour.value_or(candidate.machines);
    double value = candidate.capacity_per_s / std::max(cost, 1e-9);
    if (candidate.ttft_alone_s > problem.goals.ttft_s || candidate.itl_alone_s > problem.goals.itl_s) value *= 1e-6;
    if (problem.workload.rate_per_s && candidate.capacity_per_s < *problem.workload.rate_per_s) value *= 1e-3;
    return value;
}

}  // namespace hetero::plan
