// Converts the rows of one tensor, on several threads, and measures what was lost.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "convert/rows.h"
#include "quant/weights/weight_format.h"

namespace hetero::convert {

struct Loss {
    bool exact = true;
    double max_abs = 0, error2 = 0, norm2 = 0;  // sums of squares
    [[nodiscard]] double relative_l2() const;
};

class Encoder {
public:
    explicit Encoder(ThreadPool& pool) : pool_(pool) {}

    // Hands the encoded rows to `sink` in order, some MiB at a time; `row_scale` is filled where the format has one.
    // The loss does not depend on the number of threads. Errors: bad_input, naming row and column of the first value
    // that cannot be stored; those of `sink`.
    Result<Loss> encode(const Rows& rows, const std::string& tensor, const quant::WeightFormat& format,
                        std::vector<float>& row_scale, const std::function<Status(std::span<const std::byte>)>& sink);

private:
    struct Task;
    ThreadPool& pool_;
    std::vector<std::byte> buffer_;
};

}  // namespace hetero::convert
