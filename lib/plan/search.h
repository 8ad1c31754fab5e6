// Deployments of one model on one or several kinds of machines, compared: colocated, time-sliced, side by side, split
// over machines alike, split over unlike ones, in any number. Estimates first, then the promising ones are played on a
// virtual clock.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hw/profile.h"
#include "plan/rates.h"
#include "plan/shape.h"
#include "plan/stage_profile.h"
#include "sched/simulate.h"

namespace hetero::plan {

// Where KV of prompts' common beginnings may be kept between requests, beside a device's own memory.
struct Tier {
    std::string name;                            // "host", "file"
    double bytes_per_s = 0, capacity_bytes = 0;  // of reading back; of a machine
    bool verified = false;
};

// Machines alike, and what of them the model runs on.
struct Side {
    std::string name;
    hw::Device device;
    std::uint32_t machines = 1;
    std::vector<std::string> hosts;  // their names, where they have some of their own
    std::vector<Tier> tiers;
    bool rough = false;                          // its rates were measured in little time
    std::optional<double> usd_per_hour;          // of one machine
    std::optional<double> exchange_bytes_per_s;  // between devices of a machine
    std::optional<StageProfile> stages;          // measured with this model, one device
    std::vector<std::string> dtypes;             // of weights, to be tried; those without an executable path drop out

    [[nodiscard]] std::uint32_t devices_each() const noexcept {
        return static_cast<std::uint32_t>(std::max(device.count, 1));
    }
    [[nodiscard]] std::uint32_t devices() const noexcept { return machines * devices_each(); }
};

// How KV is stored or sent.
struct KvFormat {
    std::string name;                     // "f16", "int8:token", or that of a precision plan
    std::string attention_dtype = "f16";  // whose rates a decoder has that keeps KV so
    std::string codec = "f16";            // spec whose rates a conversion has
    double bytes_per_token = 0;           // one copy
    bool quantized = false, certified = false;
    bool wire_only = false;  // no decoder keeps KV so
};

struct LinkRates {
    double bytes_per_s = 0, latency_s = 0;
    bool verified = false;
    std::string source;  // for people
};
// Between two machines by name, one direction.
struct HostLink {
    std::string from, to;
    LinkRates rates;
};

struct Goals {
    double ttft_s = std::numeric_limits<double>::infinity(), itl_s = std::numeric_limits<double>::infinity();
    double attainment = 0.9;  // fraction of requests that keep both, ITL as the mean of a request
    [[nodiscard]] bool any() const noexcept {
        return ttft_s < std::numeric_limits<double>::infinity() || itl_s < std::numeric_limits<double>::infinity();
    }
};

struct Workload {
    std::uint32_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;  // means, where there is a trace
    std::optional<double> rate_per_s;
    std::vector<sched::Request> trace;  // played as it is, its moments stretched to the rate; empty: all alike
    std::uint64_t retained_tokens = 0;  // whose KV is kept so that cached_tokens are there; 0: those of one prompt
};

struct Problem {
    ModelShape shape;
    std::vector<Side> sides;  // one to max_sides
    Workload workload;
    Goals goals;
    // [from side][to side], between instances of theirs; with one machine of a side and twice that side: inside it.
    std::vector<std::vector<std::optional<LinkRates>>> links;
    // Measured between hosts; where there is one between sides, it counts, not theirs.
    std::vector<HostLink> host_links;
    std::vector<KvFormat> formats;  // the first is unquantized
    // Who emits the first token of a split; nullopt: whoever lets it keep the goals at the higher rate.
    std::optional<sched::FirstToken> first_token;
    bool prefix_at_decoder = false;  // cached tokens need not be sent
    double usable_memory = 0.9;      // fraction of a device's
    std::uint32_t max_sequences = 256, chunk_tokens = 512;
    std::uint32_t simulated_requests = 2000;
    std::uint64_t seed = 1;
};

inline constexpr std::size_t max_sides = 8;

enum class Kind : std::uint8_t { colocated, time_sliced, side_by_side, split, hetero_split };
[[nodiscard]] std::string_view kind_name(Kind kind) noexcept;
[[nodiscard]] bool is_split(Kind kind) noexcept;

struct Group {
    std::size_t side = 0;
    sched::Role role = sched::Role::both;
    std::uint32_t tp = 1, instances = 1;
    std::string dtype;               // of the weights
    double weight_bytes = 0;         // on each device
    sched::WorkerConfig worker;      // of each instance
    std::vector<std::string> hosts;  // that it is on, where that matters to the link
};

// What bringing back the KV of a prompt's cached tokens takes, against computing it again.
struct TierPrice {
    std::string tier;  // "device", "host", "file"; "none": computed again
    double seconds = 0;
    double missing_bytes = 0;  // of the room that what is retained takes; 0: it fits
};

struct Figures {
    double rate_per_s = 0;
    double ttft_p50_s = 0, ttft_p99_s = 0, itl_p50_s = 0, itl_p99_s = 0, e2e_p50_s = 0, e2e_p99_s = 0;
    double tpot_mean_s = 0, ttft_mean_s = 0;
    double ttft_goal_s = 0, tpot_goal_s = 0;  // at the percentile that the goals ask for
    double attainment = 0, prefill_busy = 0, decode_busy = 0, link_busy = 0, batch_mean = 0;
    double queue_s = 0, prefill_s = 0, reserve_s = 0, transfer_s = 0, decode_s = 0;  // means of a request's stages
    double output_tokens_per_s = 0;
    std::uint64_t peak_kv_bytes = 0;
};

struct Candidate {
    Kind kind = Kind::colocated;
    sched::Sharing sharing = sched::Sharing::prompts_first;
    std::vector<Group> groups;  // of a split: those of prefill, then those of decode
    KvFormat wire, resident;
    std::string tier;              // where KV of cached tokens is kept; empty: nothing is cached
    std::vector<TierPrice> tiers;  // what was compared for it
    double retained_bytes = 0;     // on each machine that prefills
    std::string link_source;       // of a split, for people
    sched::Deployment deployment;  // its workers are those of the groups, made when it is played
    bool verified = true;
    std::vector<std::string> assumed;
    std::string inadmissible;  // why it cannot be: memory, a missing path; empty: it can
    double missing_bytes = 0;  // of one device, where memory is why
    std::uint32_t machines = 0;
    std::optional<double> usd_per_hour;

