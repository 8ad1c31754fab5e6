#include "kv/compare.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <span>
#include <utility>

#include "base/redact.h"
#include "kv/convert.h"

namespace hetero::kv {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// The 99th percentile of `n` values of at least 0 that come one by one. By nearest rank, the ceil(0.99 n)-th: the
// smallest of the n / 100 + 1 largest, of which those above 0 are kept, in a heap with the smallest on top.
class Percentile99 {
public:
    explicit Percentile99(std::uint64_t n) : most_(n / 100 + 1) {}

    void add(double value) {
        if (value <= floor_) return;
        if (largest_.size() == most_) {
            std::pop_heap(largest_.begin(), largest_.end(), std::greater<>());
            largest_.back() = value;
        } else {
            largest_.push_back(value);
        }
        std::push_heap(largest_.begin(), largest_.end(), std::greater<>());
        if (largest_.size() == most_) floor_ = largest_.front();
    }
    [[nodiscard]] double value() const noexcept { return floor_; }

private:
    std::uint64_t most_;
    std::vector<double> largest_;
    double floor_ = 0;  // what is not above it changes nothing
};

// Why a pair of values fails whatever the tolerance; empty where it does not.
std::string_view nonfinite_reason(float a, float b, bool allow_equal_nan) {
    const bool nan_a = std::isnan(a);
    const bool nan_b = std::isnan(b);
    if (nan_a && nan_b) return allow_equal_nan ? "" : "NaN in both";
    if (nan_a) return "NaN in a";
    if (nan_b) return "NaN in b";
    if (std::isinf(a) && std::isinf(b)) return a == b ? "" : "infinities of opposite sign";
    if (std::isinf(a)) return "infinity in a";
    if (std::isinf(b)) return "infinity in b";
    return "";
}

struct PartComparison {
    PartDifference difference;
    std::size_t worst = 0;
    std::optional<std::size_t> first_difference, first_nonfinite;
    std::string_view nonfinite_what;
};

double relative(double error_squares, double squares) {  // infinity where a is all zero
    return error_squares == 0 ? 0 : std::sqrt(error_squares / squares);
}

double root_mean(double squares, std::uint64_t n) { return n == 0 ? 0 : std::sqrt(squares / static_cast<double>(n)); }

double cosine(double aa, double bb, double ab) {
    return aa == 0 && bb == 0 ? 1 : aa == 0 || bb == 0 ? 0 : ab / std::sqrt(aa) / std::sqrt(bb);
}

// Sums over the finite pairs of one channel.
struct Channel {
    double error = 0, aa = 0, bb = 0, ab = 0;  // squares of the errors, of a, of b, and products
    std::uint64_t n = 0;
};

HeadDifference summarise_head(std::span<const Channel> channels, Channel& total) {
    HeadDifference out;
    for (std::uint32_t dim = 0; dim < channels.size(); ++dim) {
        const Channel& channel = channels[dim];
        total.error += channel.error;
        total.aa += channel.aa;
        total.bb += channel.bb;
        total.ab += channel.ab;
        total.n += channel.n;
        if (const double rms = root_mean(channel.error, channel.n); rms > out.channel_rms) {
            out.worst_channel = dim;
            out.channel_rms = rms;
            out.channel_relative_l2 = relative(channel.error, channel.aa);
        }
    }
    out.rms = root_mean(total.error, total.n);
    out.relative_l2 = relative(total.error, total.aa);
    out.cosine = cosine(total.aa, total.bb, total.ab);
    return out;
}

// a, b: [token][head][dim] of n_heads heads; `dim` elements each.
PartComparison compare_values(const std::vector<float>& a, const std::vector<float>& b, std::uint32_t n_heads,
                              std::uint32_t head_dim, bool allow_equal_nan, Percentile99& p99) {
    PartComparison result;
    PartDifference& part = result.difference;
    part.elements = a.size();
    const std::size_t width = std::size_t{n_heads} * head_dim;
    std::vector<Channel> channels(width);
    std::vector<double> largest(n_heads);
    std::vector<std::size_t> worst(n_heads);
    double sum = 0;
    for (std::size_t i = 0, column = 0; i < a.size(); ++i, column = column + 1 == width ? 0 : column + 1) {
        if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) part.bit_equal = false;
        double difference = 0;
        if (std::isfinite(a[i]) && std::isfinite(b[i])) [[likely]] {
            Channel& channel = channels[column];
            const double x = a[i];
            const double y = b[i];
            difference = std::abs(x - y);
            sum += difference;
            channel.error += difference * difference;
            channel.aa += x * x;
            channel.bb += y * y;
            channel.ab += x * y;
            ++channel.n;
        } else if (const auto reason = nonfinite_reason(a[i], b[i], allow_equal_nan); !reason.empty()) {
            difference = infinity;
            if (!result.first_nonfinite) {
                result.first_nonfinite = i;
                result.nonfinite_what = reason;
            }
        }
        p99.add(difference);
        if (const std::size_t head = column / head_dim; difference > largest[head]) {
            largest[head] = difference;
            worst[head] = i;
        }
        if (difference > 0 && !result.first_difference) result.first_difference = i;
    }
    Channel all;
    for (std::uint32_t head = 0; head < n_heads; ++head) {
        Channel total;
        HeadDifference one = summarise_head(std::span(channels).subspan(head * head_dim, head_dim), total);
        one.head = head;
        one.max_abs = largest[head];
        one.worst_token = worst[head] / width;
        one.worst_dim = static_cast<std::uint32_t>(worst[head] % head_dim);
        part.heads.push_back(one);
        if (largest[head] > part.max_abs || (largest[head] == part.max_abs && worst[head] < result.worst)) {
            part.max_abs = largest[head];
            result.worst = worst[head];
        }
        all.error += total.error;
        all.aa += total.aa;
        all.bb += total.bb;
        all.ab += total.ab;
        all.n += total.n;
    }
    part.mean_abs = all.n == 0 ? 0 : sum / static_cast<double>(all.n);
    part.rms = root_mean(all.error, all.n);
    part.relative_l2 = relative(all.error, all.aa);
    part.cosine = cosine(all.aa, all.bb, all.ab);
    return result;
}

