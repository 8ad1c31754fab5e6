#include "hw/probes/gpu_rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "hw/probes/timing.h"
#include "kernels/api/ops.h"

namespace hetero::hw {
namespace {

using kernels::DeviceFault;
using kernels::DType;

constexpr std::size_t page_tokens = kernels::kKvPageTokens;

// Memory and a stream of one measurement; the first fault ends it.
class Bench {
public:
    Bench(const kernels::DeviceOps& ops, int device) : ops_(ops), device_(device) {
        note(ops.create_stream(device, &stream_));
        note(ops.create_event(device, kernels::DeviceEventUse::time, &begin_));
        note(ops.create_event(device, kernels::DeviceEventUse::time, &end_));
        kernels::DeviceInfo info;
        if (ops.device_info(device, info)) return;
        void* memory = nullptr;
        if (info.l2_bytes == 0 || ops.allocate(device, 2 * info.l2_bytes, &memory)) return;  // then nothing is evicted
        memory_.push_back(memory);
        evicting_ = memory;
        evicting_bytes_ = 2 * info.l2_bytes;
    }
    ~Bench() {
        (void)ops_.synchronize(stream_);
        for (void* memory : memory_) (void)ops_.free(device_, memory);
        if (begin_ != nullptr) (void)ops_.destroy_event(begin_);
        if (end_ != nullptr) (void)ops_.destroy_event(end_);
        (void)ops_.destroy_stream(stream_);
    }
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;

    void note(const DeviceFault& fault) {
        if (fault && fault_.empty()) fault_ = fault.message();
    }
    [[nodiscard]] const std::string& fault() const { return fault_; }

