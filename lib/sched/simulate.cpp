#include "sched/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>

namespace hetero::sched {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::uint32_t nobody = std::numeric_limits<std::uint32_t>::max();

struct Event {
    double at_s;
    std::uint64_t number;  // of equal times the one made first goes first
    bool is_transfer;
    std::uint32_t which;  // request or worker
    bool operator>(const Event& other) const noexcept {
        return at_s != other.at_s ? at_s > other.at_s : number > other.number;
    }
};

struct Station {
    explicit Station(const WorkerConfig& config) : worker(config) {}
    Worker worker;
    double step_began_s = 0, last_token_s = 0;  // of the step under way; end of the last one that decoded
    double busy_s = 0, link_free_s = 0, link_busy_s = 0;
    std::vector<RequestId> fresh;  // sequences that no step has continued yet
    std::size_t fresh_in_step = 0;
};

class Simulation {
public:
    Simulation(const Deployment& deployment, const std::vector<Request>& requests, const Targets& targets)
        : deployment_(deployment),
          requests_(requests),
          targets_(targets),
          timelines_(requests.size()),
          prefiller_(requests.size(), nobody),
          decoder_(requests.size(), nobody) {
        for (const WorkerConfig& config : deployment.workers) stations_.emplace_back(config);
        outcome_.requests = requests.size();
        enough_good_ = targets.decide > 0 ? targets.decide * static_cast<double>(requests.size()) : infinite;
        for (auto* list : {&outcome_.ttft_s, &outcome_.tpot_s, &outcome_.e2e_s}) list->reserve(requests.size());
    }

    Result<Outcome> run(bool keep_timelines) {
        std::size_t next = 0;
        while (next < requests_.size() || !events_.empty()) {
            if (is_decided()) {
                summarize();
                return std::move(outcome_);
            }
            if (next < requests_.size() && (events_.empty() || requests_[next].arrival_s <= events_.top().at_s)) {
                now_s_ = requests_[next].arrival_s;
                arrive(static_cast<RequestId>(next++));
                continue;
            }
            const Event event = events_.top();
            events_.pop();
            now_s_ = event.at_s;
            if (event.is_transfer) {
                arrived(event.which);
            } else {
                stepped(event.which);
            }
        }
        HETERO_CHECK(check_end());
        summarize();
        if (keep_timelines) outcome_.timelines = std::move(timelines_);
        return std::move(outcome_);
    }

private:
    void enter(RequestId id, Phase phase) {
        if (!may_follow(timelines_[id].phase, phase)) ++impossible_;
        timelines_[id].phase = phase;
    }
    [[nodiscard]] bool is_decided() const {
        if (enough_good_ == infinite) return false;
        const auto lost = static_cast<double>(outcome_.finished + outcome_.refused - outcome_.good);
        return static_cast<double>(outcome_.good) >= enough_good_ ||
               static_cast<double>(outcome_.requests) - lost < enough_good_;
    }
    void refuse(RequestId id) {
        enter(id, Phase::refused);
        ++outcome_.refused;
    }
    void push(double at_s, bool is_transfer, std::uint32_t which) {
        events_.push({at_s, ++events_made_, is_transfer, which});
    }

    // To the worker that is done with it first, about.
    void arrive(RequestId id) {
        const Request& request = requests_[id];
        timelines_[id].arrival_s = now_s_;
        std::uint32_t best = nobody;
        double least_s = infinite;
        for (std::uint32_t w = 0; w < stations_.size(); ++w) {
            const Worker& worker = stations_[w].worker;
            if (worker.config().role == Role::decode || !worker.could_ever_hold(request, 0)) continue;
            const double load_s = worker.load_s(request, now_s_);
            if (load_s >= least_s) continue;
            least_s = load_s;
            best = w;
        }
        if (best == nobody || !stations_[best].worker.enqueue(id, request)) return refuse(id);
        prefiller_[id] = best;
        start(best);
    }

    void start(std::uint32_t w) {
        Station& station = stations_[w];
        if (station.worker.busy()) return;
        const auto seconds = station.worker.begin(now_s_);
        if (!seconds) return;
        station.step_began_s = now_s_;
        station.busy_s += *seconds;
        station.fresh_in_step = station.fresh.size();
        push(now_s_ + *seconds, false, w);
        if (deployment_.link.overlapped && station.worker.config().role == Role::prefill) reserve_early(station.worker);
    }

