// Says in words what is wrong with a state that differs from its reference by more than its codec explains: each known
// fault is undone, and where that makes the error collapse, it has been found. A fault is a line in the table of
// faults.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/compare.h"
#include "kv/stream.h"
#include "model/model.h"

namespace hetero::verify {

// RoPE of each layer [n_layers]: of the model, or as far as a state alone says it (whole heads, unscaled). No
// frequencies: not known, and no fault of RoPE is looked for.
struct LayerRope {
    std::vector<double> frequencies;  // [pair], radians per position
    double factor = 1;                // of the rotated values
    double theta = 0;                 // base, for messages
};
[[nodiscard]] std::vector<LayerRope> ropes_of(const model::Model& model);
[[nodiscard]] std::vector<LayerRope> ropes_of(const kv::Identity& identity);

struct FaultPlace {
    std::string sequence;
    std::uint32_t layer = 0;
    kv::LayerKind kind = kv::LayerKind::gqa;
    kv::PartId part = kv::PartId::k;
    double before = 0, after = 0;  // relative L2 of the error, as it is and with the fault undone
};

struct Fault {
    std::string name;    // "heads swapped"
    std::string detail;  // "0 and 2"; may be empty
    std::vector<FaultPlace> places;
};

struct Diagnosis {
    std::vector<Fault> faults;            // in the order in which they were met
    std::vector<FaultPlace> unexplained;  // large errors that no known fault explains; after = before
};

class Diagnoser {
public:
    // Of the states that are compared; they outlive the object.
    Diagnoser(const kv::Header& reference, const kv::Header& candidate, std::vector<LayerRope> ropes);

    // Looks at the parts whose error is more than three times what the candidate's codec makes of the reference, the
    // first ones of them: a fault is seldom in one layer alone. For kv::compare_states.
    Status look(const kv::ComparedLayer& layer);
    [[nodiscard]] const Diagnosis& diagnosis() const noexcept { return diagnosis_; }

private:
    const kv::Header &reference_, &candidate_;
    std::vector<LayerRope> ropes_;
    Diagnosis diagnosis_;
    std::size_t looked_ = 0;  // parts
    std::uint64_t encoded_values_ = 0, looked_values_ = 0;
};

}  // namespace hetero::verify
