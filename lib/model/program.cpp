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
                0};
    if (groups > 1 && period != group_rows) {
        view.group_rows = group_rows;
        view.group_bytes = period * whole.row_bytes;
    }
    if (!whole.bias.empty()) {
        for (std::uint64_t group = 0; group < groups; ++group) {
            const auto begin = whole.bias.begin() + static_cast<std::ptrdiff_t>(first + group * period);
            view.bias.insert(view.bias.end(), begin, begin + static_cast<std::ptrdiff_t>(group_rows));
        }
    }
    return view;
}

}  // namespace hetero::model