    // Layers can only be sent while others are computed where the decoder has reserved before. Those that wait for
    // memory already go first.
    void reserve_early(const Worker& prefiller) {
        for (const RequestId id : prefiller.started()) {
            const Request& request = requests_[id];
            const bool ends_here = deployment_.first_token == FirstToken::prefill && request.output_tokens == 1;
            if (!waiting_.empty() || ends_here) continue;
            const Room room = room_for(request);
            if (room.best != nobody && stations_[room.best].worker.reserve(id, request, room.staging))
                decoder_[id] = room.best;
        }
    }

    void stepped(std::uint32_t w) {
        Station& station = stations_[w];
        const StepOutcome& step = station.worker.end();
        for (const RequestId id : step.started) {
            enter(id, Phase::prefilling);
            timelines_[id].prefill_start_s = station.step_began_s;
        }
        if (step.decoded) count_tokens(station, step.sequences);
        for (const RequestId id : step.finished) finish(id);
        for (const RequestId id : step.prefilled) prefilled(w, id);
        if (!waiting_.empty()) hand_over();
        start(w);
    }

    void count_tokens(Station& station, std::uint32_t sequences) {
        const std::size_t fresh = station.fresh_in_step;
        outcome_.itl.add(now_s_ - station.last_token_s, sequences - fresh);
        for (std::size_t i = 0; i < fresh; ++i) {
            outcome_.itl.add(now_s_ - timelines_[station.fresh[i]].first_token_s);
        }
        station.fresh.erase(station.fresh.begin(), station.fresh.begin() + static_cast<std::ptrdiff_t>(fresh));
        station.last_token_s = now_s_;
        outcome_.output_tokens += sequences;
        ++outcome_.steps;
    }

    void prefilled(std::uint32_t w, RequestId id) {
        Timeline& timeline = timelines_[id];
        timeline.prefill_end_s = timeline.reserved_s = timeline.decode_start_s = now_s_;
        const bool split = stations_[w].worker.config().role == Role::prefill;
        if (!split || deployment_.first_token == FirstToken::prefill) {
            timeline.first_token_s = now_s_;
            ++outcome_.output_tokens;
            if (requests_[id].output_tokens == 1) {
                stations_[w].worker.release(id);
                return finish(id);
            }
        }
        if (!split) return decode(w, id);
        enter(id, Phase::handing_over);
        if (decoder_[id] != nobody) return send(id, timeline.prefill_end_s - timeline.prefill_start_s);
        waiting_.push_back(id);
    }

    void decode(std::uint32_t w, RequestId id) {
        enter(id, Phase::decoding);
        stations_[w].fresh.push_back(id);
        stations_[w].worker.start_decode(id, requests_[id].prompt_tokens, requests_[id].output_tokens - 1);
    }

    struct Room {
        std::uint32_t best = nobody;  // a decoder that has it now
        bool ever = false;            // one could hold it, now or later
        std::uint64_t staging = 0;    // bytes beside the state while it arrives
    };
    [[nodiscard]] Room room_for(const Request& request) const {
        Room out;
        out.staging =
            static_cast<std::uint64_t>(deployment_.link.staging_fraction * static_cast<double>(wire_bytes(request)));
        double least_s = infinite;
        for (std::uint32_t w = 0; w < stations_.size(); ++w) {
            const Worker& worker = stations_[w].worker;
            if (worker.config().role != Role::decode || !worker.could_ever_hold(request, out.staging)) continue;
            out.ever = true;
            // Those that are on their way count, and its port takes one after the other.
            const double step_s = worker.config().decode.seconds(worker.ledger().owners() + 1,
                                                                 worker.context_tokens() + request.prompt_tokens);
            const double load_s = step_s + std::max(0.0, stations_[w].link_free_s - now_s_);
            if (load_s >= least_s || !worker.has_room(request, out.staging)) continue;
            least_s = load_s;
            out.best = w;
        }
        return out;
    }

    // A decoder reserves before anything is sent; in order of arrival, so that none waits for ever.
    void hand_over() {
        while (!waiting_.empty()) {
            const RequestId id = waiting_.front();
            const Request& request = requests_[id];
            const Room room = room_for(request);
            if (room.best == nobody && room.ever) return;
            waiting_.pop_front();
            if (room.best == nobody || !stations_[room.best].worker.reserve(id, request, room.staging)) {
                stations_[prefiller_[id]].worker.release(id);
                refuse(id);
                continue;
            }
            decoder_[id] = room.best;
            send(id, 0);
        }
    }

