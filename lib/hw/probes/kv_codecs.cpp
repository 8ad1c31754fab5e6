// K and V from 16-bit values to codes and back, through the codecs that kv-quantize and transfers use. A codec counts
// as executable only where what comes back is within its bound of what went in.
#include <cmath>
#include <cstring>
#include <random>

#include "hw/probes/probes.h"
#include "hw/probes/timing.h"
#include "kernels/api/ops.h"
#include "quant/spec.h"

namespace hetero::hw {
namespace {

constexpr std::array specs{
    "int8", "int4", "fp8_e4m3fn", "int8:channel:g32:asym", "int4:channel:g32:asym", "had:int4:token:g32:asym"};
constexpr std::uint32_t heads = 8, head_dim = 128;
constexpr std::size_t block_tokens = 64;  // of a task: its values and codes stay in a core's cache
constexpr std::size_t row_bytes = std::size_t{heads} * head_dim * 2;

// Values of so many tokens, the codes of each block of tokens, and the values that come back.
class Codes {
public:
    Codes(const quant::Spec& spec, std::size_t tokens, ThreadPool& pool)
        : codec_(*quant::find_codec(spec.codec)),
          params_(spec.params),
          pool_(pool),
          values_(tokens * row_bytes),
          back_(tokens * row_bytes),
          codes_(tokens / block_tokens) {
        std::mt19937 random(5);
        std::uniform_real_distribution<float> uniform(-2, 2);
        std::vector<float> block(block_tokens * heads * head_dim);
        for (float& value : block) value = uniform(random);
        std::vector<std::uint16_t> half(block.size());
        kernels::ops().f32_to_f16(block.data(), half.data(), block.size());
        pool.parallel_for(codes_.size(), [&](std::size_t index, int) {
            std::memcpy(values_.data() + index * half.size() * 2, half.data(), half.size() * 2);
        });
        const quant::EncodedBytes bytes = codec_.bytes(params_, shape(0));
        for (quant::Encoded& one : codes_) {
            one.values.resize(bytes.values);
            one.scale.resize(bytes.scale);
            one.zero.resize(bytes.zero);
        }
        stored_ratio = static_cast<double>(bytes.total()) / static_cast<double>(half.size() * 2);
    }

    double stored_ratio = 0;
    Status encode() {
        return each([&](std::size_t index) {
            quant::Encoded& to = codes_[index];
            return codec_.encode_from(params_, shape(index), kernels::DType::f16, part(values_, index),
                                      {to.values, to.scale, to.zero}, nullptr);
        });
    }
    Status decode() {
        return each([&](std::size_t index) {
            const quant::Encoded& from = codes_[index];
            return codec_.decode_to(params_, shape(index), from.values, from.scale, from.zero,
                                    {kernels::DType::f16, part(back_, index)}, nullptr);
        });
    }
    // The largest difference of the first block's values to what came back.
    [[nodiscard]] double difference() const {
        constexpr std::size_t n = block_tokens * heads * head_dim;
        std::vector<float> a(n), b(n);
        kernels::ops().f16_to_f32(reinterpret_cast<const std::uint16_t*>(values_.data()), a.data(), n);
        kernels::ops().f16_to_f32(reinterpret_cast<const std::uint16_t*>(back_.data()), b.data(), n);
        double largest = 0;
        for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(double{a[i]} - b[i]));
        return largest;
    }
    // A rotated head has no bound for each value, but for their root mean square.
    [[nodiscard]] double bound() const {
        const double of_group = codec_.error_bound(params_, -2, 2) + 2 * 0x1p-11;
        return params_.hadamard ? of_group * std::sqrt(double{head_dim}) : of_group;
    }

private:
    template <class One>
    Status each(One one) {
        std::vector<Status> results(codes_.size());
        pool_.parallel_for(codes_.size(), [&](std::size_t index, int) { results[index] = one(index); });
        for (Status& result : results) HETERO_CHECK(std::move(result));
        return {};
    }
    [[nodiscard]] static quant::Shape shape(std::size_t block) {
        return {block_tokens, heads, head_dim, block * block_tokens};
    }
    [[nodiscard]] static std::span<std::byte> part(const Aligned<std::byte>& all, std::size_t block) {
        return all.span().subspan(block * block_tokens * row_bytes, block_tokens * row_bytes);
    }

    const quant::Codec& codec_;
    quant::Params params_;
    ThreadPool& pool_;
    Aligned<std::byte> values_, back_;  // f16 [token][head][head_dim]
    std::vector<quant::Encoded> codes_;
};

std::optional<std::string> fault(Codes& codes) {
    if (const Status encoded = codes.encode(); !encoded) return encoded.error().message;
    if (const Status decoded = codes.decode(); !decoded) return decoded.error().message;
    if (const double difference = codes.difference(), bound = codes.bound(); !(difference <= bound))
        return fmt::format("values come back with an error of {:.3g}, above {:.3g}", difference, bound);
    return std::nullopt;
}

Json measure(const Context& context, const char* text, std::size_t tokens, ThreadPool& pool) {
    Json entry;
    entry["codec"] = text;
    entry["threads"] = pool.size();
    const auto spec = quant::parse_spec(text);
    if (!spec) return unsupported(std::move(entry), spec.error().message);
    Codes codes(*spec, tokens, pool);
    if (const auto why = fault(codes)) return unsupported(std::move(entry), *why);
    entry["executable"] = true;
    const double budget_s = context.options.seconds_each / 8;
    const double bytes = static_cast<double>(tokens * row_bytes);
    entry["encode_gb_per_s"] =
        rounded(bytes / 1e9 / best_seconds(budget_s, [&] { static_cast<void>(codes.encode()); }));
    entry["decode_gb_per_s"] =
        rounded(bytes / 1e9 / best_seconds(budget_s, [&] { static_cast<void>(codes.decode()); }));
    entry["stored_ratio"] = codes.stored_ratio;
    return entry;
}

}  // namespace

Json probe_kv_codecs(const Context& context) {
    Json section;
    if (const char* reason = context.measures_nothing()) {
        put_unknown(section, "rates", reason);
        return section;
    }
    const std::uint64_t bytes = std::min<std::uint64_t>((context.options.quick ? 8ULL : 64ULL) << 20,
                                                        context.limits.memory_available_bytes / 16);
    const std::size_t tokens = std::max<std::size_t>(1, bytes / row_bytes / block_tokens) * block_tokens;
    section["method"] = fmt::format("{} heads of {}, {} tokens, f16 in and out, blocks of {} tokens; best call", heads,
                                    head_dim, tokens, block_tokens);
    section["rates"] = with_one_and_all_threads(context, [&](ThreadPool& pool) {
        std::vector<Json> entries;
        for (const char* spec : specs) entries.push_back(measure(context, spec, tokens, pool));
        return entries;
    });
    return section;
}

}  // namespace hetero::hw
