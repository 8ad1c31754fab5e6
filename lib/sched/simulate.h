// Requests played through workers on a virtual clock: which worker a request goes to, the link between the stages, and
// what users would have seen. Deterministic; no input or output.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "sched/histogram.h"
#include "sched/link.h"
#include "sched/request.h"
#include "sched/worker.h"

namespace hetero::sched {

enum class FirstToken : std::uint8_t { prefill, decode };  // who emits it

struct Deployment {
    std::vector<WorkerConfig> workers;
    LinkTiming link;                               // used where some workers have one stage only
    FirstToken first_token = FirstToken::prefill;  // likewise
};

// A request is good where its time to first token is at most ttft_s and its time per output token after the first at
// most tpot_s (0 where there is one token only). Infinite: any.
struct Targets {
    double ttft_s = 0, tpot_s = 0;
    // Stop as soon as it is certain whether this fraction of the requests is good: `good` is then the count so far, and
    // so is all else. 0: play to the end.
    double decide = 0;
};

struct Outcome {
    std::uint64_t requests = 0, finished = 0, refused = 0, good = 0;
    double duration_s = 0;                      // from the first arrival to the last token
    std::vector<double> ttft_s, tpot_s, e2e_s;  // of finished requests; tpot of those with two tokens or more
    DurationHistogram itl;                      // all gaps between tokens of one request, pooled
    double queue_mean_s = 0, prefill_mean_s = 0, reserve_mean_s = 0, transfer_mean_s = 0, decode_mean_s = 0;
    double prefill_busy = 0, decode_busy = 0, link_busy = 0;  // fractions of the duration, of the workers of a stage
    double batch_mean = 0;                                    // sequences of a decode step
    std::uint64_t output_tokens = 0, steps = 0, link_bytes = 0, peak_kv_bytes = 0;
    std::vector<Timeline> timelines;  // [request], where asked for

    [[nodiscard]] double attainment() const noexcept {
        return requests > 0 ? static_cast<double>(good) / static_cast<double>(requests) : 0;
    }
};

// usage: no worker for a stage, or numbers that make no sense; internal: the bookkeeping does not add up.
Result<Outcome> simulate(const Deployment& deployment, const std::vector<Request>& requests, const Targets& targets,
                         bool keep_timelines = false);

}  // namespace hetero::sched