// The layers of b in a's order of sequences. Where b has another order, all of it is held in memory.
class Paired {
public:
    static Result<Paired> make(const Header& a, Source& b) {
        Paired paired(b);
        std::map<std::string_view, std::size_t> index;
        const auto& sequences = b.header().sequences;
        for (std::size_t i = 0; i < sequences.size(); ++i) index.emplace(sequences[i].id, i);
        bool same_order = true;
        for (std::size_t i = 0; i < a.sequences.size(); ++i) {
            const auto found = index.find(a.sequences[i].id);
            if (found == index.end())
                return fail(Errc::bad_input, "not comparable: {} has no sequence {}", b.name(), a.sequences[i].id);
            paired.order_.push_back(found->second);
            same_order = same_order && found->second == i;
        }
        if (a.sequences.size() != sequences.size())
            return fail(Errc::bad_input, "not comparable: {} sequences and {}", a.sequences.size(), sequences.size());
        if (!same_order) {
            HETERO_TRY(paired.state_, read_all(b));
        }
        return paired;
    }

    [[nodiscard]] const Sequence& sequence(std::size_t i) const { return b_->header().sequences[order_[i]]; }
    Result<Layer> layer(std::size_t sequence, std::size_t layer) {
        if (state_) return std::move(state_->layers[order_[sequence]][layer]);
        return b_->read_layer();
    }
    Status finish() { return state_ ? Status{} : b_->finish(); }

private:
    explicit Paired(Source& b) : b_(&b) {}
    Source* b_;
    std::vector<std::size_t> order_;  // of b's sequences, by a's
    std::optional<State> state_;
};

Status check_shapes(const Header& a, const Header& b) {
    const std::array<std::pair<const char*, std::pair<std::uint32_t, std::uint32_t>>, 5> counts = {
        {{"n_layers", {a.identity.n_layers, b.identity.n_layers}},
         {"n_kv_heads", {a.identity.n_kv_heads, b.identity.n_kv_heads}},
         {"head_dim_k", {a.identity.head_dim_k, b.identity.head_dim_k}},
         {"head_dim_v", {a.identity.head_dim_v, b.identity.head_dim_v}},
         {"head_count", {a.stored_heads(), b.stored_heads()}}}};
    for (const auto& [name, pair] : counts) {
        if (pair.first != pair.second)
            return fail(Errc::bad_input, "not comparable: {} is {} and {}", name, pair.first, pair.second);
    }
    return {};
}

