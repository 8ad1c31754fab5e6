// Many measurements on many texts: each is made once, journalled, and may be divided among runs.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "calib/journal.h"
#include "calib/measure.h"

namespace hetero::calib {

struct Job {
    enum class Kind { drift, floor } kind = Kind::drift;  // floor: f16 against f32 KV; no assignment
    Assignment assignment;
};
struct Outcome {
    kv::DriftFigures figures;
    std::vector<Step> steps;  // of all texts, one after the other
};

// Of every `count` pieces of work a run does the `index`-th. Indices from 0.
struct Slice {
    std::size_t index = 0, count = 1;
};

class Campaign {
public:
    // `program` is part of the key of a journal entry: another version measures anew. `journal` may be null.
    Campaign(Bench& bench, Journal* journal, std::string program)
        : bench_(bench), journal_(journal), program_(std::move(program)) {}

    // Every job on every one of `texts` (indices), `steps` steps each or as many as the text has.
    Result<std::vector<Outcome>> run(const std::vector<Job>& jobs, const std::vector<std::size_t>& texts,
                                     std::uint64_t steps, const std::function<void()>& on_done);
    // Only the slice's share, for the journal.
    Status run_slice(const std::vector<Job>& jobs, const std::vector<std::size_t>& texts, std::uint64_t steps,
                     Slice slice, const std::function<void()>& on_done);

private:
    Result<std::vector<Step>> one(const Job& job, std::size_t text, std::uint64_t steps);
    Bench& bench_;
    Journal* journal_;
    std::string program_;
};

}  // namespace hetero::calib