    [[nodiscard]] double sent_tokens(const Request& request) const {
        return request.prompt_tokens - deployment_.link.resident_prefix * request.cached_tokens;
    }
    [[nodiscard]] std::uint64_t wire_bytes(const Request& request) const {
        return static_cast<std::uint64_t>(std::ceil(deployment_.link.kv.bytes(sent_tokens(request))));
    }

    // `prefill_s`: of its prefill, what passed after the decoder had reserved.
    void send(RequestId id, double prefill_s) {
        enter(id, Phase::in_flight);
        const std::uint64_t bytes = wire_bytes(requests_[id]);
        Timeline& timeline = timelines_[id];
        Station &from = stations_[prefiller_[id]], &to = stations_[decoder_[id]];
        timeline.reserved_s = now_s_;
        const LinkTiming& link = deployment_.link;
        const Transfer transfer = link.transfer(static_cast<double>(bytes), sent_tokens(requests_[id]), prefill_s);
        const double begin_s =
            std::max({from.link_free_s, to.link_free_s, now_s_ - (transfer.whole_s - transfer.visible_s)});
        for (Station* end : {&from, &to}) {
            end->link_free_s = begin_s + transfer.occupied_s;
            end->link_busy_s += transfer.occupied_s;
        }
        outcome_.link_bytes += bytes;
        push(std::max(now_s_ + transfer.visible_s, begin_s + transfer.whole_s), true, id);
    }

    void arrived(RequestId id) {
        Timeline& timeline = timelines_[id];
        timeline.decode_start_s = now_s_;
        const std::uint32_t from = prefiller_[id], to = decoder_[id];
        stations_[from].worker.release(id);
        stations_[to].worker.end_staging(id, requests_[id]);
        bool ended = false;
        if (deployment_.first_token == FirstToken::decode) {
            timeline.first_token_s = now_s_;
            ++outcome_.output_tokens;
            ended = requests_[id].output_tokens == 1;
        }
        if (ended) {
            stations_[to].worker.release(id);
            finish(id);
        } else {
            decode(to, id);
        }
        if (!waiting_.empty()) hand_over();
        start(from);
        start(to);
    }

    void finish(RequestId id) {
        enter(id, Phase::finished);
        Timeline& timeline = timelines_[id];
        timeline.end_s = now_s_;
        ++outcome_.finished;
        const double ttft_s = timeline.first_token_s - timeline.arrival_s;
        const std::uint32_t output = requests_[id].output_tokens;
        const double tpot_s = output > 1 ? (now_s_ - timeline.first_token_s) / (output - 1) : 0;
        outcome_.ttft_s.push_back(ttft_s);
        outcome_.e2e_s.push_back(now_s_ - timeline.arrival_s);
        if (output > 1) outcome_.tpot_s.push_back(tpot_s);
        if (ttft_s <= targets_.ttft_s && tpot_s <= targets_.tpot_s) ++outcome_.good;
        outcome_.queue_mean_s += timeline.prefill_start_s - timeline.arrival_s;
        outcome_.prefill_mean_s += timeline.prefill_end_s - timeline.prefill_start_s;
        outcome_.reserve_mean_s += timeline.reserved_s - timeline.prefill_end_s;
        outcome_.transfer_mean_s += timeline.decode_start_s - timeline.reserved_s;
        outcome_.decode_mean_s += timeline.end_s - timeline.decode_start_s;
    }

    // Every request has ended, and nobody holds memory.
    [[nodiscard]] Status check_end() const {
        if (impossible_ != 0) return fail(Errc::internal, "simulation: {} impossible transitions", impossible_);
        if (outcome_.finished + outcome_.refused != outcome_.requests) {
            return fail(Errc::internal, "simulation: {} of {} requests never ended",
                        outcome_.requests - outcome_.finished - outcome_.refused, outcome_.requests);
        }
        for (const Station& station : stations_) {
            if (station.worker.ledger().used_bytes() != 0 || station.worker.ledger().owners() != 0)
                return fail(Errc::internal, "simulation: a worker ends with {} bytes of KV",
                            station.worker.ledger().used_bytes());
        }
        return {};
    }