// Layers of different kinds are listed as mismatches; they can be compared where they store the same tokens.
Status compare_layer_shapes(const Header& a, const Header& b, std::vector<Mismatch>& mismatches) {
    auto shapes = compare(a.layer_shapes, b.layer_shapes);
    mismatches.insert(mismatches.end(), shapes.begin(), shapes.end());
    if (a.shard.head_first != b.shard.head_first)
        mismatches.push_back(
            {"head_first", fmt::format("{}", a.shard.head_first), fmt::format("{}", b.shard.head_first)});
    if (shapes.empty()) return {};
    for (std::size_t s = 0; s < a.sequences.size(); ++s) {
        const std::uint64_t n_tokens = a.sequences[s].tokens.size();
        for (std::uint32_t layer = 0; layer < a.identity.n_layers; ++layer) {
            const LayerShape left = a.layer_shape(layer), right = b.layer_shape(layer);
            if (left.stored_tokens(n_tokens) != right.stored_tokens(n_tokens))
                return fail(
                    Errc::bad_input,
                    "not comparable: layer {} is {} and {}: of the {} tokens of sequence {} it stores {} and {}", layer,
                    to_text(left), to_text(right), n_tokens, a.sequences[s].id, left.stored_tokens(n_tokens),
                    right.stored_tokens(n_tokens));
        }
    }
    return {};
}

// The first token that differs; sequences are named where there are several.
Status compare_tokens(const Header& a, const Paired& paired, std::vector<Mismatch>& mismatches) {
    for (std::size_t i = 0; i < a.sequences.size(); ++i) {
        const Sequence& left = a.sequences[i];
        const Sequence& right = paired.sequence(i);
        if (left.tokens.size() != right.tokens.size())
            return fail(Errc::bad_input, "not comparable: sequence {} has {} tokens and {}", left.id,
                        left.tokens.size(), right.tokens.size());
        const auto differs = [&](const std::string& field, std::int32_t x, std::int32_t y) {
            mismatches.push_back({a.sequences.size() == 1 ? field : fmt::format("sequence {}: {}", left.id, field),
                                  private_token(x), private_token(y)});
        };
        const auto [l, r] = std::mismatch(left.tokens.begin(), left.tokens.end(), right.tokens.begin());
        if (l != left.tokens.end()) differs(fmt::format("tokens[{}]", l - left.tokens.begin()), *l, *r);
    }
    return {};
}

// These and logits may come after the layers.
void compare_pending(const Header& a, const Paired& paired, std::vector<Mismatch>& mismatches) {
    for (std::size_t i = 0; i < a.sequences.size(); ++i) {
        const Sequence& left = a.sequences[i];
        const std::int32_t x = left.pending_token, y = paired.sequence(i).pending_token;
        if (x == y) continue;
        mismatches.push_back(
            {a.sequences.size() == 1 ? "pending_token" : fmt::format("sequence {}: pending_token", left.id),
             private_token(x), private_token(y)});
    }
}

// log(sum(exp(x))). Logits of a state are finite (check_header).
double log_sum_exp(const std::vector<float>& logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(x - largest);
    return largest + std::log(sum);
}

void compare_logits(const Header& a, const Paired& paired, Comparison& comparison) {
    for (std::size_t i = 0; i < a.sequences.size(); ++i) {
        const std::vector<float>& left = a.sequences[i].logits;
        const std::vector<float>& right = paired.sequence(i).logits;
        if (left.empty() || left.size() != right.size()) continue;
        const double left_norm = log_sum_exp(left);
        const double right_norm = log_sum_exp(right);
        for (std::size_t token = 0; token < left.size(); ++token) {
            const double x = left[token];
            const double y = right[token];
            if (x == y && left_norm == right_norm) continue;
            comparison.logits_max_abs_dp =
                std::max(comparison.logits_max_abs_dp, std::abs(std::exp(x - left_norm) - std::exp(y - right_norm)));
            if (std::abs(x - y) <= comparison.logits_max_abs) continue;
            comparison.logits_max_abs = std::abs(x - y);
            comparison.logits_worst =
                fmt::format("sequence {}, token {}", a.sequences[i].id, private_token(static_cast<long long>(token)));
        }
    }
}