    // Estimates, without chance.
    double capacity_per_s = 0;  // requests, all pools at their best
    std::string binding;        // the resource that bounds it: "prefill compute", "decode memory", "link"
    double prefill_alone_s = 0, ttft_alone_s = 0, itl_alone_s = 0;
    double state_bytes = 0, transfer_alone_s = 0, visible_alone_s = 0, convert_s = 0;  // of a split

    // Played.
    bool played = false;
    double goodput_per_s = 0;        // the highest rate that keeps the goals
    std::optional<Figures> figures;  // at the rate that was asked for, or at 80 % of the goodput
    bool keeps_goals = false;        // at the asked rate; where none was asked: at any rate
    [[nodiscard]] double goodput_per_cost() const noexcept;  // by USD an hour where known, else by machine
    [[nodiscard]] bool computes_cached() const noexcept { return tier == "none"; }
    [[nodiscard]] const Group& first(sched::Role role) const noexcept;  // there is one
};

struct SearchResult {
    std::vector<Candidate> candidates;  // played ones first, the best ones first; then those that cannot be
    std::vector<std::string> notes;     // what was left out, and why
    std::size_t left_out = 0;           // deployments that promise less than others like them
};
// usage: a problem that makes no sense; internal: see sched::simulate.
Result<SearchResult> search(const Problem& problem);

// The figures of one candidate at a rate. requests 0: as many as the problem says.
Result<Figures> play(const Problem& problem, const Candidate& candidate, double rate_per_s, std::uint32_t requests = 0);

}  // namespace hetero::plan
