#include "plan/served.h"

#include <algorithm>
#include <vector>

#include "plan/fit.h"

namespace hetero::plan {
namespace {

std::array<double, 5> terms(const ServedRun& run) {
    const double context = run.prompt_tokens + run.output_tokens / 2;
    return {1, 1 / run.tp, run.batch, run.batch * context / run.tp,
            run.batch / run.output_tokens * run.prompt_tokens / run.tp};
}

}  // namespace

double ServedTiming::tpot_s(const ServedRun& run) const noexcept {
    const auto x = terms(run);
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += coefficients[i] * x[i];
    return sum;
}

Result<ServedTiming> fit_served(std::span<const ServedRun> runs) {
    std::vector<Row> rows;
    for (const ServedRun& run : runs) {
        const auto x = terms(run);
        rows.push_back({{x.begin(), x.end()}, run.tpot_s});
    }
    HETERO_TRY(const std::vector<double> found, fit(rows));
    ServedTiming out;
    std::copy(found.begin(), found.end(), out.coefficients.begin());
    return out;
}

}  // namespace hetero::plan
