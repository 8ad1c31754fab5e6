#include "model/program.h"

namespace hetero::model {

Matrix row_view(const Matrix& whole, std::uint64_t first, std::uint64_t group_rows, std::uint64_t groups,
                std::uint64_t period) {
    Matrix view{whole.name,
                whole.dtype,
                whole.data + first * whole.row_bytes,
                group_rows * groups,
                whole.cols,
                whole.row_bytes,
                {},
                0,
                0,
                {}};
    if (groups > 1 && period != group_rows) {
        view.group_rows = group_rows;
        view.group_bytes = period * whole.row_bytes;
    }
    const auto take = [&](const std::vector<float>& from, std::vector<float>& to) {
        for (std::uint64_t group = 0; group < groups && !from.empty(); ++group) {
            const auto begin = from.begin() + static_cast<std::ptrdiff_t>(first + group * period);
            to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(group_rows));
        }
    };
    take(whole.bias, view.bias);
    take(whole.row_scale, view.row_scale);
    return view;
}

}  // namespace hetero::model
