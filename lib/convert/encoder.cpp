#include "convert/encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/printable.h"
#include "kernels/api/ops.h"

namespace hetero::convert {
namespace {

using quant::RowProblem;
using quant::WeightFormat;

constexpr std::size_t batch_bytes = std::size_t{8} << 20;  // of output, encoded before it is written
constexpr std::size_t task_elements = 1U << 16;            // of some rows together: enough to be worth a task

struct RowLoss {
    bool exact = false;
    double max_abs = 0, error2 = 0, norm2 = 0;
};

tl::unexpected<Error> refused(const std::string& tensor, std::uint64_t row, const RowProblem& problem, float value,
                              const WeightFormat& format) {
    const std::string name = printable(tensor);
    if (problem.kind == RowProblem::Kind::not_finite) {
        return fail(Errc::bad_input, "tensor {}: row {}, column {} is {}; such weights are not converted", name, row,
                    problem.index, value);
    }
    if (format.block_elems() > 1) {
        return fail(Errc::bad_input,
                    "tensor {}: row {}, column {}: the values of a {} block are too large for its 16-bit scale; keep "
                    "the tensor at bf16: --keep '{}=bf16'",
                    name, row, problem.index, format.name(), name);
    }
    return fail(Errc::bad_input, "tensor {}: row {}, column {} is {}, too large for {}; use bf16: --keep '{}=bf16'",
                name, row, problem.index, value, format.name(), name);
}

}  // namespace

double Loss::relative_l2() const { return norm2 > 0 ? std::sqrt(error2 / norm2) : 0; }

// One row: encodes it to `out` and compares what is read back with what it was.
struct Encoder::Task {
    const Rows& rows;
    const WeightFormat& format;
    std::vector<float> values, back;

    Task(const Rows& rows_, const WeightFormat& format_)
        : rows(rows_), format(format_), values(rows_.cols()), back(rows_.cols()) {}

    RowProblem run(std::uint64_t row, std::byte* out, float* scale, RowLoss& loss) {
        rows.read(row, values);
        const auto stored = rows.stored(row, format.dtype());
        loss = {};
        if (!stored.empty()) {
            std::memcpy(out, stored.data(), stored.size());
            if (format.has_row_scale()) *scale = rows.stored_scale(row);
            for (std::size_t i = 0; i < values.size(); ++i) {
                if (!std::isfinite(values[i])) return {RowProblem::Kind::not_finite, i};
                loss.norm2 += static_cast<double>(values[i]) * values[i];
            }
            loss.exact = true;
            return {};
        }
        if (const RowProblem problem = format.encode(values, out, scale); problem.kind != RowProblem::Kind::none) {
            return problem;
        }
        kernels::ops().dequantize(format.dtype(), out, back.data(), back.size());
        if (format.has_row_scale()) kernels::ops().scale(back.data(), *scale, back.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double error = static_cast<double>(back[i]) - values[i];
            loss.max_abs = std::max(loss.max_abs, std::fabs(error));
            loss.error2 += error * error;
            loss.norm2 += static_cast<double>(values[i]) * values[i];
        }
        return {};
    }
};

Result<Loss> Encoder::encode(const Rows& rows, const std::string& tensor, const WeightFormat& format,
                             std::vector<float>& row_scale,
                             const std::function<Status(std::span<const std::byte>)>& sink) {
    const std::uint64_t n_rows = rows.rows();
    const std::size_t cols = rows.cols(), row_bytes = kernels::dtype_bytes(format.dtype(), cols);
    if (n_rows == 0 || cols == 0) return Loss{};
    const std::uint64_t batch_rows = std::clamp<std::uint64_t>(batch_bytes / row_bytes, 1, n_rows);
    const std::uint64_t task_rows = std::clamp<std::uint64_t>(task_elements / cols, 1, batch_rows);
    buffer_.resize(batch_rows * row_bytes);
    row_scale.assign(format.has_row_scale() ? n_rows : 0, 0);
    std::vector<Task> workers(static_cast<std::size_t>(pool_.size()), Task(rows, format));
    std::vector<RowLoss> losses(batch_rows);
    std::vector<RowProblem> problems(batch_rows);
    Loss total;
    for (std::uint64_t first = 0; first < n_rows; first += batch_rows) {
        const std::uint64_t count = std::min(batch_rows, n_rows - first);
        pool_.parallel_for((count + task_rows - 1) / task_rows, [&](std::size_t task, int worker) {
            const std::uint64_t end = std::min<std::uint64_t>((task + 1) * task_rows, count);
            for (std::uint64_t row = task * task_rows; row < end; ++row) {
                float* scale = row_scale.empty() ? nullptr : &row_scale[first + row];
                problems[row] = workers[static_cast<std::size_t>(worker)].run(first + row, &buffer_[row * row_bytes],
                                                                              scale, losses[row]);
            }
        });
        for (std::uint64_t row = 0; row < count; ++row) {
            if (problems[row].kind != RowProblem::Kind::none) {
                std::vector<float> values(cols);
                rows.read(first + row, values);
                return refused(tensor, first + row, problems[row], values[problems[row].index], format);
            }
            total.exact = total.exact && losses[row].exact;
            total.max_abs = std::max(total.max_abs, losses[row].max_abs);
            total.error2 += losses[row].error2;
            total.norm2 += losses[row].norm2;
        }
        HETERO_CHECK(sink({buffer_.data(), count * row_bytes}));
    }
    return total;
}

}  // namespace hetero::convert
