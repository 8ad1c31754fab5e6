// Carries out a plan: reads, converts and writes tensor by tensor, and says what each lost.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "convert/plan.h"
#include "convert/types.h"
#include "io/atomic_file.h"
#include "model/model.h"

namespace hetero::convert {

struct Options {
    int threads = 0;  // 0: default_thread_count()
    std::uint64_t max_shard_bytes = 5'000'000'000;
    io::Overwrite overwrite = io::Overwrite::refuse;
    std::function<void(std::uint64_t bytes_read)> on_progress;  // may be empty
    // Gets the complete output under its temporary name; an error from it discards the output. May be empty.
    std::function<Status(const std::string& path)> before_publish;
};

struct TensorReport {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::string from, to;  // types; of several pieces, the first one's
    std::string reason;    // Choice::reason
    std::uint64_t bytes_in = 0, bytes_out = 0;
    bool exact = false;        // the stored bytes were copied
    double max_abs_error = 0;  // of the stored values against the input's, in f32
    double relative_l2 = 0;    // |stored - input| / |input|, 0 for zeros
};

struct Report {
    std::vector<TensorReport> tensors;
    std::uint64_t bytes_in = 0, bytes_out = 0;  // of all tensors
    double seconds = 0;
    Digest lineage{};
};

// What the conversion would read and write; the errors are not known.
Result<Report> preview(const model::Model& model, const Plan& plan, const std::vector<Choice>& choices);

// Writes the model at `path`, a GGUF file or a folder, complete or not at all. Needs memory for some rows of each
// thread, not for the model. Errors: bad_input (a value that is not finite, or too large for its type: tensor, row and
// column are named; what choose_types would refuse), resource.
Result<Report> write_model(const model::Model& model, const Plan& plan, const std::vector<Choice>& choices,
                           Target target, const std::string& path, const Options& options);

}  // namespace hetero::convert
