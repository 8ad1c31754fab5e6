// One state after the other from mpi-port:FILE, each in a process of its own: whatever a sender does to the one that
// reads from it, the next one finds a receiver.
#pragma once
#include <memory>
#include <string>

#include "common/endpoints.h"

namespace hetero::tool {

struct TurnOptions {
    std::uint64_t count = 1;  // states that have to arrive whole; 0: until the tool is stopped
    [[nodiscard]] bool in_turn() const noexcept { return count != 1; }
};
void add_turn_option(OptionTable& table, TurnOptions& options);

// Forks a process for each turn. `output` is a pattern: "%n" in it is the number of the state, from 1; empty: none.
class Turns {
public:
    static Result<Turns> start(const Tool& tool, const TurnOptions& options, const std::string& input,
                               const std::string& output, TransferOptions& transfer);
    // In the process of a turn: true, with the name of its output. It then goes the way of a single transfer, but calls
    // met() once a sender is there. In the first process: false when all states have arrived, or an error that another
    // turn would not mend (before a sender came, no disk space).
    Result<bool> next(Tool& tool, std::string& output);
    void met() noexcept { *met_ = true; }

private:
    Turns() = default;
    std::shared_ptr<const void> service_;
    std::string pattern_;
    std::uint64_t count_ = 0;
    bool* met_ = nullptr;  // shared with the process of a turn
};

}  // namespace hetero::tool
