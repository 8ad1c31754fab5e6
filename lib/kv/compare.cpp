#include "kv/compare.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <new>
#include <utility>

#include "quant/codec.h"

namespace hetero::kv {
namespace {

// Bin 0 holds zeros; bin i > 0 holds (edge(i - 1), edge(i)], edge(i) = 2^((i - 1) / 4 + min_exponent); the last one
// holds what is not finite. The differences of finite f32 values are 0 or within 2^-149 .. 2^129.
constexpr int min_exponent = -149, max_exponent = 129;
constexpr std::size_t last_finite_bin = 4 * (max_exponent - min_exponent) + 1;
constexpr std::size_t n_bins = last_finite_bin + 2;
constexpr double infinity = std::numeric_limits<double>::infinity();

std::size_t bin_of(double difference) {
    if (difference == 0) return 0;
    constexpr double quarter = 1.189207115002721, half = 1.4142135623730951, three_quarters = 1.681792830507429;
    const auto bits = std::bit_cast<std::uint64_t>(difference);  // normal: f32 differences are far above 2^-1022
    const int exponent = static_cast<int>(bits >> 52) - 1023;
    const auto mantissa = std::bit_cast<double>((bits & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1023} << 52));
    const int above = (mantissa > 1) + (mantissa > quarter) + (mantissa > half) + (mantissa > three_quarters);
    return static_cast<std::size_t>(4 * (exponent - min_exponent) + above) + 1;
}

double edge_of(std::size_t bin) {
    if (bin == 0) return 0;
    if (bin > last_finite_bin) return infinity;
    return std::exp2(static_cast<double>(bin - 1) / 4 + min_exponent);
}

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

Result<std::vector<float>> decode(const Header& header, const Part& part, std::uint64_t n_tokens, PartId id) {
    const quant::Codec* codec = quant::find_codec(part.scheme.codec);
    if (codec == nullptr) return fail(Errc::bad_input, "scheme \"{}\" is not known", part.scheme.codec);
    const quant::Shape shape{n_tokens, header.identity.n_kv_heads,
                             id == PartId::k ? header.identity.head_dim_k : header.identity.head_dim_v};
    std::vector<float> values(shape.elements());
    HETERO_CHECK(
        codec->decode(part.scheme.params, shape, part.values.bytes, part.scale.bytes, part.zero.bytes, values));
    return values;
}

struct PartComparison {
    PartDifference difference;
    std::size_t worst = 0;
    std::optional<std::size_t> first_difference, first_nonfinite;
    std::string_view nonfinite_what;
};

PartComparison compare_values(const std::vector<float>& a, const std::vector<float>& b, bool allow_equal_nan) {
    PartComparison result;
    PartDifference& part = result.difference;
    part.elements = a.size();
    part.histogram.assign(n_bins, 0);
    double sum = 0, squares = 0, aa = 0, bb = 0, ab = 0;
    std::uint64_t finite = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) part.bit_equal = false;
        double difference = 0;
        if (std::isfinite(a[i]) && std::isfinite(b[i])) [[likely]] {
            const double x = a[i];
            const double y = b[i];
            difference = std::abs(x - y);
            sum += difference;
            squares += difference * difference;
            aa += x * x;
            bb += y * y;
            ab += x * y;
            ++finite;
            ++part.histogram[bin_of(difference)];
        } else if (const auto reason = nonfinite_reason(a[i], b[i], allow_equal_nan); reason.empty()) {
            ++part.histogram[0];
        } else {
            difference = infinity;
            ++part.histogram[n_bins - 1];
            if (!result.first_nonfinite) {
                result.first_nonfinite = i;
                result.nonfinite_what = reason;
            }
        }
        if (difference > part.max_abs) {
            part.max_abs = difference;
            result.worst = i;
        }
        if (difference > 0 && !result.first_difference) result.first_difference = i;
    }
    part.mean_abs = finite == 0 ? 0 : sum / static_cast<double>(finite);
    part.relative_l2 = squares == 0 ? 0 : std::sqrt(squares / aa);  // infinity where a is all zero
    part.cosine = aa == 0 && bb == 0 ? 1 : aa == 0 || bb == 0 ? 0 : ab / std::sqrt(aa) / std::sqrt(bb);
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

