#include "sched/worker.h"

#include <algorithm>
#include <cmath>

namespace hetero::sched {
namespace {

double pairs(double first, double last) { return last * last - first * first; }

}  // namespace

std::string_view role_name(Role role) noexcept {
    switch (role) {
        case Role::both:
            return "both";
        case Role::prefill:
            return "prefill";
        case Role::decode:
            return "decode";
    }
    return "?";
}

Worker::Worker(WorkerConfig config) : config_(std::move(config)), ledger_(config_.kv_capacity_bytes) {}

std::uint64_t Worker::bytes_of(const Request& request) const noexcept {
    double tokens = request.prompt_tokens;
    if (config_.role != Role::prefill) tokens += request.output_tokens;
    return static_cast<std::uint64_t>(std::ceil(config_.kv.bytes(tokens)));
}

double Worker::fetch_s(const Prompt& prompt) const noexcept {
    return prompt.started ? 0 : prompt.done_tokens * config_.fetch_s_per_token;
}

double Worker::left_s(const Prompt& prompt) const noexcept {
    if (prompt.done_tokens == prompt.prompt_tokens) return 0;
    return fetch_s(prompt) + config_.prefill.seconds(prompt.prompt_tokens - prompt.done_tokens,
                                                     pairs(prompt.done_tokens, prompt.prompt_tokens));
}

double Worker::load_s(const Request& request, double now_s) const noexcept {
    const double step_s = busy_ ? std::max(0.0, step_ends_s_ - now_s) : 0;
    const std::size_t sequences = sequences_ + joining_.size();
    const double decode_s =
        sequences > 0 ? static_cast<double>(sequences) * config_.decode.seconds(sequences, context_tokens_) : 0;
    return step_s + backlog_s_ + left_s({0, request.prompt_tokens, request.cached_tokens, 0}) + decode_s;
}

bool Worker::enqueue(RequestId id, const Request& request) {
    if (!could_ever_hold(request, 0)) return false;
    queue_.push_back({id, request.prompt_tokens, request.cached_tokens, bytes_of(request)});
    backlog_s_ += left_s(queue_.back());
    return true;
}

void Worker::start_decode(RequestId id, std::uint32_t context_tokens, std::uint32_t steps) {
    const Joining sequence{id, config_.kv.context(context_tokens), config_.kv.context(context_tokens + steps), steps};
    if (busy_) {
        joining_.push_back(sequence);
    } else {
        join(sequence);
    }
}

void Worker::join(const Joining& sequence) {
    const double growth = sequence.steps > 0 ? (sequence.last - sequence.first) / sequence.steps : 0;
    ++sequences_;
    context_tokens_ += sequence.first;
    growth_ += growth;
    leaving_.push({steps_ + sequence.steps, sequence.id, sequence.last, growth});
}

bool Worker::could_ever_hold(const Request& request, std::uint64_t staging_bytes) const {
    const std::uint64_t bytes = bytes_of(request);
    return bytes <= ledger_.capacity_bytes() && staging_bytes <= ledger_.capacity_bytes() - bytes;
}

bool Worker::has_room(const Request& request, std::uint64_t staging_bytes) const {
    return ledger_.owners() < config_.policy.max_sequences &&
           bytes_of(request) + staging_bytes <= ledger_.capacity_bytes() - ledger_.used_bytes();
}

bool Worker::reserve(RequestId id, const Request& request, std::uint64_t staging_bytes) {
    return has_room(request, staging_bytes) && ledger_.reserve(id, bytes_of(request) + staging_bytes);
}

void Worker::end_staging(RequestId id, const Request& request) { ledger_.shrink(id, bytes_of(request)); }

bool Worker::admit(Prompt& prompt) {
    if (prompt.admitted) return true;
    if (config_.role == Role::both && ledger_.owners() >= config_.policy.max_sequences) return false;
    prompt.admitted = ledger_.reserve(prompt.id, prompt.kv_bytes);
    return prompt.admitted;
}

// The shortest prompt that has not been started, to the front of those that have not.
void Worker::order_queue() {
    if (config_.policy.order == Order::first_come || queue_.size() < 2 || queue_.front().admitted) return;
    const auto shortest = std::min_element(queue_.begin(), queue_.end(), [](const Prompt& a, const Prompt& b) {
        return a.prompt_tokens - a.done_tokens < b.prompt_tokens - b.done_tokens;
    });
    std::swap(*shortest, queue_.front());
}

// Prompts of this step, from the front of the queue. Returns its seconds.
double Worker::take_prompts(const Choice& choice, bool decode) {
    double tokens = 0, attention_pairs = 0, fetches_s = 0;
    std::uint32_t room = choice.prompt_tokens;
    while (!queue_.empty() && room > 0) {
        order_queue();
        Prompt& prompt = queue_.front();
        const std::uint32_t left = prompt.prompt_tokens - prompt.done_tokens;
        if ((choice.whole_prompts && left > room && tokens > 0) || !admit(prompt)) break;
        const double left_before_s = left_s(prompt);
        if (!prompt.started) {
            fetches_s += fetch_s(prompt);
            prompt.started = true;
            outcome_.started.push_back(prompt.id);
        }
        const std::uint32_t piece = choice.whole_prompts ? left : std::min(left, room);
        tokens += piece;
        attention_pairs += pairs(prompt.done_tokens, prompt.done_tokens + piece);
        prompt.done_tokens += piece;
        room -= std::min(room, piece);
        backlog_s_ -= left_before_s - left_s(prompt);
        if (prompt.done_tokens < prompt.prompt_tokens) break;
        outcome_.prefilled.push_back(prompt.id);
        queue_.pop_front();
    }
    if (queue_.empty()) backlog_s_ = 0;  // what rounding left
    double seconds = fetches_s + config_.prefill.seconds(tokens, attention_pairs);
    if (decode) seconds += config_.decode.seconds_beside_prefill(sequences_, context_tokens_);
    return seconds;
}

std::optional<double> Worker::begin(double now_s) {
    outcome_.decoded = false;
    outcome_.sequences = 0;
    outcome_.started.clear();
    outcome_.prefilled.clear();
    outcome_.finished.clear();
    order_queue();
    Backlog backlog;
    backlog.prompts = !queue_.empty() && admit(queue_.front());
    backlog.sequences = static_cast<std::uint32_t>(sequences_);
    backlog.prompts_turn = prompts_turn_;
    backlog.turn_is_over = now_s - turn_began_s_ >= config_.policy.quantum_s;
    const auto choice = choose(config_.policy, backlog);
    if (!choice) return std::nullopt;
    if (choice->prompts != prompts_turn_ && config_.policy.sharing == Sharing::time_sliced) {
        prompts_turn_ = choice->prompts;
        turn_began_s_ = now_s;
    }
    busy_ = true;
    double seconds = 0;
    if (choice->prompts) {
        seconds = take_prompts(*choice, choice->decode);
    } else {
        seconds = config_.decode.seconds(sequences_, context_tokens_);
    }
    step_ends_s_ = now_s + seconds;
    outcome_.decoded = choice->decode;
    outcome_.sequences = choice->decode ? static_cast<std::uint32_t>(sequences_) : 0;
    return seconds;
}

const StepOutcome& Worker::end() {
    if (outcome_.decoded) {
        ++steps_;
        context_tokens_ += growth_;
        while (!leaving_.empty() && leaving_.top().step <= steps_) {
            const Leaving& gone = leaving_.top();
            outcome_.finished.push_back(gone.id);
            context_tokens_ -= gone.context_tokens;
            growth_ -= gone.growth;
            --sequences_;
            ledger_.release(gone.id);
            leaving_.pop();
        }
        if (sequences_ == 0) context_tokens_ = growth_ = 0;  // what rounding left
    }
    busy_ = false;
    for (const Joining& sequence : joining_) join(sequence);
    joining_.clear();
    return outcome_;
}

}  // namespace hetero::sched
