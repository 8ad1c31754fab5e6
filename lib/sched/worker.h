// One instance of a model as a state machine: what it holds, which step it takes next, and how much it has to do. It
// has no clock: the caller says when a step begins, is told how long it takes, and says when it is over. The one that
// serves real requests and the one that plays them on a virtual clock drive the same object.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <string_view>
#include <utility>
#include <vector>

#include "sched/kv_size.h"
#include "sched/ledger.h"
#include "sched/policy.h"
#include "sched/request.h"
#include "sched/timing.h"

namespace hetero::sched {

enum class Role : std::uint8_t { both, prefill, decode };
[[nodiscard]] std::string_view role_name(Role role) noexcept;  // "both"

struct WorkerConfig {
    Role role = Role::both;
    Policy policy;
    PrefillTiming prefill;
    DecodeTiming decode;
    KvSize kv;  // as it is kept here
    std::uint64_t kv_capacity_bytes = 0;
    // Bringing the KV of a prompt's cached tokens from where it is retained, before the rest of the prompt is computed.
    double fetch_s_per_token = 0;
};

// What a step brought about.
struct StepOutcome {
    bool decoded = false;              // one token more for each sequence that was there when it began
    std::uint32_t sequences = 0;       // those
    std::vector<RequestId> started;    // prefill of these began with this step
    std::vector<RequestId> prefilled;  // their KV is complete
    std::vector<RequestId> finished;   // their last token is out
};

class Worker {
public:
    explicit Worker(WorkerConfig config);

    // A prompt to prefill. False where it will never fit: nothing is kept then.
    bool enqueue(RequestId id, const Request& request);
    // A sequence to continue: `steps` tokens more on `context_tokens`. Its memory is reserved: by enqueue where both
    // stages are here, else by reserve().
    void start_decode(RequestId id, std::uint32_t context_tokens, std::uint32_t steps);
    // Memory of a sequence with its output, and for the transfer `staging_bytes` beside it. False: not now.
    bool reserve(RequestId id, const Request& request, std::uint64_t staging_bytes);
    [[nodiscard]] bool has_room(const Request& request, std::uint64_t staging_bytes) const;
    void end_staging(RequestId id, const Request& request);
    // With nothing else here; its output counts where this worker decodes.
    [[nodiscard]] bool could_ever_hold(const Request& request, std::uint64_t staging_bytes) const;
    // KV that was sent, or is not wanted: its memory is free again.
    void release(RequestId id) { ledger_.release(id); }

    // Seconds that the next step takes; nullopt: nothing to do. Then end() says what came of it; not both twice.
    std::optional<double> begin(double now_s);
    const StepOutcome& end();

    [[nodiscard]] bool busy() const noexcept { return busy_; }
    // Prompts whose prefill began with the step under way.
    [[nodiscard]] const std::vector<RequestId>& started() const noexcept { return outcome_.started; }
    // Seconds until the prompt of a request that comes at `now_s` would be done here, about: the rest of the step under
    // way, prompts that wait, its own, and sequences that decode meanwhile. The request goes where this is least.
    [[nodiscard]] double load_s(const Request& request, double now_s) const noexcept;
    [[nodiscard]] double context_tokens() const noexcept { return context_tokens_; }
    [[nodiscard]] const Ledger& ledger() const noexcept { return ledger_; }
    [[nodiscard]] const WorkerConfig& config() const noexcept { return config_; }

private:
    struct Prompt {
        RequestId id;
        std::uint32_t prompt_tokens, done_tokens;
        std::uint64_t kv_bytes;
        bool admitted = false, started = false;  // holds its memory; some of it is done
    };
    struct Leaving {  // a sequence whose last step is number `step`
        std::uint64_t step;
        RequestId id;
        double context_tokens, growth;
        bool operator>(const Leaving& other) const noexcept {
            return step != other.step ? step > other.step : id > other.id;
        }
    };
    struct Joining {  // the next step is its first
        RequestId id;
        double first, last;  // context at its first step and after its last
        std::uint32_t steps;
    };
    void join(const Joining& sequence);
    [[nodiscard]] std::uint64_t bytes_of(const Request& request) const noexcept;
    [[nodiscard]] double fetch_s(const Prompt& prompt) const noexcept;  // 0 once it has started
    [[nodiscard]] double left_s(const Prompt& prompt) const noexcept;   // of its prefill
    void order_queue();
    bool admit(Prompt& prompt);
    double take_prompts(const Choice& choice, bool decode);

    WorkerConfig config_;
    Ledger ledger_;
    std::deque<Prompt> queue_;
    std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving_;
    std::vector<Joining> joining_;  // while a step is under way
    std::size_t sequences_ = 0;
    double context_tokens_ = 0, growth_ = 0;
    double backlog_s_ = 0, step_ends_s_ = 0;  // what is left of the prompts in the queue; of the step under way
    std::uint64_t steps_ = 0;
    bool busy_ = false, prompts_turn_ = false;
    double turn_began_s_ = 0;
    StepOutcome outcome_;
};

}  // namespace hetero::sched
