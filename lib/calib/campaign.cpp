#include "calib/campaign.h"

#include <algorithm>
#include <new>

#include "kernels/api/ops.h"

namespace hetero::calib {

// Text by text, so that the reference of each is computed once.
Result<std::vector<Outcome>> Campaign::run(const std::vector<Job>& jobs, const std::vector<std::size_t>& texts,
                                           std::uint64_t steps, const std::function<void()>& on_done) try {
    std::vector<Outcome> outcomes(jobs.size());
    for (const std::size_t text : texts) {
        for (std::size_t job = 0; job < jobs.size(); ++job) {
            HETERO_TRY(const std::vector<Step> measured, one(jobs[job], text, steps));
            outcomes[job].steps.insert(outcomes[job].steps.end(), measured.begin(), measured.end());
            if (on_done) on_done();
        }
    }
    for (Outcome& outcome : outcomes) outcome.figures = summarise(outcome.steps);
    return outcomes;
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: figures of {} measurements", jobs.size() * texts.size());
}

Status Campaign::run_slice(const std::vector<Job>& jobs, const std::vector<std::size_t>& texts, std::uint64_t steps,
                           Slice slice, const std::function<void()>& on_done) {
    std::size_t index = 0;
    for (const std::size_t text : texts) {
        for (const Job& job : jobs) {
            if (index++ % slice.count == slice.index) HETERO_CHECK(one(job, text, steps));
            if (on_done) on_done();
        }
    }
    return {};
}

Result<std::vector<Step>> Campaign::one(const Job& job, std::size_t text, std::uint64_t steps) {
    const Text& source = bench_.texts()[text];
    steps = std::min(steps, source.steps());
    const std::string what = job.kind == Job::Kind::floor ? "floor" : to_text(job.assignment);
    const Digest key =
        sha256(fmt::format("{}\n{}\n{}\n{}\n{}\nprompt {} steps {}\n{}", program_, kernels::ops().name,
                           to_hex(bench_.identity().weights_digest), to_hex(bench_.identity().arch_digest),
                           to_hex(text_digest(source, steps)), source.prompt_tokens, steps, what));
    if (journal_ != nullptr) {
        if (const std::vector<Step>* known = journal_->find(key); known != nullptr && known->size() == steps)
            return *known;
    }
    auto measured =
        job.kind == Job::Kind::floor ? bench_.floor(text, steps) : bench_.measure(text, steps, job.assignment);
    if (!measured) return measured;
    if (journal_ != nullptr) HETERO_CHECK(journal_->add(key, *measured));
    return measured;
}

}  // namespace hetero::calib
