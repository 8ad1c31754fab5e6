#include "plan/fit.h"

#include <algorithm>
#include <cmath>

namespace hetero::plan {
namespace {

using Matrix = std::vector<std::vector<double>>;

// A x = b by elimination with pivots; what is not determined is 0.
std::vector<double> solve(Matrix a, std::vector<double> b) {
    const std::size_t n = b.size();
    std::vector<double> x(n, 0);
    std::vector<bool> free(n, false);
    for (std::size_t k = 0; k < n; ++k) {
        std::size_t pivot = k;
        for (std::size_t row = k + 1; row < n; ++row)
            if (std::fabs(a[row][k]) > std::fabs(a[pivot][k])) pivot = row;
        if (std::fabs(a[pivot][k]) < 1e-12) {
            free[k] = true;
            continue;
        }
        std::swap(a[k], a[pivot]);
        std::swap(b[k], b[pivot]);
        for (std::size_t row = k + 1; row < n; ++row) {
            const double factor = a[row][k] / a[k][k];
            for (std::size_t column = k; column < n; ++column) a[row][column] -= factor * a[k][column];
            b[row] -= factor * b[k];
        }
    }
    for (std::size_t k = n; k-- > 0;) {
        if (free[k]) continue;
        double sum = b[k];
        for (std::size_t column = k + 1; column < n; ++column) sum -= a[k][column] * x[column];
        x[k] = sum / a[k][k];
    }
    return x;
}

}  // namespace

Result<std::vector<double>> fit(std::span<const Row> rows) {
    if (rows.empty()) return fail(Errc::usage, "no measurements to fit");
    const std::size_t n = rows.front().terms.size();
    for (const Row& row : rows) {
        bool fine = row.terms.size() == n && row.seconds > 0 && std::isfinite(row.seconds);
        for (const double term : row.terms) fine = fine && std::isfinite(term);
        if (!fine) return fail(Errc::usage, "measurements to fit must be finite, alike, and take time");
    }
    // Columns of a size that makes the elimination's threshold mean something.
    std::vector<double> scale(n, 0);
    for (const Row& row : rows)
        for (std::size_t j = 0; j < n; ++j) scale[j] = std::max(scale[j], std::fabs(row.terms[j] / row.seconds));
    for (double& one : scale) one = one > 0 ? one : 1;
    Matrix normal(n, std::vector<double>(n, 0));
    std::vector<double> right(n, 0);
    for (const Row& row : rows) {
        for (std::size_t i = 0; i < n; ++i) {
            const double left = row.terms[i] / row.seconds / scale[i];
            right[i] += left;
            for (std::size_t j = 0; j < n; ++j) normal[i][j] += left * row.terms[j] / row.seconds / scale[j];
        }
    }

    std::vector<double> x(n, 0);
    std::vector<bool> passive(n, false);
    for (std::size_t round = 0; round < 4 * n + 4; ++round) {
        std::size_t best = n;
        double steepest = 1e-10 * static_cast<double>(rows.size());
        for (std::size_t j = 0; j < n; ++j) {
            if (passive[j]) continue;
            double slope = right[j];
            for (std::size_t k = 0; k < n; ++k) slope -= normal[j][k] * x[k];
            if (slope > steepest) {
                steepest = slope;
                best = j;
            }
        }
        if (best == n) break;
        passive[best] = true;
        for (;;) {
            std::vector<std::size_t> used;
            for (std::size_t j = 0; j < n; ++j)
                if (passive[j]) used.push_back(j);
            Matrix a(used.size(), std::vector<double>(used.size()));
            std::vector<double> b(used.size());
            for (std::size_t i = 0; i < used.size(); ++i) {
                b[i] = right[used[i]];
                for (std::size_t j = 0; j < used.size(); ++j) a[i][j] = normal[used[i]][used[j]];
            }
            const std::vector<double> z = solve(std::move(a), std::move(b));
            double step = 1;
            for (std::size_t i = 0; i < used.size(); ++i)
                if (z[i] <= 0) step = std::min(step, x[used[i]] / std::max(x[used[i]] - z[i], 1e-300));
            for (std::size_t i = 0; i < used.size(); ++i) x[used[i]] += step * (z[i] - x[used[i]]);
            if (step >= 1) break;
            bool dropped = false;
            for (const std::size_t j : used) {
                if (x[j] > 1e-14) continue;
                x[j] = 0;
                passive[j] = false;
                dropped = true;
            }
            if (!dropped) break;
        }
    }
    for (std::size_t j = 0; j < n; ++j) x[j] = std::max(0.0, x[j]) / scale[j];
    return x;
}

}  // namespace hetero::plan
