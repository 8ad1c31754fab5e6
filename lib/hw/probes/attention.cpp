// Attention over K and V as they stay in memory: blocks of queries (prefill) and one query (decode), through the
// kernels that the engine uses and divided among threads as it does. A format counts as executable only where the
// results agree with those of the scalar reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "hw/probes/probes.h"
#include "hw/probes/timing.h"
#include "kernels/api/ops.h"
#include "kernels/api/tiles.h"

namespace hetero::hw {
namespace {

using kernels::DType;
using kernels::KvCodes;

constexpr std::size_t page_tokens = kernels::kKvPageTokens, query_heads = 4;  // of a KV head

struct Format {
    const char* kv_dtype;
    KvCodes codes;
    std::size_t group;  // dims with a scale; 0: the whole head
    bool zeros;
};
constexpr std::array formats{Format{"f16", KvCodes::floats, 0, false}, Format{"int8", KvCodes::i8, 0, false},
                             Format{"int4", KvCodes::u4, 32, true}, Format{"fp8_e4m3fn", KvCodes::e4m3fn, 0, false}};

// Bytes of the codes of one token of K or V of one head.
std::size_t code_bytes(const Format& format, std::size_t head_dim) {
    if (format.codes == KvCodes::floats) return 2 * head_dim;
    return is_paired(format.codes) ? head_dim / 2 : head_dim;
}
std::size_t groups_of(const Format& format, std::size_t head_dim) {
    if (format.codes == KvCodes::floats) return 0;
    return format.group == 0 ? 1 : head_dim / format.group;
}
// With scales.
std::size_t token_bytes(const Format& format, std::size_t head_dim) {
    return code_bytes(format, head_dim) + 2 * groups_of(format, head_dim) * (format.zeros ? 2 : 1);
}

std::uint16_t half(float value) {
    std::uint16_t bits = 0;
    kernels::ops().f32_to_f16(&value, &bits, 1);
    return bits;
}

// K and V of some KV heads in pages as the engine lays them out, with the queries of all of them.
class Cache {
public:
    Cache(const Format& format, std::size_t head_dim, std::size_t kv_heads, std::size_t tokens, std::size_t queries,
          ThreadPool& pool)
        : format_(format),
          dim_(head_dim),
          kv_heads_(kv_heads),
          tokens_(tokens),
          queries_(queries),
          pool_(pool),
          row_bytes_(code_bytes(format, head_dim)),
          groups_(groups_of(format, head_dim)),
          tile_bytes_(page_tokens * token_bytes(format, head_dim)),
          memory_((tokens + page_tokens - 1) / page_tokens * 2 * kv_heads * tile_bytes_),
          q_(queries * kv_heads * query_heads * head_dim),
          out_(q_.size()),
          parts_(kv_heads * query_heads * max_spans * (head_dim + 2)) {
        const std::size_t page_bytes = 2 * kv_heads * tile_bytes_;
        for (std::size_t at = 0; at < memory_.size(); at += page_bytes) pages_.push_back(memory_.data() + at);
        fill();
        std::mt19937 random(3);
        std::uniform_real_distribution<float> uniform(-1, 1);
        for (float& value : q_) value = uniform(random);
    }

    void prefill(const kernels::Ops* reference = nullptr) {
        const auto rounded = reference == nullptr ? kernels::prefill_attention() : nullptr;
        const std::size_t block = rounded != nullptr ? 256 : 32;  // queries of a task, as in the engine
        const std::size_t blocks = (queries_ + block - 1) / block;
        pool_.parallel_for(blocks * kv_heads_, [&](std::size_t task, int) {
            const std::size_t begin = (blocks - 1 - task / kv_heads_) * block;  // the longest first
            kernels::AttentionArgs args = arguments(task % kv_heads_, begin);
            args.n_queries = std::min(block, queries_ - begin);
            args.kv_tokens = args.first_position + args.n_queries;
            if (rounded != nullptr) return rounded(args);
            (reference != nullptr ? *reference : kernels::ops()).attention(args);
        });
    }
    // Of query heads with the keys that prefill's query heads see: 4 * head_dim operations each.
    [[nodiscard]] double prefill_flop() const {
        const auto q = static_cast<double>(queries_);
        const double pairs = q * (static_cast<double>(tokens_) - q) + q * (q + 1) / 2;
        return 4 * pairs * static_cast<double>(dim_ * kv_heads_ * query_heads);
    }