    void summarize() {
        if (requests_.empty()) return;
        outcome_.duration_s = now_s_ - requests_.front().arrival_s;
        const auto finished = static_cast<double>(std::max<std::uint64_t>(outcome_.finished, 1));
        for (double* sum : {&outcome_.queue_mean_s, &outcome_.prefill_mean_s, &outcome_.reserve_mean_s,
                            &outcome_.transfer_mean_s, &outcome_.decode_mean_s}) {
            *sum /= finished;
        }
        double prefill_s = 0, decode_s = 0, sending_s = 0, receiving_s = 0;
        std::size_t prefill = 0, decode = 0, senders = 0, receivers = 0;
        for (const Station& station : stations_) {
            const Role role = station.worker.config().role;
            if (role != Role::decode) prefill_s += station.busy_s, ++prefill;
            if (role != Role::prefill) decode_s += station.busy_s, ++decode;
            if (role == Role::prefill) sending_s += station.link_busy_s, ++senders;
            if (role == Role::decode) receiving_s += station.link_busy_s, ++receivers;
            outcome_.peak_kv_bytes = std::max(outcome_.peak_kv_bytes, station.worker.ledger().peak_bytes());
        }
        const auto fraction = [this](double busy_s, std::size_t n) {
            return n > 0 && outcome_.duration_s > 0 ? busy_s / (static_cast<double>(n) * outcome_.duration_s) : 0;
        };
        outcome_.prefill_busy = fraction(prefill_s, prefill);
        outcome_.decode_busy = fraction(decode_s, decode);
        outcome_.link_busy = std::max(fraction(sending_s, senders), fraction(receiving_s, receivers));
        if (outcome_.steps > 0)
            outcome_.batch_mean = static_cast<double>(outcome_.itl.count()) / static_cast<double>(outcome_.steps);
    }

    const Deployment& deployment_;
    const std::vector<Request>& requests_;
    Targets targets_;
    double enough_good_ = infinite;
    std::vector<Timeline> timelines_;
    std::vector<std::uint32_t> prefiller_, decoder_;  // [request] worker
    std::vector<Station> stations_;
    std::deque<RequestId> waiting_;  // prefilled, no decoder has room
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::uint64_t events_made_ = 0, impossible_ = 0;
    double now_s_ = 0;
    Outcome outcome_;
};

Status check_deployment(const Deployment& deployment) {
    std::size_t both = 0, prefill = 0, decode = 0;
    for (const WorkerConfig& config : deployment.workers) {
        both += config.role == Role::both ? 1 : 0;
        prefill += config.role == Role::prefill ? 1 : 0;
        decode += config.role == Role::decode ? 1 : 0;
        if (config.decode.weights_s.empty() || config.policy.max_sequences == 0 || config.policy.chunk_tokens == 0 ||
            config.policy.max_batch_tokens == 0)
            return fail(Errc::usage, "simulation: a worker without batch, chunk or weights");
    }
    if (both == 0 && (prefill == 0 || decode == 0)) return fail(Errc::usage, "simulation: a stage has no worker");
    if (prefill != 0 && decode == 0) return fail(Errc::usage, "simulation: nobody decodes what is prefilled");
    if (prefill != 0 && !(deployment.link.bytes_per_s > 0))
        return fail(Errc::usage, "simulation: the link carries nothing");
    return {};
}

Status check_requests(const std::vector<Request>& requests) {
    if (requests.size() >= nobody) return fail(Errc::usage, "simulation: {} requests are too many", requests.size());
    double last_s = -infinite;
    for (const Request& request : requests) {
        if (!(request.arrival_s >= last_s) || request.arrival_s == infinite)
            return fail(Errc::usage, "simulation: requests must be in order of arrival");
        if (request.prompt_tokens <= request.cached_tokens || request.output_tokens == 0)
            return fail(Errc::usage, "simulation: a request of {} tokens, {} of them cached, and {} to come",
                        request.prompt_tokens, request.cached_tokens, request.output_tokens);
        last_s = request.arrival_s;
    }
    return {};
}

}  // namespace

Result<Outcome> simulate(const Deployment& deployment, const std::vector<Request>& requests, const Targets& targets,
                         bool keep_timelines) {
    HETERO_CHECK(check_deployment(deployment));
    HETERO_CHECK(check_requests(requests));
    return Simulation(deployment, requests, targets).run(keep_timelines);
}

}  // namespace hetero::sched
