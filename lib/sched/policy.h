// What a worker does next: the decisions, apart from time and from what carries them out.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace hetero::sched {

enum class Order : std::uint8_t { first_come, shortest_first };

// How one worker shares its time between prompts and tokens, where it has both stages.
enum class Sharing : std::uint8_t {
    prompts_first,  // whole prompts, at once; decoding stands still meanwhile
    chunked,        // every step takes the running sequences along with a piece of a prompt
    time_sliced     // turns of `quantum_s`: prompts, then tokens
};
[[nodiscard]] std::string_view sharing_name(Sharing sharing) noexcept;

struct Policy {
    Order order = Order::first_come;
    Sharing sharing = Sharing::prompts_first;
    std::uint32_t max_batch_tokens = 8192;  // of prompts processed together; a longer prompt is taken alone
    std::uint32_t chunk_tokens = 512;       // of a chunked step, running sequences included
    double quantum_s = 0.05;                // of a turn where time is sliced
    std::uint32_t max_sequences = 256;      // that decode at the same time
};

// What there is to do on a worker.
struct Backlog {
    bool prompts = false;         // one that may start now
    std::uint32_t sequences = 0;  // that decode
    bool turn_is_over = false;    // of time slicing
    bool prompts_turn = false;
};
struct Choice {
    bool prompts = false, decode = false;
    std::uint32_t prompt_tokens = 0;  // at most
    bool whole_prompts = true;
};
// nullopt: nothing to do.
[[nodiscard]] std::optional<Choice> choose(const Policy& policy, const Backlog& backlog) noexcept;

}  // namespace hetero::sched