    // The last query alone, over spans of keys.
    void decode(const kernels::Ops& ops = kernels::ops()) {
        std::size_t span = 4 * page_tokens;
        while (span * max_spans < tokens_) span *= 2;
        const std::size_t spans = (tokens_ + span - 1) / span, part = dim_ + 2;
        const std::size_t run =  // spans of a task, as in the engine
            std::clamp<std::size_t>(spans * kv_heads_ / (8 * static_cast<std::size_t>(pool_.size())), 1, spans);
        const std::size_t runs = (spans + run - 1) / run;
        pool_.parallel_for(runs * kv_heads_, [&](std::size_t task, int) {
            const std::size_t head = task / runs, first = task % runs * run, end = std::min(first + run, spans);
            const kernels::AttentionArgs args = arguments(head, queries_ - 1);
            ops.attention_spans(args, first * span, std::min(end * span, tokens_), span,
                                parts_.data() + (head * query_heads * spans + first) * part, spans * part);
        });
        for (std::size_t head = 0; head < kv_heads_ * query_heads; ++head)
            ops.attention_merge(parts_.data() + head * spans * part, spans, dim_,
                                out_.data() + head * dim_ + (queries_ - 1) * kv_heads_ * query_heads * dim_);
    }
    // Bytes of K and V that decode reads, scales included.
    [[nodiscard]] double decode_bytes() const {
        return static_cast<double>(2 * kv_heads_ * tokens_ * token_bytes(format_, dim_));
    }

    [[nodiscard]] std::span<const float> out() const { return out_; }
    void clear_out() { std::fill(out_.begin(), out_.end(), std::nanf("")); }

private:
    static constexpr std::size_t max_spans = 32;

    // Random finite values, the same 64 tokens in each page: their order is of no account to the time.
    void fill() {
        std::mt19937 random(4);
        std::uniform_real_distribution<float> uniform(-1, 1);
        std::vector<std::byte> page(2 * kv_heads_ * tile_bytes_);
        for (std::size_t at = 0; at < page.size(); at += tile_bytes_) {
            std::byte* tile = page.data() + at;
            const std::size_t values = page_tokens * row_bytes_;
            if (format_.codes == KvCodes::floats) {
                for (std::size_t i = 0; i < values; i += 2) store_half(tile + i, uniform(random));
                continue;
            }
            for (std::size_t i = 0; i < values; ++i) {
                auto code = static_cast<std::uint8_t>(random());
                if (format_.codes == KvCodes::e4m3fn) code &= 0xBF;  // finite, below 2
                tile[i] = std::byte{code};
            }
            const float scale = format_.codes == KvCodes::e4m3fn ? 0.5F : is_paired(format_.codes) ? 0.12F : 0.008F;
            for (std::size_t i = 0; i < page_tokens * groups_; ++i) {
                store_half(tile + values + 2 * i, scale * (1 + uniform(random) / 4));
                if (format_.zeros) store_half(tile + values + 2 * (page_tokens * groups_ + i), -1);
            }
        }
        pool_.parallel_for(pages_.size(), [&](std::size_t index, int) {
            std::memcpy(memory_.data() + index * page.size(), page.data(), page.size());
        });
    }
    static void store_half(std::byte* to, float value) {
        const std::uint16_t bits = half(value);
        std::memcpy(to, &bits, sizeof bits);
    }

    [[nodiscard]] kernels::KvView view(std::size_t tile) const {
        kernels::KvView view;
        view.pages = pages_.data();
        view.offset = tile * tile_bytes_;
        view.token_stride = dim_;
        view.codes = format_.codes;
        if (groups_ == 0) return view;
        view.group = dim_ / groups_;
        view.scale_offset = view.offset + page_tokens * row_bytes_;
        if (format_.zeros) view.zero_offset = view.scale_offset + 2 * page_tokens * groups_;
        return view;
    }
    [[nodiscard]] kernels::AttentionArgs arguments(std::size_t kv_head, std::size_t query) {
        kernels::AttentionArgs args;
        const std::size_t stride = kv_heads_ * query_heads * dim_;
        args.n_heads = query_heads;
        args.q_head_stride = args.out_head_stride = args.head_dim_k = args.head_dim_v = dim_;
        args.q_stride = args.out_stride = stride;
        args.q = q_.data() + query * stride + kv_head * query_heads * dim_;
        args.out = out_.data() + query * stride + kv_head * query_heads * dim_;
        args.k = view(2 * kv_head);
        args.v = view(2 * kv_head + 1);
        args.n_queries = 1;
        args.first_position = tokens_ - queries_ + query;
        args.kv_tokens = tokens_;
        args.scale = 1 / std::sqrt(static_cast<float>(dim_));
        return args;
    }

