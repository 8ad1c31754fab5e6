// Rotary embedding: keys that were rotated otherwise than the reference's, or not at all.
#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/faults.h"

namespace hetero::verify {
namespace {

enum class Pairs { half_split, interleaved };  // (i, i + n) or (2i, 2i + 1) of the first 2n dims

// Rotates every head by `turns` (+1, -1) times the angles of its position.
std::vector<float> rotate(const Case& part, std::span<const float> x, Pairs pairs, int turns, const LayerRope& rope,
                          std::uint64_t n_tokens) {
    const std::size_t n = rope.frequencies.size(), dim = part.dim;
    const double factor = turns > 0 ? rope.factor : 1 / rope.factor;
    std::vector<float> out(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n_tokens * part.heads * dim));
    for (std::uint64_t token = 0; token < n_tokens; ++token) {
        for (std::size_t i = 0; i < n; ++i) {
            const double angle = turns * static_cast<double>(part.first_token + token) * rope.frequencies[i];
            const double c = std::cos(angle) * factor, s = std::sin(angle) * factor;
            const std::size_t first = pairs == Pairs::half_split ? i : 2 * i;
            const std::size_t second = pairs == Pairs::half_split ? i + n : 2 * i + 1;
            for (std::size_t head = 0; head < part.heads; ++head) {
                float* values = out.data() + (token * part.heads + head) * dim;
                const double u = values[first], v = values[second];
                values[first] = static_cast<float>(u * c - v * s);
                values[second] = static_cast<float>(u * s + v * c);
            }
        }
    }
    return out;
}

std::vector<float> rotate(const Case& part, std::span<const float> x, Pairs pairs, int turns) {
    return rotate(part, x, pairs, turns, *part.rope, part.n_tokens);
}

// The rotated dims of every head from half-split order to interleaved order, or back.
std::vector<float> reorder(const Case& part, std::span<const float> x, Pairs to) {
    const std::size_t n = part.rope->frequencies.size(), dim = part.dim;
    std::vector<float> out(x.begin(), x.end());
    for (std::size_t row = 0; row < x.size(); row += dim) {
        for (std::size_t i = 0; i < n; ++i) {
            if (to == Pairs::interleaved) {
                out[row + 2 * i] = x[row + i];
                out[row + 2 * i + 1] = x[row + i + n];
            } else {
                out[row + i] = x[row + 2 * i];
                out[row + i + n] = x[row + 2 * i + 1];
            }
        }
    }
    return out;
}

double squared_error(std::span<const float> a, std::span<const float> b) {
    double sum = 0;
    for (std::size_t i = 0; i < b.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

// The plain geometric frequencies of a base.
LayerRope with_base(const LayerRope& rope, double theta) {
    model::RopeConfig plain;
    plain.theta = theta;
    plain.rotary_dim = static_cast<std::uint32_t>(2 * rope.frequencies.size());
    plain.attention_factor = rope.factor;
    return rope_of(plain);
}

std::vector<float> with_base_undone(const Case& part, double theta, std::uint64_t n_tokens) {
    const std::size_t n = n_tokens * part.heads * part.dim;
    const auto plain = rotate(part, part.b.first(n), Pairs::half_split, -1, with_base(*part.rope, theta), n_tokens);
    return rotate(part, plain, Pairs::half_split, 1, *part.rope, n_tokens);
}

}  // namespace

void undo_rope_pairing(const Case& part, const Repair& repair) {
    if (part.rope == nullptr) return;
    using enum Pairs;
    const auto again = [&](const std::vector<float>& x) { return rotate(part, x, half_split, 1); };
    const std::vector<float> plain = rotate(part, part.b, half_split, -1);
    repair(again(rotate(part, part.b, interleaved, -1)), "the other pairs were rotated");
    repair(again(reorder(part, plain, half_split)), "interleaved dims were rotated as half-split ones");
    repair(again(reorder(part, plain, interleaved)), "half-split dims were put in order once more, then rotated");
    repair(reorder(part, part.b, half_split), "the dims are in interleaved order");
    repair(reorder(part, part.b, interleaved), "the dims were put in half-split order once more");
}

void undo_rope_missing(const Case& part, const Repair& repair) {
    if (part.rope == nullptr) return;
    repair(rotate(part, part.b, Pairs::half_split, 1), "");
}

void undo_rope_twice(const Case& part, const Repair& repair) {
    if (part.rope == nullptr) return;
    repair(rotate(part, part.b, Pairs::half_split, -1), "");
}

void undo_rope_backwards(const Case& part, const Repair& repair) {
    if (part.rope == nullptr) return;
    repair(rotate(part, rotate(part, part.b, Pairs::half_split, 1), Pairs::half_split, 1), "");
}

// A shift by d turns every token by the angles of position d.
void undo_rope_position(const Case& part, const Repair& repair) {
    if (part.rope == nullptr) return;
    Case next = part;
    ++next.first_token;
    const auto turned = [&](const Case& from, const Case& to) {
        return rotate(to, rotate(from, part.b, Pairs::half_split, -1), Pairs::half_split, 1);
    };
    repair(turned(next, part), "by one: each token has the position of the one after");
    repair(turned(part, next), "by one: each token has the position of the one before");
}

// Few tokens turn little, so that the error is smooth in the base; with more of them the minimum is sharper.
void undo_rope_base(const Case& part, const Repair& repair) {
    if (part.rope == nullptr || part.n_tokens < 2) return;
    struct Stage {
        std::uint64_t tokens;
        double around, step;  // of the logarithm of the base
    };
    constexpr double low = 4.6, high = 20.7;  // bases from 100 to 1e9
    constexpr Stage stages[] = {{8, (high - low) / 2, 0.1}, {32, 0.2, 0.01}, {128, 0.02, 1e-3}, {512, 2e-3, 1e-4}};
    double best = (low + high) / 2;
    for (const Stage& stage : stages) {
        const std::uint64_t n_tokens = std::min(part.n_tokens, stage.tokens);
        const double from = best - stage.around;
        double least = std::numeric_limits<double>::infinity();
        for (int i = 0; i * stage.step <= 2 * stage.around; ++i) {
            const double at = from + i * stage.step;
            const double error = squared_error(part.a, with_base_undone(part, std::exp(at), n_tokens));
            if (error < least) {
                least = error;
                best = at;
            }
        }
    }
    const double theta = std::exp(best);
    if (part.rope->theta > 0 && std::fabs(theta / part.rope->theta - 1) < 1e-3) return;
    repair(with_base_undone(part, theta, part.n_tokens),
           fmt::format("{:.3g} where {:.6g} belongs", theta, part.rope->theta));
}

}  // namespace hetero::verify