    template <class T>
    T* take(std::size_t n) {
        void* memory = nullptr;
        if (fault_.empty()) note(ops_.allocate(device_, std::max<std::size_t>(n, 1) * sizeof(T), &memory));
        if (memory != nullptr) memory_.push_back(memory);
        return static_cast<T*>(memory);
    }
    template <class T>
    T* put(const std::vector<T>& values) {
        T* memory = take<T>(values.size());
        if (!fault_.empty()) return memory;
        note(ops_.copy(stream_, memory, values.data(), values.size() * sizeof(T)));
        note(ops_.synchronize(stream_));
        return memory;
    }
    template <class T>
    std::vector<T> get(const T* memory, std::size_t n) {
        std::vector<T> values(n);
        if (fault_.empty()) note(ops_.copy(stream_, values.data(), memory, n * sizeof(T)));
        if (fault_.empty()) note(ops_.synchronize(stream_));
        return values;
    }
    // Best time of one call whose operands are in memory, not in the L2 cache; nothing where it faults.
    template <class Call>
    std::optional<double> seconds(double budget_s, Call call) {
        if (!fault_.empty()) return std::nullopt;
        note(call());  // the first one warms up
        note(ops_.synchronize(stream_));
        double best = std::numeric_limits<double>::infinity(), used = 0;
        while (fault_.empty() && used < budget_s) {
            if (evicting_ != nullptr) note(ops_.fill(stream_, evicting_, 0, evicting_bytes_));
            note(ops_.record(begin_, stream_));
            note(call());
            note(ops_.record(end_, stream_));
            note(ops_.synchronize(stream_));
            float ms = 0;
            if (fault_.empty()) note(ops_.elapsed_ms(begin_, end_, &ms));
            best = std::min(best, ms / 1e3);
            used += std::max(ms / 1e3, 1e-5);
        }
        if (!fault_.empty() || !(best > 0)) return std::nullopt;
        return best;
    }
    [[nodiscard]] kernels::DeviceStream stream() const { return stream_; }

private:
    const kernels::DeviceOps& ops_;
    int device_;
    kernels::DeviceStream stream_ = nullptr;
    kernels::DeviceEvent begin_ = nullptr, end_ = nullptr;
    std::vector<void*> memory_;
    void* evicting_ = nullptr;
    std::size_t evicting_bytes_ = 0;
    std::string fault_;
};

std::vector<std::uint16_t> halves(DType type, std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(n);
    for (float& value : values) value = uniform(random);
    std::vector<std::uint16_t> out(n);
    type == DType::bf16 ? kernels::ops().f32_to_bf16(values.data(), out.data(), n)
                        : kernels::ops().f32_to_f16(values.data(), out.data(), n);
    return out;
}

std::vector<std::byte> weights_of(DType type, std::size_t rows, std::size_t cols) {
    std::vector<std::byte> out(rows * kernels::dtype_bytes(type, cols));
    const kernels::DTypeInfo& info = kernels::dtype_info(type);
    if (info.block_elems == 1) {
        const auto words = halves(type, rows * cols, 1);
        std::memcpy(out.data(), words.data(), out.size());
        return out;
    }
    std::mt19937 random(1);
    for (std::byte& byte : out) byte = static_cast<std::byte>(random());
    const std::uint16_t scale = 0x2000;  // 2^-7
    for (std::size_t block = 0; block < out.size(); block += info.block_bytes)
        std::memcpy(out.data() + block, &scale, sizeof scale);
    return out;
}

struct Subject {
    const char* dtype;
    DType weights;
};
constexpr std::array subjects{Subject{"f16", DType::f16}, Subject{"bf16", DType::bf16}, Subject{"int8", DType::q8_0},
                              Subject{"int4", DType::q4_0}};

Json products(const kernels::DeviceOps& ops, int device, double budget_s, const GpuSizes& sizes,
              const Subject& subject) {
    Json entry{{"dtype", subject.dtype},
               {"weights", std::string(kernels::dtype_info(subject.weights).name)},
               {"path", "fast"},
               {"threads", 1}};
    Bench bench(ops, device);
    const std::size_t rows = sizes.rows, cols = sizes.cols, tokens = sizes.gemm_tokens;
    const std::vector<std::byte> weights = weights_of(subject.weights, rows, cols);
    const auto x_half = halves(DType::bf16, tokens * cols, 2);
    std::vector<float> x(cols);
    kernels::ops().bf16_to_f32(x_half.data(), x.data(), cols);
    kernels::DeviceMatrix w{subject.weights, bench.put(weights), rows, cols, weights.size() / rows, nullptr, nullptr};
    const kernels::DeviceRows input{kernels::DeviceInput::bf16, bench.put(x_half), cols, nullptr};
    const float* vector = bench.put(x);
    float* y = bench.take<float>(tokens * rows);
    const std::size_t scratch_bytes = std::max(ops.gemm_scratch_bytes(w, input.type, tokens), rows * cols * 2);
    void* scratch = bench.take<std::byte>(scratch_bytes);

    const auto gemm = [&] {
        return ops.gemm(bench.stream(), w, input, tokens, y, rows, false, scratch, scratch_bytes);
    };
    const auto gemv = [&] { return ops.gemv(bench.stream(), w, vector, cols, 1, y, rows, false); };
    // The first token's rows by both, against sums in double precision.
    std::size_t wrong = 0;
    constexpr std::size_t looked_at = 16;
    for (const bool one : {false, true}) {
        if (bench.fault().empty()) bench.note(one ? gemv() : gemm());
        const std::vector<float> got = bench.get(y, std::min(looked_at, rows));
        std::vector<float> row(cols);
        for (std::size_t r = 0; r < got.size(); ++r) {
            kernels::ops().dequantize(subject.weights, weights.data() + r * w.row_bytes, row.data(), cols);
            double sum = 0, norm = 0;
            for (std::size_t c = 0; c < cols; ++c) {
                sum += double{row[c]} * x[c];
                norm += std::fabs(double{row[c]} * x[c]);
            }
            if (!(std::fabs(got[r] - sum) <= norm * 0x1p-7)) ++wrong;  // weights may be rounded to bf16
        }
    }
    if (!bench.fault().empty()) return unsupported(std::move(entry), bench.fault());
    if (wrong != 0)
        return unsupported(std::move(entry), fmt::format("{} of {} results of a test are wrong", wrong, 2 * looked_at));
    const double flop = 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(tokens);
    const auto many = bench.seconds(budget_s, gemm), few = bench.seconds(budget_s, gemv);
    if (!many || !few) return unsupported(std::move(entry), bench.fault());
    entry["executable"] = true;
    entry["bytes_per_weight"] = static_cast<double>(weights.size()) / static_cast<double>(rows * cols);
    entry["gemm_tokens"] = tokens;
    entry["gemm_gflop_per_s"] = rounded(flop / 1e9 / *many);
    entry["gemv_gb_per_s"] = rounded(static_cast<double>(weights.size()) / 1e9 / *few);
    return entry;
}

struct Format {
    const char* kv_dtype;
    kernels::KvCodes codes;
    double bits;
};
constexpr std::array formats{Format{"f16", kernels::KvCodes::floats, 16}, Format{"int8", kernels::KvCodes::i8, 8},
                             Format{"int4", kernels::KvCodes::u4, 4}};

// One sequence; tiles as a session keeps them: codes, then scales, then zeros, a scale a token, of 4 bits for 32 dims.
Json attention(const kernels::DeviceOps& ops, int device, double budget_s, const GpuSizes& sizes,
               const Format& format) {
    Json entry{{"kv_dtype", format.kv_dtype}, {"head_dim", sizes.head_dim}, {"threads", 1}};
    Bench bench(ops, device);
    const std::size_t dim = sizes.head_dim, tokens = sizes.decode_tokens, queries = sizes.prefill_tokens;
    const std::size_t pages = (std::max(tokens, queries) + page_tokens - 1) / page_tokens;
    const bool floats = format.codes == kernels::KvCodes::floats, half = kernels::is_paired(format.codes);
    kernels::DeviceKv k;
    k.n_heads = sizes.kv_heads;
    k.head_dim = k.token_stride = dim;
    k.dtype = DType::f16;
    k.codes = format.codes;
    std::size_t bytes = page_tokens * dim * (floats ? 2 : 1) / (half ? 2 : 1);
    if (!floats) {
        k.group = half ? std::min<std::size_t>(32, dim) : dim;
        const std::size_t scales = dim / k.group * page_tokens * 2;
        k.scale_offset = bytes;
        bytes += scales;
        if (half) {
            k.zero_offset = bytes;
            bytes += scales;
        }
    }
    k.head_bytes = (bytes + 63) / 64 * 64;
    k.page_bytes = 2 * sizes.kv_heads * k.head_bytes;
    k.memory = bench.take<std::byte>(pages * k.page_bytes);
    kernels::DeviceKv v = k;
    v.offset = sizes.kv_heads * k.head_bytes;

    std::vector<std::uint32_t> table(pages);
    for (std::size_t i = 0; i < pages; ++i) table[i] = static_cast<std::uint32_t>(i);
    const std::size_t most = std::max(tokens, queries);
    std::vector<std::int32_t> positions(most), sequence(most);
    for (std::size_t i = 0; i < most; ++i) positions[i] = static_cast<std::int32_t>(i);
    kernels::DeviceSequences all{bench.put(table), pages, nullptr, bench.put(sequence), bench.put(positions), most};
    // The same value in all dims of V of a token: what attention gives must lie between them.
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(page_tokens * sizes.kv_heads * dim);
    for (float& value : values) value = uniform(random);
    const float* some = bench.put(values);
    unsigned long long* bad = bench.take<unsigned long long>(2);
    kernels::DeviceSequences page = all;
    page.n_tokens = page_tokens;
    for (std::size_t at = 0; at < most && bench.fault().empty(); at += page_tokens) {
        page.n_tokens = std::min(page_tokens, most - at);
        for (const kernels::DeviceKv* part : {&k, &v})
            bench.note(ops.kv_store(bench.stream(), *part, page, {some, sizes.kv_heads * dim, dim}, bad));
        page.position += page_tokens;
        page.sequence += page_tokens;
    }
    kernels::DeviceAttention args;
    args.k = k;
    args.v = v;
    args.n_heads = sizes.query_heads;
    args.query_dim = args.output_dim = dim;
    args.scale = 1 / std::sqrt(static_cast<float>(dim));
    const std::size_t width = sizes.query_heads * dim;
    args.q = {bench.put(std::vector<float>(queries * width, 0.25F)), width, dim};
    float* out = bench.take<float>(queries * width);
    args.out = {out, width, dim};
    const std::size_t scratch_bytes = std::max(ops.attention_scratch_bytes(args, queries, most, false),
                                               ops.attention_scratch_bytes(args, 1, most, true));
    void* scratch = bench.take<std::byte>(scratch_bytes);
    kernels::DeviceSequences prompt = all, last = all;
    prompt.n_tokens = queries;
    last.n_tokens = 1;
    last.position += tokens - 1;
    const auto prefill = [&] { return ops.attention_prefill(bench.stream(), args, prompt, queries, scratch); };
    const auto decode = [&] { return ops.attention_decode(bench.stream(), args, last, tokens, scratch); };
    for (const bool one : {false, true}) {
        if (bench.fault().empty()) bench.note(one ? decode() : prefill());
        const std::vector<float> got = bench.get(out, width);
        if (bench.fault().empty() &&
            !std::all_of(got.begin(), got.end(), [](float x) { return std::fabs(x) <= 1.01F; }))
            return unsupported(std::move(entry), "attention gives values that its inputs cannot have");
    }
    const auto many = bench.seconds(budget_s, prefill), one = bench.seconds(budget_s, decode);
    if (!many || !one) return unsupported(std::move(entry), bench.fault());
    entry["executable"] = true;
    const double n = static_cast<double>(queries);
    entry["prefill_gflop_per_s"] = rounded(4 * n * (n + 1) / 2 * static_cast<double>(width) / 1e9 / *many);
    const double read = 2.0 * static_cast<double>(tokens * sizes.kv_heads) * static_cast<double>(k.head_bytes) /
                        static_cast<double>(page_tokens);
    entry["decode_gb_per_s"] = rounded(read / 1e9 / *one);
    return entry;
}

}  // namespace

void put_gpu_rates(const kernels::DeviceOps& ops, int device, double budget_s, const GpuSizes& sizes, Json& out) {
    Json rates = Json::array(), of_attention = Json::array();
    for (const Subject& subject : subjects) rates.push_back(products(ops, device, budget_s, sizes, subject));
    for (const char* lacking : {"f32", "fp8_e4m3fn"})
        rates.push_back(unsupported(Json{{"dtype", lacking}},
                                    "not measured: no weights of this type are multiplied on matrix units"));
    out["compute"] = {{"backend", ops.name},
                      {"method", fmt::format("gemm: {} rows x {} columns; gemv: the same weights, read once; best call",
                                             sizes.rows, sizes.cols)},
                      {"rates", rates}};
    for (const Format& format : formats) of_attention.push_back(attention(ops, device, budget_s, sizes, format));
    out["attention"] = {
        {"method", fmt::format("{} query heads over {} KV heads; prefill: {} tokens; decode: one query, {} "
                               "tokens; best call",
                               sizes.query_heads, sizes.kv_heads, sizes.prefill_tokens, sizes.decode_tokens)},
        {"rates", of_attention}};
}

}  // namespace hetero::hw
