// Scales and zero points that are not those of their codes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/api/ops.h"
#include "kv/convert.h"
#include "quant/codec.h"
#include "quant/rotation.h"
#include "verify/faults.h"

namespace hetero::verify {
namespace {

// Which values share a scale.
struct Grouping {
    quant::Axis axis = quant::Axis::token;
    std::uint64_t group = 0;           // as quant::Params::group
    std::uint64_t first = 0, end = 0;  // tokens with codes
    [[nodiscard]] std::size_t of(const Case& part, std::uint64_t token, std::size_t head, std::size_t dim) const {
        const std::uint64_t t = token - first, length = group == 0 ? std::max<std::uint64_t>(end - first, 1) : group;
        switch (axis) {
            case quant::Axis::token: {
                const std::size_t along = group == 0 ? part.dim : group, per_head = (part.dim + along - 1) / along;
                return (t * part.heads + head) * per_head + dim / along;
            }
            case quant::Axis::channel:
                return (t / length * part.heads + head) * part.dim + dim;
            case quant::Axis::head:
                return t / length * part.heads + head;
            default:
                return t / length;
        }
    }
    [[nodiscard]] std::size_t count(const Case& part) const {
        return end == first ? 0 : of(part, end - 1, part.heads - 1, part.dim - 1) + 1;
    }
};

bool has_codes(const Case& part) { return !part.part().scale.empty() && part.n_tokens > 0; }

Grouping grouping_of(const Case& part) {
    const kv::Scheme& scheme = part.part().scheme;
    const kv::KeptRows rows = kv::kept_rows(scheme, part.n_tokens);
    return {scheme.params.axis, scheme.params.group, rows.sinks, rows.sinks + rows.middle};
}

// The candidate's own groups, or those that are usual where it has no codes any more.
std::vector<Grouping> groupings(const Case& part) {
    if (has_codes(part)) return {grouping_of(part)};
    using quant::Axis;
    std::vector<Grouping> usual;
    for (const Grouping one :
         {Grouping{Axis::tensor, 0}, Grouping{Axis::head, 0}, Grouping{Axis::token, 0}, Grouping{Axis::token, 32},
          Grouping{Axis::channel, 0}, Grouping{Axis::channel, 64}, Grouping{Axis::channel, 32}}) {
        usual.push_back(one);
        usual.back().end = part.n_tokens;
    }
    return usual;
}

// body(index of the value, its group) for all values with codes.
void for_each(const Case& part, const Grouping& grouping,
              const std::function<void(std::size_t index, std::size_t group)>& body) {
    for (std::uint64_t token = grouping.first; token < grouping.end; ++token) {
        for (std::size_t head = 0; head < part.heads; ++head) {
            for (std::size_t dim = 0; dim < part.dim; ++dim) {
                body((token * part.heads + head) * part.dim + dim, grouping.of(part, token, head, dim));
            }
        }
    }
}

// Least squares of a = slope * b + offset in every group; `has_slope` and `has_offset` say which are free (else 1, 0).
// Nothing where b does not follow a within the groups: unrelated values would be fitted, too, by their means alone.
std::vector<float> fit(const Case& part, const Grouping& grouping, bool has_slope, bool has_offset) {
    struct Sums {
        double n = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0;
    };
    std::vector<Sums> sums(grouping.count(part));
    // A rotated part has its codes in the rotated domain.
    std::vector<float> a(part.a.begin(), part.a.end()), b(part.b.begin(), part.b.end());
    const bool rotated = has_codes(part) && part.part().scheme.params.hadamard;
    if (rotated) {
        quant::rotate(a, a, part.dim);
        quant::rotate(b, b, part.dim);
    }
    for_each(part, grouping, [&](std::size_t i, std::size_t group) {
        const double x = a[i], y = b[i];
        Sums& one = sums[group];
        one.n += 1;
        one.a += x;
        one.b += y;
        one.aa += x * x;
        one.bb += y * y;
        one.ab += x * y;
    });
    std::vector<double> slopes(sums.size(), 1), offsets(sums.size(), 0);
    double total = 0, residual = 0;
    constexpr double fewest = 4;  // values of a group, of which so few can tell nothing
    for (std::size_t group = 0; group < sums.size(); ++group) {
        const Sums& one = sums[group];
        if (one.n < fewest) continue;
        const double mean_a = has_offset ? one.a / one.n : 0, mean_b = has_offset ? one.b / one.n : 0;
        const double aa = std::max(0.0, one.aa - one.n * mean_a * mean_a);
        const double bb = std::max(0.0, one.bb - one.n * mean_b * mean_b), ab = one.ab - one.n * mean_a * mean_b;
        if (has_slope) slopes[group] = bb > 0 ? ab / bb : 0;
        offsets[group] = mean_a - slopes[group] * mean_b;
        total += aa;
        residual += std::max(0.0, aa - 2 * slopes[group] * ab + slopes[group] * slopes[group] * bb);
    }
    if (!(residual <= 0.1 * total)) return {};
    for_each(part, grouping, [&](std::size_t i, std::size_t group) {
        b[i] = sums[group].n < fewest ? unknown : static_cast<float>(slopes[group] * b[i] + offsets[group]);
    });
    if (rotated) quant::rotate(b, b, part.dim);
    return b;
}

std::vector<float> numbers(const kv::Tensor& tensor) {
    std::vector<float> out(tensor.elements());
    if (!out.empty()) kernels::ops().dequantize(tensor.dtype, tensor.bytes.data(), out.data(), out.size());
    return out;
}

bool same_array(const kv::Tensor& a, const kv::Tensor& b) { return a.dtype == b.dtype && a.shape == b.shape; }

void negate(kv::Tensor& tensor) {  // sign bits; little-endian
    const std::size_t size = kernels::dtype_bytes(tensor.dtype, 1);
    for (std::size_t i = size - 1; i < tensor.bytes.size(); i += size) tensor.bytes[i] ^= std::byte{0x80};
}

// The array, every element taking the place of that `by` elements after it, within runs of `run`; the last ones start
// again from the front.
kv::Tensor rolled(const kv::Tensor& tensor, std::size_t by, std::size_t run) {
    const std::size_t size = kernels::dtype_bytes(tensor.dtype, 1), n = tensor.elements();
    kv::Tensor out = tensor;
    for (std::size_t begin = 0; begin < n; begin += run) {
        for (std::size_t i = 0; i < run; ++i) {
            std::memcpy(out.bytes.data() + (begin + i) * size, tensor.bytes.data() + (begin + (i + by) % run) * size,
                        size);
        }
    }
    return out;
}

}  // namespace

void undo_scales_swapped(const Case& part, const Repair& repair) {
    const kv::Part &own = part.part(), &other = part.other();
    if (!has_codes(part) || !same_array(own.scale, other.scale) || own.scale.bytes == other.scale.bytes) return;
    kv::Part changed = own;
    changed.scale = other.scale;
    repair(part.decode(changed), "");
    if (!own.zero.empty() && same_array(own.zero, other.zero)) {
        changed.zero = other.zero;
        repair(part.decode(changed), "zero points, too");
    }
}

// With scales of its own the part would be what its codec makes of the reference.
void undo_scales_merged(const Case& part, const Repair& repair) {
    const kv::Part &own = part.part(), &other = part.other();
    if (!has_codes(part) || !same_array(own.scale, other.scale) || own.scale.bytes != other.scale.bytes) return;
    const std::vector<float> scales = numbers(own.scale);
    if (std::all_of(scales.begin(), scales.end(), [&](float scale) { return scale == scales.front(); })) return;
    const std::vector<float> values(part.a.begin(), part.a.end());
    const auto encoded = kv::encode_part(part.candidate, own.scheme, part.n_tokens, part.id, values, part.first_token);
    if (!encoded) return;
    repair(part.decode(*encoded), "both have the same");
}

void undo_scales_shifted(const Case& part, const Repair& repair) {
    if (!has_codes(part) || part.part().scale.shape.size() != 3) return;
    const kv::Part& own = part.part();
    const Grouping grouping = grouping_of(part);
    const auto& shape = own.scale.shape;
    const std::size_t n = own.scale.elements(), row = shape[1] * shape[2];
    // Along the first axis, along the last one, and along all of them as one.
    struct Shift {
        std::size_t by, run;
    };
    std::vector<Shift> shifts;
    if (shape[0] > 2) shifts.insert(shifts.end(), {{row, n}, {n - row, n}});
    if (shape[2] > 2 && own.scheme.params.axis == quant::Axis::token) {
        shifts.insert(shifts.end(), {{1, shape[2]}, {shape[2] - 1, shape[2]}});
    }
    if (n > 2 && row != 1) shifts.insert(shifts.end(), {{1, n}, {n - 1, n}});
    for (const Shift& shift : shifts) {
        for (const bool scale : {true, false}) {
            for (const bool zero : {true, false}) {
                if ((!scale && !zero) || (zero && own.zero.empty())) continue;
                kv::Part changed = own;
                if (scale) changed.scale = rolled(own.scale, shift.by, shift.run);
                if (zero) changed.zero = rolled(own.zero, shift.by, shift.run);
                std::vector<float> values = part.decode(changed);
                if (values.empty()) continue;
                // What came from the other end is not known.
                const bool back = 2 * shift.by > shift.run;
                const std::size_t lost = back ? shift.run - shift.by : shift.by;
                for_each(part, grouping, [&](std::size_t i, std::size_t group) {
                    const std::size_t at = group % shift.run;
                    if (back ? at < lost : at >= shift.run - lost) values[i] = unknown;
                });
                repair(values, scale && zero ? "with their zero points" : scale ? "" : "only the zero points");
            }
        }
    }
}

void undo_scales_ignored(const Case& part, const Repair& repair) {
    if (has_codes(part)) {
        const std::vector<float> scales = numbers(part.part().scale);
        if (!std::all_of(scales.begin(), scales.end(), [&](float scale) { return scale == scales.front(); })) return;
        repair(fit(part, grouping_of(part), true, !part.part().scheme.params.symmetric),
               fmt::format("all are {:.6g}", scales.front()));
        return;
    }
    // Codes that were taken for values are whole numbers.
    std::size_t whole = 0;
    float largest = 0;
    for (const float value : part.b) {
        whole += value == std::nearbyint(value) ? 1 : 0;
        largest = std::max(largest, std::fabs(value));
    }
    if (whole != part.b.size() || largest < 2) return;
    for (const Grouping& grouping : groupings(part)) {
        for (const bool offset : {false, true}) {
            repair(fit(part, grouping, true, offset), "the values are codes");
        }
    }
}

void undo_zero_sign(const Case& part, const Repair& repair) {
    if (!has_codes(part) || part.part().zero.empty()) return;
    kv::Part changed = part.part();
    negate(changed.zero);
    repair(part.decode(changed), "");
}

// (q - zero) * scale was meant.
void undo_zero_integer(const Case& part, const Repair& repair) {
    const kv::Part& own = part.part();
    if (!has_codes(part) || own.zero.empty()) return;
    const std::vector<float> scales = numbers(own.scale), zeros = numbers(own.zero);
    const Grouping grouping = grouping_of(part);
    if (scales.size() != grouping.count(part) || own.scheme.params.hadamard) return;
    std::vector<float> values(part.b.begin(), part.b.end());
    for_each(part, grouping,
             [&](std::size_t i, std::size_t group) { values[i] -= zeros[group] + zeros[group] * scales[group]; });
    repair(values, "");
}

void undo_zero_offset(const Case& part, const Repair& repair) {
    if (has_codes(part) && part.part().scheme.params.symmetric) return;
    for (const Grouping& grouping : groupings(part)) {
        repair(fit(part, grouping, false, true), "each group is off by a constant");
    }
}

void undo_scale_factor(const Case& part, const Repair& repair) {
    for (const Grouping& grouping : groupings(part)) {
        repair(fit(part, grouping, true, false), "each group is off by a factor");
        if (!has_codes(part) || !part.part().scheme.params.symmetric) {
            repair(fit(part, grouping, true, true), "each group is off by a factor and a constant");
        }
    }
}

}  // namespace hetero::verify
