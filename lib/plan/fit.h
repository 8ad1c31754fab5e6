// Coefficients from measurements: least squares of relative errors, none below 0.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"

namespace hetero::plan {

struct Row {
    std::vector<double> terms;  // what each coefficient is multiplied with
    double seconds = 0;         // measured, > 0
};

// The coefficients x >= 0 for which the sum over rows of ((terms . x - seconds) / seconds)^2 is smallest (Lawson and
// Hanson's active set). usage: no rows, rows of different lengths, values that are not finite or a time that is not
// above 0. Where rows do not tell coefficients apart, some of them are 0.
Result<std::vector<double>> fit(std::span<const Row> rows);

}  // namespace hetero::plan