Status check_shapes(const Identity& a, const Identity& b) {
    const std::array<std::pair<const char*, std::pair<std::uint32_t, std::uint32_t>>, 4> counts = {
        {{"n_layers", {a.n_layers, b.n_layers}},
         {"n_kv_heads", {a.n_kv_heads, b.n_kv_heads}},
         {"head_dim_k", {a.head_dim_k, b.head_dim_k}},
         {"head_dim_v", {a.head_dim_v, b.head_dim_v}}}};
    for (const auto& [name, pair] : counts) {
        if (pair.first != pair.second)
            return fail(Errc::bad_input, "not comparable: {} is {} and {}", name, pair.first, pair.second);
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
        const auto [l, r] = std::mismatch(left.tokens.begin(), left.tokens.end(), right.tokens.begin());
        if (l == left.tokens.end()) continue;
        const std::string field = fmt::format("tokens[{}]", l - left.tokens.begin());
        mismatches.push_back({a.sequences.size() == 1 ? field : fmt::format("sequence {}: {}", left.id, field),
                              fmt::format("{}", *l), fmt::format("{}", *r)});
    }
    return {};
}

Result<Comparison> compare_all(Source& a, Source& b, bool allow_equal_nan) {
    const Header& header = a.header();
    Comparison comparison;
    HETERO_CHECK(check_shapes(header.identity, b.header().identity));
    comparison.mismatches = compare(header.identity, b.header().identity);
    HETERO_TRY(Paired paired, Paired::make(header, b));
    HETERO_CHECK(compare_tokens(header, paired, comparison.mismatches));

    std::vector<std::uint64_t> histogram(n_bins, 0);
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        const Sequence& sequence = header.sequences[s];
        for (std::uint32_t l = 0; l < header.identity.n_layers; ++l) {
            HETERO_TRY(const Layer left, a.read_layer());
            HETERO_TRY(const Layer right, paired.layer(s, l));
            for (const PartId id : {PartId::k, PartId::v}) {
                const auto named = [&](const Error& error, const Source& source) {
                    return fail_with(error, fmt::format("{}: sequence {}, layer {}, {}", source.name(), sequence.id, l,
                                                        part_name(id)));
                };
                const std::uint64_t n_tokens = sequence.tokens.size();
                auto x = decode(header, left.part(id), n_tokens, id);
                if (!x) return named(x.error(), a);
                auto y = decode(b.header(), right.part(id), n_tokens, id);
                if (!y) return named(y.error(), b);
                PartComparison part = compare_values(*x, *y, allow_equal_nan);
                part.difference.sequence = sequence.id;
                part.difference.layer = l;
                part.difference.part = id;
                const auto locate = [&](std::size_t i) {
                    const std::uint64_t dim = id == PartId::k ? header.identity.head_dim_k : header.identity.head_dim_v;
                    const std::uint64_t row = dim * header.identity.n_kv_heads;
                    return Location{sequence.id,
                                    l,
                                    id,
                                    i / row,
                                    static_cast<std::uint32_t>(i % row / dim),
                                    static_cast<std::uint32_t>(i % dim)};
                };
                for (std::size_t i = 0; i < n_bins; ++i) histogram[i] += part.difference.histogram[i];
                if (part.difference.max_abs > comparison.max_abs || comparison.parts.empty()) {
                    comparison.max_abs = part.difference.max_abs;
                    comparison.worst = locate(part.worst);
                }
                if (part.first_difference && !comparison.first_difference)
                    comparison.first_difference = locate(*part.first_difference);
                if (part.first_nonfinite && !comparison.first_nonfinite) {
                    comparison.first_nonfinite = locate(*part.first_nonfinite);
                    comparison.nonfinite_what = part.nonfinite_what;
                }
                comparison.parts.push_back(std::move(part.difference));
            }
        }
    }
    HETERO_CHECK(a.finish());
    HETERO_CHECK(paired.finish());
    comparison.p99_abs = histogram_quantile(histogram, 0.99);
    return comparison;
}

}  // namespace

double histogram_quantile(const std::vector<std::uint64_t>& histogram, double q) {
    std::uint64_t total = 0;
    for (const std::uint64_t count : histogram) total += count;
    if (total == 0) return 0;
    const double rank = std::max(1.0, std::ceil(q * static_cast<double>(total)));
    std::uint64_t seen = 0;
    for (std::size_t bin = 0; bin < histogram.size(); ++bin) {
        seen += histogram[bin];
        if (static_cast<double>(seen) >= rank) return edge_of(bin);
    }
    return infinity;
}

Result<Comparison> compare_states(Source& a, Source& b, bool allow_equal_nan) try {
    return compare_all(a, b, allow_equal_nan);
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "not enough memory to compare {} and {}", a.name(), b.name());
}

}  // namespace hetero::kv