Result<Comparison> compare_all(Source& a, Source& b, bool allow_equal_nan,
                               const std::function<Status(const ComparedLayer&)>& on_layer) {
    const Header& header = a.header();
    Comparison comparison;
    HETERO_CHECK(check_shapes(header, b.header()));
    comparison.mismatches = compare(header.identity, b.header().identity);
    HETERO_TRY(Paired paired, Paired::make(header, b));
    HETERO_CHECK(compare_tokens(header, paired, comparison.mismatches));
    HETERO_CHECK(compare_layer_shapes(header, b.header(), comparison.mismatches));

    std::uint64_t n = 0;
    for (std::size_t s = 0; s < header.sequences.size(); ++s)
        for (std::uint32_t l = 0; l < header.identity.n_layers; ++l)
            n += header.stored_tokens(s, l) * header.stored_heads() *
                 (header.identity.head_dim_k + header.identity.head_dim_v);
    Percentile99 p99(n);
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        const Sequence& sequence = header.sequences[s];
        for (std::uint32_t l = 0; l < header.identity.n_layers; ++l) {
            HETERO_TRY(const Layer left, a.read_layer());
            HETERO_TRY(const Layer right, paired.layer(s, l));
            for (const PartId id : {PartId::k, PartId::v}) {
                const auto named = [&](const Error& error, const Source& source) {
                    return fail_with(error, fmt::format("{}: sequence {}, layer {}, {}", source.name(), sequence.id, l,
                                                        source.header().part_name(l, id)));
                };
                const std::uint64_t n_tokens = header.stored_tokens(s, l), first = header.first_token(s, l);
                auto x = decode_part(header, left.part(id), n_tokens, id, first);
                if (!x) return named(x.error(), a);
                auto y = decode_part(b.header(), right.part(id), n_tokens, id, first);
                if (!y) return named(y.error(), b);
                PartComparison part =
                    compare_values(*x, *y, header.stored_heads(), header.identity.head_dim(id), allow_equal_nan, p99);
                for (HeadDifference& head : part.difference.heads) {
                    head.head += header.shard.head_first;
                    head.worst_token += first;
                }
                part.difference.sequence = sequence.id;
                part.difference.layer = l;
                part.difference.kind = header.layer_shape(l).kind;
                part.difference.part = id;
                const auto place = [&](std::size_t i) { return locate(header, s, l, id, i); };
                if (part.difference.max_abs > comparison.max_abs || comparison.parts.empty()) {
                    comparison.max_abs = part.difference.max_abs;
                    comparison.worst = place(part.worst);
                }
                if (part.first_difference && !comparison.first_difference)
                    comparison.first_difference = place(*part.first_difference);
                if (part.first_nonfinite && !comparison.first_nonfinite) {
                    comparison.first_nonfinite = place(*part.first_nonfinite);
                    comparison.nonfinite_what = part.nonfinite_what;
                }
                comparison.parts.push_back(std::move(part.difference));
            }
            if (on_layer) HETERO_CHECK(on_layer({s, l, left, right, std::span(comparison.parts).last(2)}));
        }
    }
    HETERO_CHECK(a.finish());
    HETERO_CHECK(paired.finish());
    compare_pending(header, paired, comparison.mismatches);
    compare_logits(header, paired, comparison);
    comparison.p99_abs = p99.value();
    return comparison;
}

}  // namespace

Location locate(const Header& header, std::size_t sequence, std::uint32_t layer, PartId part, std::uint64_t index) {
    const std::uint64_t dim = header.identity.head_dim(part);
    const std::uint64_t row = dim * header.stored_heads();
    Location place;
    place.sequence = header.sequences[sequence].id;
    place.layer = layer;
    place.kind = header.layer_shape(layer).kind;
    place.part = part;
    place.token = header.first_token(sequence, layer) + index / row;
    place.head = header.shard.head_first + static_cast<std::uint32_t>(index % row / dim);
    place.dim = static_cast<std::uint32_t>(index % dim);
    return place;
}

Result<Comparison> compare_states(Source& a, Source& b, bool allow_equal_nan,
                                  const std::function<Status(const ComparedLayer&)>& on_layer) try {
    return compare_all(a, b, allow_equal_nan, on_layer);
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "not enough memory to compare {} and {}", a.name(), b.name());
}

}  // namespace hetero::kv
