#include "sched/request.h"

namespace hetero::sched {

std::string_view phase_name(Phase phase) noexcept {
    switch (phase) {
        case Phase::queued:
            return "queued";
        case Phase::prefilling:
            return "prefilling";
        case Phase::handing_over:
            return "handing_over";
        case Phase::in_flight:
            return "in_flight";
        case Phase::decoding:
            return "decoding";
        case Phase::finished:
            return "finished";
        case Phase::refused:
            return "refused";
    }
    return "?";
}

bool may_follow(Phase from, Phase to) noexcept {
    switch (from) {
        case Phase::queued:
            return to == Phase::prefilling || to == Phase::refused;
        case Phase::prefilling:  // where one worker has both stages, nothing is handed over
            return to == Phase::handing_over || to == Phase::decoding || to == Phase::finished;
        case Phase::handing_over:
            return to == Phase::in_flight || to == Phase::refused;
        case Phase::in_flight:
            return to == Phase::decoding || to == Phase::finished;
        case Phase::decoding:
            return to == Phase::finished;
        case Phase::finished:
        case Phase::refused:
            return false;
    }
    return false;
}

}  // namespace hetero::sched