    Format format_;
    std::size_t dim_, kv_heads_, tokens_, queries_;
    ThreadPool& pool_;
    std::size_t row_bytes_, groups_, tile_bytes_;
    Aligned<std::byte> memory_;  // [page][kv_head][K, V] tiles
    std::vector<const std::byte*> pages_;
    std::vector<float> q_, out_;  // [query][head][head_dim]
    std::vector<float> parts_;    // [head][span][max, sum, head_dim]
};

const kernels::Ops& reference() {
    for (const kernels::Ops* const* ops = kernels::all_backends(); *ops != nullptr; ++ops)
        if (std::string_view((*ops)->name) == "scalar") return **ops;
    return kernels::ops();
}

// Both forms against the scalar reference. Values are below 2, so that 1/32 is some steps of bf16, in which tiles
// compute, and a small part of what another key's value would change.
std::optional<std::string> fault(const Format& format, std::size_t head_dim, ThreadPool& pool) {
    constexpr float bound = 1.0F / 32;
    Cache cache(format, head_dim, 1, 80, 20, pool);  // two pages
    const auto differ = [&](auto run, auto run_reference) {
        cache.clear_out();
        run_reference();
        const std::vector<float> expected(cache.out().begin(), cache.out().end());
        cache.clear_out();
        run();
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < expected.size(); ++i)
            if (!(std::fabs(cache.out()[i] - expected[i]) <= bound) && !std::isnan(expected[i])) ++wrong;
        return wrong;
    };
    const std::size_t prefill = differ([&] { cache.prefill(); }, [&] { cache.prefill(&reference()); });
    const std::size_t decode = differ([&] { cache.decode(); }, [&] { cache.decode(reference()); });
    if (prefill + decode == 0) return std::nullopt;
    return fmt::format("{} values of prefill and {} of decode differ from the reference", prefill, decode);
}

Json measure(const Context& context, const Format& format, std::size_t head_dim, ThreadPool& pool,
             std::size_t kv_bytes) {
    Json entry;
    entry["kv_dtype"] = format.kv_dtype;
    entry["head_dim"] = head_dim;
    entry["threads"] = pool.size();
    if (const auto why = fault(format, head_dim, pool)) return unsupported(std::move(entry), *why);
    entry["executable"] = true;
    const double budget_s = context.options.seconds_each / 8;
    {
        const bool quick = context.options.quick;
        Cache cache(format, head_dim, 2, quick ? 512 : 2048, quick ? 256 : 512, pool);
        const double seconds = best_seconds(budget_s, [&] { cache.prefill(); });
        entry["prefill_gflop_per_s"] = rounded(cache.prefill_flop() / seconds / 1e9);
    }
    constexpr std::size_t tokens = 4096;
    const std::size_t kv_heads = std::max<std::size_t>(1, kv_bytes / (2 * tokens * token_bytes(format, head_dim)));
    Cache cache(format, head_dim, kv_heads, tokens, 1, pool);
    cache.decode();
    const double seconds = best_seconds(budget_s, [&] { cache.decode(); });
    entry["decode_gb_per_s"] = rounded(cache.decode_bytes() / seconds / 1e9);
    return entry;
}

}  // namespace

Json probe_attention(const Context& context) {
    Json section;
    if (const char* reason = context.measures_nothing()) {
        put_unknown(section, "rates", reason);
        return section;
    }
    const bool quick = context.options.quick;
    const std::size_t kv_bytes =
        std::min<std::uint64_t>((quick ? 16ULL : 96ULL) << 20, context.limits.memory_available_bytes / 16);
    section["method"] = fmt::format(
        "{} query heads a KV head; prefill: {} queries up to token {}; decode: one query, 4096 tokens, so many heads "
        "that "
        "K and V have {} bytes; best call",
        query_heads, quick ? 256 : 512, quick ? 512 : 2048, kv_bytes);
    section["rates"] = with_one_and_all_threads(context, [&](ThreadPool& pool) {
        std::vector<Json> entries;
        for (const std::size_t head_dim : {std::size_t{64}, std::size_t{128}})
            for (const Format& format : formats) entries.push_back(measure(context, format, head_dim, pool, kv_bytes));
        return entries;
    });
    return section;
}

}  // namespace hetero::hw
