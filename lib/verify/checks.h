// Bounds on how far two states may be apart, and what was measured held against them. NaN passes no bound.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "kv/compare.h"
#include "verify/measure.h"

namespace hetero::verify {

enum class Gate { p99, max };

// None: not asked for.
struct Bounds {
    std::optional<double> epsilon;  // of E_p, or of the stored values (`elements`)
    bool elements = false;
    Gate gate = Gate::p99;             // what of them is held against epsilon
    std::optional<double> kl, kl_max;  // mean and largest KL, nats. kl_max: epsilon where epsilon is of E_p
    std::optional<double> top1;        // least fraction of steps with the same most likely token
    std::optional<double> logit;       // largest |logit' - logit|
    std::optional<double> perplexity;  // largest |perplexity' / perplexity - 1|
    std::optional<double> attention;   // largest relative L2 of a layer
    std::optional<double> elem;        // largest |x' - x| of the stored values
    std::optional<double> rms;         // largest relative RMS of a part
    [[nodiscard]] bool any() const noexcept { return epsilon || elem || rms || need_model(); }
    [[nodiscard]] bool need_model() const noexcept { return kl || kl_max || top1 || logit || perplexity || attention; }
};

// One bound, and what it was held against.
struct Check {
    std::string option;  // "epsilon": as on the command line
    std::string figure;  // "p99 |dp|"
    double value = 0, bound = 0;
    bool at_least = false;          // the value must reach the bound; else it must not exceed it
    std::uint64_t n = 0;            // values that it rests on
    Interval interval;              // of the value; NaN where there is none
    std::optional<double> control;  // the same figure of the fp16 control
    std::string where;              // the worst place; may be empty
    [[nodiscard]] bool passed() const noexcept { return at_least ? value >= bound : value <= bound; }
    // False: the control itself does not pass, so the bound says nothing about the states.
    [[nodiscard]] bool resolved() const noexcept {
        return !control || (at_least ? bound <= *control : bound >= *control);
    }
};

// The value that a gate looks at: the 99th percentile, or the maximum, which stands in for it below 256 values.
struct Gated {
    Gate gate = Gate::max;
    bool max_stands_in = false;
    std::uint64_t n = 0;  // values
    double value = 0;
    [[nodiscard]] const char* name() const noexcept { return gate == Gate::max ? "max" : "p99"; }
};
[[nodiscard]] Gated apply(Gate gate, std::uint64_t n, double p99, double max);
[[nodiscard]] Gated apply(Gate gate, const Summary& summary);            // of E_p
[[nodiscard]] Gated apply(Gate gate, const kv::Comparison& comparison);  // of the stored values

struct Measured {
    const kv::Header* reference = nullptr;
    const kv::Comparison* comparison = nullptr;
    const Report* report = nullptr;    // null: nothing was decoded
    const Control* control = nullptr;  // null: not measured
    std::optional<double> floor;       // a stated control of E_p
};
// In the order of importance. Figures of stored values have no control to pass: nothing is computed between them.
[[nodiscard]] std::vector<Check> hold(const Bounds& bounds, const Measured& measured);

// The first step whose most likely tokens differ; null where there is none.
[[nodiscard]] const Step* first_divergence(const Report& report);
// The largest of an attention report; null where it is empty.
[[nodiscard]] const AttentionError* worst_attention(const Report& report);
// The part with the largest relative RMS; null where there are none.
[[nodiscard]] const kv::PartDifference* worst_part(const kv::Comparison& comparison);
// "sequence 0, step 17".
[[nodiscard]] std::string place_of(const Step& step, const kv::Header& reference);
[[nodiscard]] std::string place_of(const kv::Location& place);
[[nodiscard]] std::string place_of(const kv::PartDifference& part);

// Pinsker's inequality, E_p <= TV <= sqrt(KL / 2): where no KL exceeds 2 epsilon^2, no E_p exceeds epsilon.
struct Certificate {
    double kl_max = 0, bound = 0;
    [[nodiscard]] bool holds() const noexcept { return kl_max <= bound; }
};
[[nodiscard]] Certificate certificate(const Summary& summary, double epsilon);

}  // namespace hetero::verify
