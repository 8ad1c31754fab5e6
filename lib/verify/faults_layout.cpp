// Values at the wrong place: heads, tokens, axes.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kv/convert.h"
#include "verify/faults.h"

namespace hetero::verify {
namespace {

constexpr std::uint64_t compared_tokens = 128;  // are enough to tell heads from each other

using Axes = std::array<std::size_t, 3>;  // of token, head, dim

// Where element (t, h, d) lies in memory whose axes are, from the outside, order[0], order[1], order[2].
std::size_t place(const Axes& size, const Axes& order, const Axes& index) {
    return (index[order[0]] * size[order[1]] + index[order[1]]) * size[order[2]] + index[order[2]];
}

struct Order {
    Axes axes;
    const char* name;
};
constexpr std::array<Order, 5> orders{{{{1, 0, 2}, "[head][token][dim]"},
                                       {{0, 2, 1}, "[token][dim][head]"},
                                       {{1, 2, 0}, "[head][dim][token]"},
                                       {{2, 0, 1}, "[dim][token][head]"},
                                       {{2, 1, 0}, "[dim][head][token]"}}};

// `from` is memory in another order of axes that was taken for [token][head][dim]; or, `inverse`, the other way round.
template <class T>
std::vector<T> reorder(std::span<const T> from, const Axes& size, const Axes& order, bool inverse) {
    std::vector<T> to(from.size());
    std::size_t plain = 0;
    for (std::size_t t = 0; t < size[0]; ++t) {
        for (std::size_t h = 0; h < size[1]; ++h) {
            for (std::size_t d = 0; d < size[2]; ++d, ++plain) {
                const std::size_t other = place(size, order, {t, h, d});
                if (inverse) {
                    to[other] = from[plain];
                } else {
                    to[plain] = from[other];
                }
            }
        }
    }
    return to;
}

std::string reorder_text(const char* order, bool inverse) {
    return inverse ? fmt::format("[token][head][dim] read as {}", order)
                   : fmt::format("{} read as [token][head][dim]", order);
}

}  // namespace

void undo_parts_swapped(const Case& part, const Repair& repair) {
    const kv::PartId other = part.id == kv::PartId::k ? kv::PartId::v : kv::PartId::k;
    if (part.candidate.identity.head_dim(other) != part.dim) return;
    auto values = kv::decode_part(part.candidate, part.other(), part.n_tokens, other, part.first_token);
    if (!values) return;
    repair(*values, "");
}

// Each head of the reference looks for the one that is most like it.
void undo_heads_swapped(const Case& part, const Repair& repair) {
    const std::size_t dim = part.dim, row = part.heads * dim;
    const std::uint64_t tokens = std::min(part.n_tokens, compared_tokens);
    std::vector<std::size_t> taken(part.heads);
    for (std::size_t head = 0; head < part.heads; ++head) {
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t from = 0; from < part.heads; ++from) {
            double error = 0;
            for (std::uint64_t token = 0; token < tokens; ++token) {
                const float* x = part.a.data() + token * row + head * dim;
                const float* y = part.b.data() + token * row + from * dim;
                for (std::size_t d = 0; d < dim; ++d) error += (x[d] - y[d]) * (x[d] - y[d]);
            }
            if (error < least) {
                least = error;
                taken[head] = from;
            }
        }
    }
    std::vector<std::size_t> sorted = taken;
    std::sort(sorted.begin(), sorted.end());
    std::string moved;
    bool pairs = true;
    for (std::size_t head = 0; head < part.heads; ++head) {
        if (sorted[head] != head) return;  // no permutation
        if (taken[head] == head) continue;
        pairs = pairs && taken[taken[head]] == head;
    }
    for (std::size_t head = 0; head < part.heads; ++head) {
        if (taken[head] == head || (pairs && taken[head] < head)) continue;
        moved += fmt::format("{}{}{}{}", moved.empty() ? "" : ", ", head, pairs ? " and " : " holds ", taken[head]);
    }
    if (moved.empty()) return;
    std::vector<float> values(part.b.size());
    for (std::uint64_t token = 0; token < part.n_tokens; ++token) {
        for (std::size_t head = 0; head < part.heads; ++head) {
            std::copy_n(part.b.data() + token * row + taken[head] * dim, dim, values.data() + token * row + head * dim);
        }
    }
    repair(values, std::move(moved));
}

void undo_tokens_shifted(const Case& part, const Repair& repair) {
    const std::size_t row = std::size_t{part.heads} * part.dim;
    for (const std::int64_t by : {1, -1, 2, -2}) {
        const auto distance = static_cast<std::uint64_t>(by < 0 ? -by : by);
        if (part.n_tokens <= 2 * distance) continue;
        std::vector<float> values(part.b.size(), unknown);
        const std::size_t shift = distance * row;
        if (by > 0) {
            std::copy(part.b.begin() + static_cast<std::ptrdiff_t>(shift), part.b.end(), values.begin());
        } else {
            std::copy(part.b.begin(), part.b.end() - static_cast<std::ptrdiff_t>(shift),
                      values.begin() + static_cast<std::ptrdiff_t>(shift));
        }
        repair(values, fmt::format("by {}: each token holds that of {} {}", distance == 1 ? "one" : "two",
                                   distance == 1 ? "the one" : "two", by > 0 ? "before" : "after"));
    }
}

void undo_transposed(const Case& part, const Repair& repair) {
    const Axes size{part.n_tokens, part.heads, part.dim};
    for (const Order& order : orders) {
        for (const bool inverse : {false, true}) {
            repair(reorder<float>(part.b, size, order.axes, inverse), reorder_text(order.name, inverse));
        }
    }
    // The same before the codes were given their scales: packed codes move by whole heads only.
    const kv::Part& stored = part.part();
    if (stored.scale.empty() || stored.scheme.keeps_rows() || stored.values.shape.size() != 3) return;
    const Axes code_size{part.n_tokens, part.heads, stored.values.bytes.size() / part.n_tokens / part.heads};
    for (const Order& order : orders) {
        if (code_size[2] != part.dim && order.axes != orders.front().axes) continue;
        for (const bool inverse : {false, true}) {
            kv::Part moved = stored;
            moved.values.bytes = reorder<std::byte>(stored.values.bytes, code_size, order.axes, inverse);
            repair(part.decode(moved), "codes of " + reorder_text(order.name, inverse));
        }
    }
}

}  // namespace hetero::verify
